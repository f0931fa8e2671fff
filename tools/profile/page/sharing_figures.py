"""Plots of what shared histories save. Pure: points of a document in, plotly figures out."""

from collections.abc import Sequence

import plotly.graph_objects as go

from freescale_tools.report import numbers, theme
from freescale_tools.report.blocks import Document

_COLORS = {"file": theme.BLUE, "shuffled": theme.RED, "time": theme.GREEN}


def held_share(points: Sequence[Document]) -> go.Figure:
    """Share of the events that batches hold if samples share them, by batch size; a line for every order."""
    traces = []
    for place, order in enumerate(dict.fromkeys(point["order"] for point in points)):
        own = sorted((point for point in points if point["order"] == order), key=lambda point: point["batch_size"])
        traces.append(
            go.Scatter(
                x=[point["batch_size"] for point in own],
                y=[100 * point["ratio"] for point in own],
                name=f"{order} order",
                mode="lines+markers",
                line={"color": _COLORS.get(order, theme.INK), "width": 2},
                marker={"symbol": theme.SYMBOLS[place % len(theme.SYMBOLS)], "size": 7},
                text=[numbers.percent(point["ratio"]) for point in own],
                hovertemplate=f"{order} order, %{{x:,}} samples: %{{text}}<extra></extra>",
            )
        )
    drawn = theme.figure(traces, x=theme.AXIS_NAMES["batch_size"], y="events held, of those without sharing (%)")
    drawn.update_xaxes(**theme.named_ticks(sorted({point["batch_size"] for point in points})))
    drawn.update_yaxes(range=[0, 103])
    return drawn
