"use strict";
(() => {
  const dark = JSON.parse(document.getElementById("dark").textContent);
  const schemes = window.matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 520;  // CSS pixels: below, axes and legends get less room
  const PRINTED = 640;  // the width that plots are drawn with for paper, whatever the window's
  const config = { displaylogo: false, responsive: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  const plots = [...document.querySelectorAll(".drawing")].map((place) => ({
    place,
    height: parseInt(place.style.height, 10),
    source: JSON.parse(place.nextElementSibling.textContent),
  }));

  const recolored = (value) => {
    if (typeof value === "string") return dark[value] ?? value;
    if (Array.isArray(value)) return value.map(recolored);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recolored(inner)]));
    }
    return value;
  };

  const draw = (plot, { width, isDark }) => {
    const { data, layout } = isDark ? recolored(plot.source) : structuredClone(plot.source);
    const font = getComputedStyle(document.body).fontFamily;
    layout.font.family = font;
    layout.width = width;
    layout.height = plot.height;
    layout.showlegend = data.filter((trace) => trace.showlegend !== false).length > 1;
    if (width < NARROW) {
      layout.margin = { ...layout.margin, l: 48, r: 8 };
      layout.font.size = 12;
      layout.legend = { ...layout.legend, font: { size: 11 }, itemwidth: 30 };
      const names = data.filter((trace) => trace.showlegend !== false).length;
      layout.height = plot.height + (layout.showlegend ? 14 * Math.max(names - 2, 0) : 0);
      for (const axis of ["xaxis", "yaxis"]) layout[axis].tickfont.size = 11;
    }
    plot.place.style.height = `${layout.height}px`;
    return Plotly.react(plot.place, data, layout, { ...config, displayModeBar: width < NARROW ? false : "hover" });
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

  const onScreen = () => drawAll({ isDark: schemes.matches });
  onScreen();
  schemes.addEventListener("change", onScreen);

  let waiting = 0;
  let printing = false;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    if (printing) return;
    waiting = setTimeout(() => {
      if (plots.some((plot) => plot.width !== Math.floor(plot.place.clientWidth))) onScreen();
    }, 120);
  }).observe(document.querySelector("main"));

  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      details.dataset.opened = "by print";
    }
    drawAll({ width: PRINTED, isDark: false });
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const details of document.querySelectorAll("details[data-opened]")) {
      details.open = false;
      delete details.dataset.opened;
    }
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
