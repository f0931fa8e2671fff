"use strict";
(() => {
  const dark = JSON.parse(document.getElementById("dark").textContent);
  const schemes = window.matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 440;  // CSS pixels: below, axes and legends get less room
  const PRINTED = 640;  // the width that plots are drawn with for paper, whatever the window's
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "10 4" };
  const MARKERS = {  // around the origin, as plotly draws them
    circle: "M-4,0A4,4,0,1,1,4,0A4,4,0,1,1,-4,0Z",
    square: "M-3.6,-3.6H3.6V3.6H-3.6Z",
    diamond: "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M0,-4.6L4.6,3.4H-4.6Z",
    "triangle-down": "M0,4.6L4.6,-3.4H-4.6Z",
    cross: "M-4.5,-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z",
    x: "M0,-2L2.4,-4.4L4.4,-2.4L2,0L4.4,2.4L2.4,4.4L0,2L-2.4,4.4L-4.4,2.4L-2,0L-4.4,-2.4L-2.4,-4.4Z",
  };
  // The hash of the page's policy is that of the unpacked script: only this one runs.
  const unpacked = (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (one) => one.charCodeAt(0));
    const unpacking = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacking).text();
    document.head.append(script);
  })();
  const config = { displayModeBar: false, responsive: false };

  const plots = [...document.querySelectorAll(".drawing")].map((place) => ({
    place,
    legend: place.previousElementSibling,
    height: parseInt(place.style.height, 10),
    source: JSON.parse(place.nextElementSibling.textContent),
    hidden: new Set(),
  }));

  const recolored = (value) => {
    if (typeof value === "string") return dark[value] ?? value;
    if (Array.isArray(value)) return value.map(recolored);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recolored(inner)]));
    }
    return value;
  };

  // Names of values on a log axis, the largest first; those without room are left out.
  const thinned = (axis, width) => {
    if (axis.type !== "log" || axis.tickmode !== "array") return;
    const places = axis.tickvals.map((value) => Math.log10(value));
    const low = axis.range?.[0] ?? Math.min(...places);
    const high = axis.range?.[1] ?? Math.max(...places);
    let free = Infinity;
    axis.ticktext = axis.ticktext.map((text, index) => ({ text, at: width * (places[index] - low) / (high - low || 1) }))
      .reverse()
      .map(({ text, at }) => {
        const half = 3.6 * text.length + 4;
        if (at + half > free) return "";
        free = at - half;
        return text;
      })
      .reverse();
  };

  const swatch = (trace) => {
    const svg = document.createElementNS(SVG, "svg");
    const add = (name, attributes) => {
      const shape = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
      svg.append(shape);
    };
    const isBar = trace.type === "bar";
    svg.setAttribute("viewBox", isBar ? "0 0 12 12" : "0 0 30 12");
    svg.setAttribute("width", isBar ? 12 : 30);
    svg.setAttribute("height", 12);
    svg.setAttribute("aria-hidden", "true");
    if (isBar) {
      add("rect", { width: 12, height: 12, rx: 2, fill: trace.marker.color });
      return svg;
    }
    if (trace.fillcolor && trace.fill !== "none") add("rect", { y: 6, width: 30, height: 6, fill: trace.fillcolor });
    if (trace.mode.includes("lines")) {
      add("line", {
        x1: 0, x2: 30, y1: 6, y2: 6, stroke: trace.line.color, "stroke-width": 2,
        "stroke-dasharray": DASHES[trace.line.dash] ?? "none",
      });
    }
    if (trace.mode.includes("markers")) {
      const [symbol, open] = (trace.marker.symbol ?? "circle").split("-open");
      const color = trace.marker.color ?? trace.line.color;
      const style = open === undefined ? { fill: color } : { fill: "none", stroke: color, "stroke-width": 1.5 };
      add("path", { d: MARKERS[symbol] ?? MARKERS.circle, transform: "translate(15 6)", ...style });
    }
    return svg;
  };

  // Clicking a name hides what it stands for, or brings it back.
  const nameTraces = (plot, data) => {
    const named = data.map((trace, index) => ({ trace, index })).filter(({ trace }) => trace.showlegend !== false);
    if (named.length < 2) return;
    plot.legend.replaceChildren(...named.map(({ trace, index }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!plot.hidden.has(index)));
      button.append(swatch(trace), trace.name);
      button.addEventListener("click", () => {
        if (!plot.hidden.delete(index)) plot.hidden.add(index);
        button.setAttribute("aria-pressed", String(!plot.hidden.has(index)));
        Plotly.restyle(plot.place, { visible: !plot.hidden.has(index) }, [index]);
      });
      return button;
    }));
  };

  const draw = async (plot, { width, isDark }) => {
    await unpacked;
    const { data, layout } = isDark ? recolored(plot.source) : structuredClone(plot.source);
    const narrow = width < NARROW;
    layout.font.family = getComputedStyle(document.body).fontFamily;
    layout.width = width;
    layout.height = plot.height;
    if (narrow) {
      layout.dragmode = false;  // a finger scrolls the page
      layout.margin = { ...layout.margin, l: 44, r: 10 };
      for (const axis of ["xaxis", "yaxis"]) {
        layout[axis].tickfont.size = 11;
        layout[axis].title.font.size = 12;
      }
      for (const trace of data) if (trace.type === "heatmap") trace.textfont.size = 8.5;
    }
    thinned(layout.xaxis, width - (narrow ? 70 : 100));
    data.forEach((trace, index) => { trace.visible = !plot.hidden.has(index); });
    nameTraces(plot, data);
    return Plotly.react(plot.place, data, layout, config);
  };

  const drawAll = async (given) => {
    let drawn = 0;
    for (const plot of plots) {
      const width = given.width ?? Math.floor(plot.place.clientWidth);
      try {
        await draw(plot, { width, isDark: given.isDark });
        plot.width = width;
        drawn += 1;
      } catch (error) {
        console.error("a plot could not be drawn", error);
        plot.place.textContent = "This plot could not be drawn; its figures stand in the table.";
        plot.place.className = "drawing failed";
      }
    }
    document.documentElement.dataset.drawn = String(drawn);
  };

  // Browsers change the scheme and the width for paper too: plots keep what beforeprint gave them.
  let printing = false;
  const onScreen = () => {
    if (!printing) drawAll({ isDark: schemes.matches });
  };
  onScreen();
  schemes.addEventListener("change", onScreen);

  let waiting = 0;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (plots.some((plot) => plot.width !== Math.floor(plot.place.clientWidth))) onScreen();
    }, 120);
  }).observe(document.querySelector("main"));

  window.addEventListener("beforeprint", () => {
    printing = true;
    drawAll({ width: PRINTED, isDark: false });
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    onScreen();
  });

  const selectText = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };

  // A page opened from a disk or a mail may have no clipboard interface: then the selection is copied the old way.
  const copy = async (code) => {
    if (navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(code.textContent);
        return "Copied";
      } catch (refused) {
        console.info("the clipboard was refused, the selection is copied instead", refused.name);
      }
    }
    selectText(code);
    return document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  };

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      button.textContent = await copy(button.closest(".code").querySelector("code"));
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
})();
