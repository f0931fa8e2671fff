"""One function for each kind of plot: a description of the data in, a plotly figure out.

Values are those of the document; the `Kind` of an axis says how they are written there and beside the pointer. Shares
of 0 to 1 are drawn as percents. Figures carry the light colours. If the reader's system is dark, the page's script
replaces each colour by its dark one. Colour-blind readers can tell the hues apart (after Okabe and Ito); lines also
differ by marker and dash.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from freescale_tools.report.blocks import Document
from freescale_tools.report.numbers import COUNT, MS, SHARE, Kind, label, milliseconds

INK, MUTED, GRID, AXIS, PAPER = "#1c232b", "#55606d", "#e4e8ed", "#b4bdc7", "#ffffff"
BLUE, RED, GREEN, PINK = "#0068a8", "#c44e0a", "#00805d", "#a4508b"
AMBER, SKY, GREY, FAINT = "#a87600", "#3f93d2", "#727d89", "#d3d9e0"
AREA, DEEP = "#c9dff0", "#72b0df"  # fills below text in INK

DARK = {
    INK: "#e4e9ee", MUTED: "#a3aeba", GRID: "#2b333c", AXIS: "#56616d", PAPER: "#14191f",
    BLUE: "#4aa8e8", RED: "#ff8b52", GREEN: "#2ec79b", PINK: "#e08fc6",
    AMBER: "#ecb93f", SKY: "#9ad3fb", GREY: "#929ca8", FAINT: "#39434e",
    AREA: "#1d3d56", DEEP: "#2a6a9c",
}  # fmt: skip
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash")
LEAST = 0.001  # percent: smaller shares are drawn here, because a log axis has no zero
_LEAST_NAMED = 0.05  # a bar below this share of the plot's width has no room for its name


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: `log` has ticks at round values, `measured` is logarithmic with ticks at the values themselves."""

    title: str
    kind: Kind = COUNT
    scale: Literal["linear", "log", "measured", "date", "names"] = "linear"

    def said(self, value: Any) -> str:
        """A value beside the pointer; names and dates as they are."""
        if self.scale in ("date", "names") and not isinstance(value, float):
            return label(value)
        return f"{self.kind.write(value)} {self.kind.unit}".strip()

    def drawn(self, value: Any) -> Any:
        """Where a value is drawn. Five digits are more than a screen shows."""
        if not isinstance(value, float | int) or isinstance(value, bool) or self.scale in ("date", "names"):
            return label(value) if self.scale == "names" else value
        size = 100 * value if self.kind is SHARE else value
        if self.scale == "log" and self.kind is SHARE:
            size = max(size, LEAST)
        return float(f"{size:.5g}") if isinstance(size, float) else size

    def layout(self, drawn: Sequence[Any]) -> dict[str, Any]:
        """How the axis looks; `drawn`: all values on it."""
        known = [value for value in drawn if value is not None]
        look = {
            "title": {"text": self.title, "font": {"size": 13, "color": MUTED}, "standoff": 10},
            "gridcolor": GRID, "linecolor": AXIS, "showline": True, "zeroline": False, "automargin": True,
            "ticks": "outside", "ticklen": 4, "tickcolor": AXIS, "tickfont": {"color": MUTED, "size": 12},
        }  # fmt: skip
        if self.scale == "names":
            return look | {"type": "category"}
        if self.scale == "date" and isinstance(known[0], str):
            return look
        if self.scale in ("linear", "date"):
            whole = all(isinstance(value, int) for value in known)
            zero = {} if self.scale == "date" else {"rangemode": "tozero"}
            return (
                look | zero | {"tickformat": ",d" if whole else ",~r", "dtick": 1 if whole and max(known) < 9 else None}
            )
        known = [value for value in known if value > 0] or [1]
        high = max(known)
        low = min(known) if self.scale == "measured" else min(*known, high / 10)  # or small differences look large
        ticks = sorted(set(known)) if self.scale == "measured" else _round_ticks(low, high)
        return look | {
            "type": "log", "tickmode": "array", "tickvals": ticks,
            "ticktext": [f"{tick:g} %" if self.kind is SHARE else f"{tick:,g}" for tick in ticks],
            "range": [math.log10(low) - 0.06, math.log10(high) + 0.06],
        }  # fmt: skip


