"""Plots of simulated steps. Pure: parts of a document in, plotly figures out."""

from collections.abc import Sequence

import plotly.graph_objects as go

from freescale_tools.report import numbers, theme
from freescale_tools.report.blocks import Document

BUBBLES = (
    ("straggler_ms", "straggler", theme.RED),
    ("exposed_ms", "exposed communication", theme.BLUE),
    ("contention_ms", "contention", theme.AMBER),
)
LANES = ("compute", "network", "memory", "host", "data")
_OTHER = ("other", theme.SKY)
# A bar belongs to the first class with a word that its name contains. "exclusive" comes before "rows", which
# is in several names.
_CLASSES = {
    ("forward", "backward", "optimizer"): ("compute", theme.GREEN),
    ("own work",): ("balancing and fscomm themselves", theme.SKY),
    ("wait",): ("waiting for the slowest rank", theme.FAINT),
    ("exclusive",): ("rows and gradients in the background", theme.BLUE),
    ("collision", "rows", "gradients", "lookup", "apply"): ("rows and gradients that compute waits for", theme.RED),
    ("all-reduce",): ("dense all-reduce", theme.PINK),
    ("id",): ("IDs", theme.AMBER),
    ("read", "data"): ("loader", theme.GREY),
    ("",): _OTHER,
}
_LEAST_NAMED = 0.05  # a bar below this share of the plot's width has no room for its name


def gain(gains: Sequence[Document], carried: int | None) -> go.Figure:
    """QPS gain of all remedies over TorchRec's pipeline, by ranks.

    Dotted where the rows are too few for the ranks.
    """
    ordered = sorted(gains, key=lambda point: point["ranks"])
    places = [point["ranks"] for point in ordered]
    beyond = [point for point in ordered if point["ranks"] >= (carried or 0)]
    traces = [
        go.Scatter(
            x=[point["ranks"] for point in own],
            y=[100 * point["qps_gain"] for point in own],
            name=name,
            mode="lines+markers",
            line={"color": color, "width": 2.5, "dash": dash},
            marker={"size": 8},
            text=[numbers.signed(point["qps_gain"]) for point in own],
            hovertemplate="%{x:,} ranks: %{text}<extra></extra>",
        )
        for name, own, color, dash in (
            ("more ranks than the rows are enough for", beyond, theme.GREY, "dot"),
            ("enough rows", [point for point in ordered if point["ranks"] <= (carried or 0)], theme.BLUE, "solid"),
        )
        if own and own != ordered[-1:]
    ]
    drawn = theme.figure(traces, x="ranks", y="QPS gain over TrainPipelineSparseDist (%)")
    drawn.update_xaxes(**theme.named_ticks(places))
    drawn.update_yaxes(rangemode="tozero")
    return drawn


def steps(points: Sequence[Document], ways: Sequence[str]) -> go.Figure:
    """Time of a step by ranks, a line per way of training."""
    traces = []
    for rank, way in enumerate(ways):
        own = sorted((point for point in points if point["way"] == way), key=lambda point: point["ranks"])
        traces.append(
            go.Scatter(
                x=[point["ranks"] for point in own],
                y=[point["step_ms"] for point in own],
                name=way,
                mode="lines+markers",
                line={"color": _way_color(way, ways), "width": 2, "dash": theme.DASHES[rank % len(theme.DASHES)]},
                marker={"size": 7, "symbol": theme.SYMBOLS[rank % len(theme.SYMBOLS)]},
                hovertemplate=f"{way}, %{{x:,}} ranks: %{{y:,.4~g}} ms<extra></extra>",
            )
        )
    drawn = theme.figure(traces, x="ranks", y="time of a step (ms)")
    drawn.update_xaxes(**theme.named_ticks(sorted({point["ranks"] for point in points})))
    drawn.update_yaxes(rangemode="tozero", tickformat=",~r")
    return drawn


