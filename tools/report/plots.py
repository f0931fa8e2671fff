"""One function for each kind of plot: columns of a table, or tasks, in, a plotly figure out.

What is drawn is what the table beside says: its columns tell how values are written beside the pointer, and by their
`look` how they are drawn. Shares of 0 to 1 are drawn as percents.

Figures carry the light colours. If the reader's system is dark, the page's script replaces each colour by its dark
one. Colour-blind readers can tell the hues apart (after Okabe and Ito); lines also differ by marker and dash.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from freescale_tools.report.blocks import Column, Document, Look
from freescale_tools.report.numbers import label, milliseconds

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
    scale: Literal["linear", "log", "measured", "date", "names"] = "linear"

    def places(self, column: Column, rows: Sequence[Any]) -> list[Any]:
        """Where the values of a column are drawn. Five digits are more than a screen shows."""
        values = [column.value(row) for row in rows]
        if self.scale == "names":
            return [label(value) for value in values]
        if column.kind.share:
            values = [None if value is None else 100 * value for value in values]
        if self.scale == "log":
            least = LEAST if column.kind.share else 0
            values = [None if value is None else max(value, least) or None for value in values]
        return [float(f"{value:.5g}") if isinstance(value, float) else value for value in values]

    def layout(self, drawn: Sequence[Any]) -> dict[str, Any]:
        """How the axis looks; `drawn`: all places on it."""
        known = [value for value in drawn if value is not None] or [1]
        look = {
            "title": {"text": self.title, "font": {"size": 13, "color": MUTED}, "standoff": 10},
            "gridcolor": GRID, "linecolor": AXIS, "showline": True, "zeroline": False, "automargin": True,
            "ticks": "outside", "ticklen": 4, "tickcolor": AXIS, "tickfont": {"color": MUTED, "size": 12},
        }  # fmt: skip
        if self.scale == "names":
            return look | {"type": "category"}
        if isinstance(known[0], str):
            return look
        if self.scale in ("linear", "date"):
            whole = all(isinstance(value, int) for value in known)
            look["rangemode"] = "normal" if self.scale == "date" else "tozero"
            return look | {"tickformat": ",d" if whole else ",~r", "dtick": 1 if whole and max(known) < 9 else None}
        high = max(known)
        low = min(known) if self.scale == "measured" else min(*known, high / 10)  # or small differences look large
        ticks: list[float] = sorted(set(known))
        if self.scale == "log":
            decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
            ticks = decades if high / low > 100 else [step * decade for decade in decades for step in (1, 2, 5)]
        return look | {
            "type": "log", "tickmode": "array", "tickvals": ticks,
            "ticktext": [f"{tick:,.15g}" for tick in ticks],
            "range": [math.log10(low) - 0.06, math.log10(high) + 0.06],
        }  # fmt: skip


def lines(
    rows: Sequence[Any],
    columns: Sequence[Column],
    *,
    x: Axis,
    y: Axis,
    turned: bool = False,
    steps: bool = False,
    cut: int | None = None,
) -> go.Figure:
    """A line, or marks, for each of `columns` that has a look, over the values of the first one.

    Lines that lie on each other are one, with the names of all. turned: the values of the first go down, not to the
    right. steps: a value holds up to the next one. cut: where histories are cut, a line upright.
    """
    by = columns[0]
    along, over = (y, x) if turned else (x, y)
    traces = []
    shown = [(column, column.look, over.places(column, rows)) for column in columns if column.look]
    for names, (column, look, values) in _apart(shown, over):
        places = along.places(by, rows)
        traces.append(
            go.Scatter(
                x=values if turned else places,
                y=places if turned else values,
                name=" = ".join(label(name) for name in names),
                mode="+".join([*(["lines"] if look.dash else []), *(["markers"] if look.symbol else [])]),
                line={"color": look.color, "width": 2, "dash": look.dash or None, "shape": "hv" if steps else None},
                marker={"color": look.color, "symbol": look.symbol or None, "size": 7 if look.dash else 9},
                fill="tozeroy" if look.filled else "none",
                fillcolor=AREA,
                text=[_said(row, by, column) for row in rows],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    if cut:
        top = max(value for trace in traces for value in trace.y if value is not None)
        traces.append(
            go.Scatter(
                x=[cut, cut], y=[0, top], name=f"cut at {cut:,}", mode="lines", hoverinfo="skip",
                line={"color": RED, "width": 1.5, "dash": "dash"},
            )
        )  # fmt: skip
    drawn = _figure(traces, x, y)
    if turned:
        drawn.update_yaxes(autorange="reversed")
    return drawn


_Drawn = tuple[Column, Look, list[Any]]


def _apart(shown: Sequence[_Drawn], axis: Axis) -> list[tuple[list[str], _Drawn]]:
    """Lines that a reader can tell apart, each with the names of all that lie on it. Marks stay as they are."""
    found: list[tuple[list[str], _Drawn]] = []
    for one in shown:
        column, look, values = one
        same = (names for names, (_, other, there) in found if look.dash and other.dash and _alike(values, there, axis))
        if (names := next(same, None)) is not None:
            names.append(column.name)
        else:
            found.append(([column.name], one))
    return found


def _alike(values: Sequence[Any], others: Sequence[Any], axis: Axis) -> bool:
    """Whether two lines are less than a hundredth of a decade apart, or of their largest value."""
    both = list(zip(values, others, strict=True))
    if any(not isinstance(one, int | float) for pair in both for one in pair):
        return values == others
    if axis.scale in ("log", "measured"):
        return all(one == other or (min(one, other) > 0 and abs(math.log10(one / other)) < 0.01) for one, other in both)
    most = max((abs(one) for pair in both for one in pair), default=0.0)
    return all(abs(one - other) <= 0.01 * most for one, other in both)


def bars(rows: Sequence[Any], by: Column, columns: Sequence[Column], *, x: Axis, stacked: bool = False) -> go.Figure:
    """Bars to the right for each of `columns` that has a look, named by `by`; stacked ones with their sums."""
    shown = [column for column in columns if column.look]
    names = Axis("", "names")
    traces = [
        go.Bar(
            x=x.places(column, rows),
            y=names.places(by, rows),
            name=label(column.name),
            orientation="h",
            marker={"color": column.look and column.look.color},
            text=[_with_unit(row, column) for row in rows],
            textposition="none" if stacked else "auto",
            insidetextfont={"color": PAPER},
            cliponaxis=False,
            customdata=[_said(row, by, column) for row in rows],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=len(shown) > 1,
        )
        for column in shown
    ]
    if stacked:
        total = Column("in all", shown[0].kind, lambda row: sum(column.value(row) for column in shown))
        traces.append(
            go.Scatter(
                x=x.places(total, rows), y=names.places(by, rows), mode="text",
                text=[f" {_with_unit(row, total)}" for row in rows], textposition="middle right",
                textfont={"size": 12, "color": INK}, cliponaxis=False, hoverinfo="skip", showlegend=False,
            )
        )  # fmt: skip
    drawn = _figure(traces, x, names)
    drawn.update_layout(barmode="stack" if stacked else "group", bargap=0.35)
    drawn.update_yaxes(autorange="reversed", showgrid=False)
    if stacked:
        drawn.update_xaxes(range=[0, 1.22 * max(*traces[-1].x, 0.001)])
    return drawn


def _said(row: Any, by: Column, column: Column) -> str:
    """What stands beside the pointer."""
    return f"{label(by.cell(row))}: {label(column.name)} {_with_unit(row, column)}"


def _with_unit(row: Any, column: Column) -> str:
    return f"{column.cell(row)} {'%' if column.kind.share else column.kind.unit}".strip()


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
    drawn = _figure(traces, Axis("time since the start of the step (ms)"), Axis("", "names"))
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