def _round_ticks(low: float, high: float) -> list[float]:
    decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    return decades if high / low > 100 else [step * decade for decade in decades for step in (1, 2, 5)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What belongs to one name of a plot.

    Attributes:
        x, y: of bars, `x` has the values and `y` is the names of all bars.
        dash: of its line; empty for marks without a line.
        symbol: of its marks; empty for a line without marks.
        color: or one for each bar.
        filled: the area below the line, too.
        upto: ends of whiskers on bars.
        said: of each point, in place of its value.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    color: str | Sequence[str] = BLUE
    dash: str = "solid"
    symbol: str = ""
    filled: bool = False
    upto: Sequence[float | None] | None = None
    said: Sequence[str] | None = None


def lines(series: Sequence[Series], *, x: Axis, y: Axis, steps: bool = False) -> go.Figure:
    """Lines or marks over two axes. `steps`: a value holds up to the next one."""
    traces = []
    for one in series:
        said = one.said or [
            f"{x.said(place)}: {label(one.name)} {y.said(value)}" for place, value in zip(one.x, one.y, strict=True)
        ]
        traces.append(
            go.Scatter(
                x=[x.drawn(value) for value in one.x],
                y=[y.drawn(value) for value in one.y],
                name=label(one.name),
                mode="+".join([*(["lines"] if one.dash else []), *(["markers"] if one.symbol else [])]),
                line={"color": one.color, "width": 2, "dash": one.dash or None, "shape": "hv" if steps else None},
                marker={"color": one.color, "symbol": one.symbol or None, "size": 7 if one.dash else 9},
                fill="tozeroy" if one.filled else "none",
                fillcolor=AREA,
                text=said,
                hovertemplate="%{text}<extra></extra>",
            )
        )
    return _figure(traces, x, y)


def bars(series: Sequence[Series], *, x: Axis, stacked: bool = False) -> go.Figure:
    """Bars to the right, one below the other; of one name beside each other, or stacked with their sums."""
    names = Axis("", scale="names")
    traces = [
        go.Bar(
            x=[x.drawn(value) for value in one.x],
            y=[label(name) for name in one.y],
            name=label(one.name),
            orientation="h",
            marker={"color": one.color},
            error_x=_whiskers(one, x) if one.upto else None,
            text=[x.said(value) for value in one.x],
            textposition="none" if stacked else "inside" if one.upto else "auto",
            insidetextanchor="start" if one.upto else "end",
            insidetextfont={"color": PAPER},
            cliponaxis=False,
            hovertemplate=f"%{{y}}: {label(one.name)} %{{text}}<extra></extra>",
            showlegend=len(series) > 1,
        )
        for one in series
    ]
    if stacked:
        sums = [sum(parts) for parts in zip(*(one.x for one in series), strict=True)]
        traces.append(
            go.Scatter(
                x=sums,
                y=[label(name) for name in series[0].y],
                mode="text",
                text=[f" {x.said(one)}" for one in sums],
                textposition="middle right",
                textfont={"size": 12, "color": INK},
                cliponaxis=False,
                hoverinfo="skip",
                showlegend=False,
            )
        )
    drawn = _figure(traces, x, names)
    drawn.update_layout(barmode="stack" if stacked else "group", bargap=0.35)
    drawn.update_yaxes(autorange="reversed", showgrid=False)
    if stacked:
        drawn.update_xaxes(range=[0, 1.22 * max(*sums, 0.001)])
    return drawn


def _whiskers(one: Series, x: Axis) -> dict[str, Any]:
    ends = zip(one.x, one.upto or (), strict=True)
    reach = [x.drawn((end or 0) - (value or 0)) for value, end in ends]
    return {"type": "data", "symmetric": False, "array": reach, "color": MUTED, "thickness": 1.5}


def heat_map(
    shares: Mapping[tuple[Any, Any], float | None],
    *,
    x: Axis,
    y: Axis,
    said: Mapping[tuple[Any, Any], str],
    beside: Sequence[float | None],
    scale: bool,
) -> go.Figure:
    """Shares by (x, y) as colours, with figures in the cells.

    said: what stands in a cell. beside: shares of all maps that are to have the same colours for the same shares.
    scale: the colours are explained beside the map.
    """
    across, down = (sorted({place[axis] for place in shares}) for axis in (0, 1))

    def log(share: float) -> float:
        return math.log10(max(100 * share, LEAST))

    known = [log(share) for share in (*beside, *shares.values()) if share is not None] or [log(0.0)]
    colours = {place: None if share is None else log(share) for place, share in shares.items()}
    decades = [0.001, 0.01, 0.1, 1, 10, 100]
    trace = go.Heatmap(
        x=[x.said(value) for value in across],
        y=[y.said(value) for value in down],
        z=[[colours.get((right, up)) for right in across] for up in down],
        text=[[said.get((right, up), "–") for right in across] for up in down],
        texttemplate="%{text}",
        textfont={"size": 11, "color": INK},
        colorscale=[[0, AREA], [1, DEEP]],
        zmin=min(known),
        zmax=max(known),
        showscale=scale,
        colorbar={
            "thickness": 10,
            "outlinewidth": 0,
            "tickvals": [math.log10(decade) for decade in decades],
            "ticktext": [f"{decade:g} %" for decade in decades],
            "tickfont": {"color": MUTED, "size": 11},
        },
        xgap=2,
        ygap=2,
        hovertemplate=f"%{{x}} {x.title}, %{{y}} {y.title}: %{{text}} %<extra></extra>",
    )
    drawn = _figure([trace], Axis(x.title, scale="names"), Axis(y.title, scale="names"))
    drawn.update_xaxes(showgrid=False)
    drawn.update_yaxes(showgrid=False)
    return drawn


def timeline(
    tasks: Sequence[Document], *, lanes: Sequence[str], classes: Mapping[str, str], until_ms: float
) -> go.Figure:
    """What every lane does. Plots that are to be compared have the same `until_ms`.

    tasks: with `what`, `lane`, `start_ms`, `ms` and the name of their `class`. classes: name -> colour, as in the
    legend.
    """
    traces = []
    for name, color in classes.items():
        own = [task for task in tasks if task["class"] == name]
        if not own:
            continue
        traces.append(
            go.Bar(
                x=[task["ms"] for task in own],
                base=[task["start_ms"] for task in own],
                y=[label(task["lane"]) for task in own],
                name=name,
                orientation="h",
                marker={"color": color, "line": {"color": PAPER, "width": 1}},
                text=[label(task["what"]) if task["ms"] > _LEAST_NAMED * until_ms else "" for task in own],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="inside",
                textfont={"color": INK if color == FAINT else PAPER, "size": 12},
                customdata=[
                    f"{label(task['what'])}: {milliseconds(task['ms'])} from {milliseconds(task['start_ms'])}"
                    for task in own
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    drawn = _figure(traces, Axis("time since the start of the step (ms)", MS), Axis("", scale="names"))
    drawn.update_layout(barmode="overlay", bargap=0.3, uniformtext={"minsize": 10, "mode": "hide"})
    drawn.update_xaxes(range=[0, 1.01 * until_ms])
    order = [label(lane) for lane in reversed(lanes)]
    drawn.update_yaxes(
        showgrid=False, categoryorder="array", categoryarray=order, range=[-0.5, len(order) - 0.5]
    )  # fmt: skip
    return drawn


def _figure(traces: list[Any], x: Axis, y: Axis) -> go.Figure:
    """The traces alone over two named axes; the page has a legend of its own, which takes no room from the axes."""

    def values(axis: str) -> list[Any]:
        return [value for trace in traces for value in getattr(trace, axis) or ()]

    return go.Figure(
        data=traces,
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": INK, "size": 13},
            "margin": {"l": 64, "r": 16, "t": 8, "b": 48},
            "hovermode": "closest",
            "hoverlabel": {
                "bgcolor": PAPER, "bordercolor": AXIS, "font": {"color": INK, "size": 13}, "align": "left",
            },
            "showlegend": False,
            "xaxis": x.layout(values("x")),
            "yaxis": y.layout(values("y")),
        },
    )  # fmt: skip