def bubbles(points: Sequence[Document]) -> go.Figure:
    """Idle milliseconds of a step by cause, a bar per way; `points` are those of one number of ranks."""
    traces = [
        go.Bar(
            x=[point["bubbles"][key] for point in points],
            y=[point["way"] for point in points],
            name=name,
            orientation="h",
            marker={"color": color},
            text=[numbers.milliseconds(point["bubbles"][key]) for point in points],
            textposition="none",
            hovertemplate=f"%{{y}}: {name} %{{text}}<extra></extra>",
        )
        for key, name, color in BUBBLES
    ]
    totals = [sum(point["bubbles"][key] for key, _, _ in BUBBLES) for point in points]
    traces.append(
        go.Scatter(
            x=totals,
            y=[point["way"] for point in points],
            mode="text",
            text=[f" {numbers.milliseconds(total)}" for total in totals],
            textposition="middle right",
            textfont={"size": 12, "color": theme.INK},
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    drawn = theme.figure(traces, x="idle time of a step (ms)", y="")
    drawn.update_layout(barmode="stack", bargap=0.35)
    drawn.update_xaxes(range=[0, 1.22 * max(max(totals, default=0), 0.001)], tickformat=",~r")
    drawn.update_yaxes(autorange="reversed", showgrid=False)
    return drawn


def timeline(point: Document, *, until_ms: float) -> go.Figure:
    """What every lane does in one step. Plots that are to be compared have the same `until_ms`."""
    bars = point["timeline"]
    lanes = sorted({bar["lane"] for bar in bars}, key=lambda lane: LANES.index(lane) if lane in LANES else len(LANES))
    traces = []
    for name, color in _CLASSES.values():
        own = [bar for bar in bars if work_class(bar["what"]) == (name, color)]
        if own:
            traces.append(_bars(own, name, color, until_ms))
    drawn = theme.figure(traces, x="time since the start of the step (ms)", y="")
    drawn.update_layout(barmode="overlay", bargap=0.3, uniformtext={"minsize": 10, "mode": "hide"})
    drawn.update_xaxes(range=[0, 1.01 * until_ms], tickformat=",~r")
    drawn.update_yaxes(
        showgrid=False,
        type="category",
        categoryorder="array",
        categoryarray=[numbers.label(lane) for lane in reversed(lanes)],
        range=[-0.5, len(lanes) - 0.5],
    )
    return drawn


def work_class(what: str) -> tuple[str, str]:
    """The name and colour of the class of work that a bar belongs to."""
    return next((found for words, found in _CLASSES.items() if any(word in what for word in words)), _OTHER)


def _bars(bars: Sequence[Document], name: str, color: str, until_ms: float) -> go.Bar:
    return go.Bar(
        x=[bar["ms"] for bar in bars],
        base=[bar["start_ms"] for bar in bars],
        y=[numbers.label(bar["lane"]) for bar in bars],
        name=name,
        orientation="h",
        marker={"color": color, "line": {"color": theme.PAPER, "width": 1}},
        text=[numbers.label(bar["what"]) if bar["ms"] > _LEAST_NAMED * until_ms else "" for bar in bars],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="inside",
        textfont={"color": theme.INK if color == theme.FAINT else theme.PAPER, "size": 12},
        customdata=[
            [numbers.label(bar["what"]), numbers.milliseconds(bar["ms"]), numbers.milliseconds(bar["start_ms"])]
            for bar in bars
        ],
        hovertemplate="%{customdata[0]}: %{customdata[1]} from %{customdata[2]}<extra></extra>",
    )


def _way_color(way, ways):
    if way == "plain":
        return theme.RED
    if way == "all":
        return theme.BLUE
    others = [other for other in ways if other not in ("plain", "all")]
    palette = (theme.GREY, theme.GREEN, theme.AMBER, theme.PINK, theme.SKY)
    return palette[others.index(way) % len(palette)]
