"""Plots of collisions. Pure: parts of a document in, plotly figures out."""

from collections.abc import Sequence

import plotly.graph_objects as go

from freescale_tools.report import numbers, theme
from freescale_tools.report.blocks import Document

BYTE_CLASSES = {
    "ids": ("IDs", theme.GREY),
    "collision_rows": ("collision rows", theme.RED),
    "collision_gradients": ("collision gradients", theme.AMBER),
    "exclusive_rows": ("exclusive rows", theme.BLUE),
    "exclusive_gradients": ("exclusive gradients", theme.SKY),
}


def collisions(points: Sequence[Document], axis: str) -> go.Figure:
    """Mean and P99 of the collision rate along one axis, by occurrence and by row."""
    points = sorted(points, key=lambda point: point[axis])
    places = [point[axis] for point in points]
    traces = []
    for key, name, color, symbol in (
        ("by_occurrence", "by occurrence", theme.BLUE, "circle"),
        ("by_row", "by row", theme.GREEN, "square"),
    ):
        for figure, dash in (("mean", "solid"), ("p99", "dot")):
            title = f"{name}, {'mean' if figure == 'mean' else 'P99'}"
            traces.append(
                go.Scatter(
                    x=places,
                    y=[_hundredfold(point[key][figure]) for point in points],
                    name=title,
                    mode="lines+markers",
                    line={"color": color, "width": 2, "dash": dash},
                    marker={"symbol": symbol if figure == "mean" else f"{symbol}-open", "size": 7},
                    hovertemplate=f"%{{x:,}}: {title} %{{y:.2f}} %<extra></extra>",
                )
            )
    drawn = theme.figure(traces, x=theme.AXIS_NAMES[axis], y="rows also in the batch before (%)")
    drawn.update_xaxes(**theme.named_ticks(places))
    drawn.update_yaxes(rangemode="tozero")
    return drawn


def orders(points: Sequence[Document]) -> go.Figure:
    """Collision rate by the order in which samples are drawn; a whisker up to P99."""
    traces = [
        go.Bar(
            x=[numbers.label(point["order"]) for point in points],
            y=[_hundredfold(point[key]["mean"]) for point in points],
            name=name,
            marker={"color": color},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_hundredfold((point[key]["p99"] or 0) - (point[key]["mean"] or 0)) for point in points],
                "color": theme.MUTED,
                "thickness": 1.5,
            },
            text=[numbers.percent(point[key]["mean"]) for point in points],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            textfont={"color": theme.PAPER},
            hovertemplate=f"%{{x}}: {name} %{{text}}<extra></extra>",
        )
        for key, name, color in (
            ("by_occurrence", "by occurrence", theme.BLUE),
            ("by_row", "by row", theme.GREEN),
        )
    ]
    drawn = theme.figure(traces, x="order of the samples", y="rows also in the batch before (%)")
    drawn.update_layout(barmode="group", bargap=0.35, uniformtext={"minsize": 10, "mode": "hide"})
    drawn.update_yaxes(rangemode="tozero")
    return drawn


def byte_classes(bytes: Document) -> go.Figure:
    """Bytes that a rank sends a step, by class."""
    shown = [(name, color, bytes[key]) for key, (name, color) in BYTE_CLASSES.items() if bytes.get(key) is not None]
    trace = go.Bar(
        x=[value / 1e6 for _, _, value in shown],
        y=[name for name, _, _ in shown],
        orientation="h",
        marker={"color": [color for _, color, _ in shown]},
        text=[numbers.size(value) for _, _, value in shown],
        textposition="auto",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
        showlegend=False,
    )
    drawn = theme.figure([trace], x="sent by a rank in a step (MB)", y="")
    drawn.update_xaxes(rangemode="tozero", tickformat=",~r")
    drawn.update_yaxes(autorange="reversed", showgrid=False)
    return drawn


def _hundredfold(share):
    return None if share is None else 100 * share
