"""Plots of history lengths. Pure: parts of a document in, plotly figures out.

Every figure is small for data of any size: histograms are put into logarithmic bins, and long lists are
thinned.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from freescale_tools.report import numbers, theme
from freescale_tools.report.blocks import Document

BINS = 60
MOST_POINTS = 400


def log_bins(lengths: np.ndarray, counts: np.ndarray, *, bins: int = BINS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges int64[E + 1], rows int64[E] and events int64[E] of about `bins` equally wide bins of log(length).

    Empty histories are left out, because a log axis cannot show them.
    """
    lengths, counts = np.asarray(lengths, np.int64), np.asarray(counts, np.int64)
    counts, lengths = counts[lengths > 0], lengths[lengths > 0]
    edges = np.unique(np.rint(np.geomspace(1, lengths.max(initial=1) + 1, bins + 1)).astype(np.int64))
    place = np.searchsorted(edges, lengths, side="right") - 1
    rows, events = np.zeros(len(edges) - 1, np.int64), np.zeros(len(edges) - 1, np.int64)
    np.add.at(rows, place, counts)
    np.add.at(events, place, counts * lengths)
    return edges, rows, events


def histogram(sequence: Document, *, max_length: int | None) -> go.Figure:
    """The distribution of rows and of events in % per doubling of the length, so that areas are shares."""
    edges, rows, events = log_bins(sequence["histogram"]["lengths"], sequence["histogram"]["counts"])
    doublings = np.diff(np.log2(edges))
    traces = []
    for name, values, color, fill in (
        ("rows", rows, theme.BLUE, "tozeroy"),
        ("events", events, theme.AMBER, "none"),
    ):
        height = 100 * values / max(values.sum(), 1) / doublings
        hover = [
            f"{low:,} to {high - 1:,} events<br>{value:,} {name}"
            for low, high, value in zip(edges, edges[1:], values, strict=False)
        ]
        traces.append(
            go.Scatter(
                x=edges.tolist(),
                y=[*_rounded(height), 0.0],
                name=name,
                mode="lines",
                line={"color": color, "width": 2, "shape": "hv", "dash": "solid" if name == "rows" else "dot"},
                fill=fill,
                fillcolor=theme.AREA,
                text=[*hover, ""],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    if max_length:
        traces.append(_cut(max_length, max(max(trace.y) for trace in traces)))
    drawn = theme.figure(traces, x="length of a row (events)", y="share per doubling of length (%)")
    _length_axis(drawn, int(edges[-1]))
    drawn.update_yaxes(rangemode="tozero")
    return drawn


def distribution(sequence: Document, *, max_length: int | None) -> go.Figure:
    """Share of the rows, and of the events, in histories up to a length."""
    lengths = np.asarray(sequence["histogram"]["lengths"], np.int64)
    counts = np.asarray(sequence["histogram"]["counts"], np.int64)
    edges, rows, events = log_bins(lengths, counts, bins=4 * BINS)
    empty = int(counts[lengths == 0].sum())
    upto = (edges[1:] - 1).tolist()
    traces = []
    for name, values, before, color, dash in (
        ("rows", rows, empty, theme.BLUE, "solid"),
        ("events", events, 0, theme.AMBER, "dot"),
    ):
        share = 100 * (before + values.cumsum()) / max(before + values.sum(), 1)
        traces.append(
            go.Scatter(
                x=upto,
                y=_rounded(share, 4),
                name=name,
                mode="lines",
                line={"color": color, "width": 2, "dash": dash, "shape": "hv"},
                hovertemplate="up to %{x:,} events: %{y:.2f} % of the " + name + "<extra></extra>",
            )
        )
    if max_length:
        traces.append(_cut(max_length, 100))
    drawn = theme.figure(traces, x="length of a row (events)", y="share up to this length (%)")
    _length_axis(drawn, int(edges[-1]))
    drawn.update_yaxes(range=[0, 102])
    return drawn


def drift(steps: Sequence[Document]) -> go.Figure:
    """Mean, median and P95 of the lengths over time."""
    shown = thinned(steps)
    times, unit = numbers.dated([step["from"] for step in shown])
    traces = [
        go.Scatter(
            x=times,
            y=[step[key] or None for step in shown],
            name=name,
            mode="lines+markers",
            line={"color": color, "width": 2, "dash": dash},
            marker={"size": 6, "symbol": symbol},
            text=[f"{step['rows']:,} rows" for step in shown],
            hovertemplate=f"%{{x}}: {name} %{{y:,.4~g}} events<br>%{{text}}<extra></extra>",
        )
        for name, key, color, dash, symbol in (
            ("P95", "p95", theme.AMBER, "dash", "square"),
            ("mean", "mean", theme.BLUE, "solid", "circle"),
            ("median", "p50", theme.GREEN, "dot", "diamond"),
        )
    ]
    drawn = theme.figure(traces, x=f"time of the rows ({unit})", y="length of a row (events)")
    if isinstance(times[0], int):
        drawn.update_xaxes(tickformat=",d")
    drawn.update_yaxes(type="log", tickformat=",~r", dtick="D2", nticks=6)
    return drawn


def per_file(files: Sequence[Document]) -> go.Figure:
    """Mean length of every file, in the order of the paths."""
    numbered = thinned(list(enumerate(files, start=1)))
    trace = go.Scatter(
        x=[place for place, _ in numbered],
        y=[file["mean"] for _, file in numbered],
        mode="markers",
        marker={"color": theme.BLUE, "size": 7 if len(numbered) < 100 else 4},
        text=[f"{numbers.label(file['file'])}<br>{file['rows']:,} rows" for _, file in numbered],
        hovertemplate="%{text}, mean %{y:,.4~g} events<extra></extra>",
        showlegend=False,
    )
    drawn = theme.figure([trace], x="file, in the order of the paths", y="mean length (events)")
    drawn.update_xaxes(tickformat=",d", dtick=1 if len(files) < 10 else None)
    drawn.update_yaxes(rangemode="tozero", tickformat=",~r")
    return drawn


def thinned(values: Sequence[Any]) -> Sequence[Any]:
    """At most MOST_POINTS of them, evenly spread, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return values
    return [values[place] for place in np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)]


def _length_axis(drawn, end):
    ticks = [tick for tick in (1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000) if tick <= max(end, 10)]
    drawn.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{tick:,}" for tick in ticks],
        range=[0, np.log10(max(end, 2))],
    )


def _cut(max_length, top):
    """A vertical line where the recommendation cuts."""
    return go.Scatter(
        x=[max_length, max_length],
        y=[0, top],
        name=f"cut at {max_length:,}",
        mode="lines",
        line={"color": theme.RED, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def _rounded(values, digits=5):
    return [float(f"{value:.{digits}g}") for value in values]
