"""Plots of stragglers. Pure: parts of a document in, plotly figures out."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from freescale_tools.report import numbers, theme
from freescale_tools.report.blocks import Document

LEAST_PERCENT = 0.001  # smaller shares are drawn here, because a log axis has no zero

METHOD_NAMES = {
    "none": "no balancing",
    "fbs": "FBS",
    "fbs+swap": "FBS + swap",
    "vbs": "VBS",
    "vbs-contiguous": "VBS contiguous",
    "repair": "repair",
    "hierarchical": "hierarchical",
}
_METHOD_COLORS = {
    "none": theme.RED,
    "fbs": theme.BLUE,
    "fbs+swap": theme.SKY,
    "vbs": theme.GREEN,
    "vbs-contiguous": theme.PINK,
    "repair": theme.AMBER,
    "hierarchical": theme.GREY,
}


def method_name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def stragglers(grid: Document, axis: str, *, sparsity: bool) -> go.Figure:
    """Straggler share of every method along one axis, and the bound that no packing can beat.

    Both axes are log.
    """
    points = sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
    places = [point[axis] for point in points]
    traces = [
        _percent_line(
            places,
            [point["straggler"].get(method) for point in points],
            name=method_name(method),
            color=_METHOD_COLORS.get(method, theme.INK),
            symbol=theme.SYMBOLS[rank % len(theme.SYMBOLS)],
            dash="solid",
        )
        for rank, method in enumerate(grid["methods"])
    ]
    bound = [point["lower_bound"] for point in points]
    traces.append(_percent_line(places, bound, name="lower bound", color=theme.INK, symbol=None, dash="dot"))
    if sparsity:
        padding = [point["sparsity"] for point in points]
        traces.append(
            _percent_line(places, padding, name="padding, were it padded", color=theme.MUTED, symbol=None, dash="dash")
        )
    drawn = theme.figure(traces, x=theme.AXIS_NAMES[axis], y="straggler share of the step (%)")
    drawn.update_xaxes(**theme.named_ticks(places))
    _percent_axis(drawn, "yaxis", traces, of="y")
    return drawn


def costs(grid: Document, points: Sequence[Document], *, key: str) -> go.Figure:
    """A line per cost model, with a mark per method.

    `key`: `cost` for true models, `planned_by` for assumed ones.
    """
    names = [numbers.label(numbers.cost(point[key])) for point in points]
    traces = [
        go.Scatter(
            x=[_percent(point["straggler"].get(method)) for point in points],
            y=names,
            name=method_name(method),
            mode="markers",
            marker={
                "color": _METHOD_COLORS.get(method, theme.INK),
                "symbol": theme.SYMBOLS[rank % len(theme.SYMBOLS)],
                "size": 10,
            },
            text=[share_text(point, method) for point in points],
            hovertemplate=f"{method_name(method)}, %{{y}}: %{{text}}<extra></extra>",
        )
        for rank, method in enumerate(grid["methods"])
    ]
    drawn = theme.figure(traces, x="straggler share of the step (%)", y="")
    drawn.update_yaxes(autorange="reversed", showgrid=True, type="category")
    _percent_axis(drawn, "xaxis", traces, of="x")
    return drawn


def two_way(points: Sequence[Document], method: str, *, beside: Sequence[str]) -> go.Figure:
    """Straggler share of one method by ranks and longest history, as a heat map with figures in its cells.

    The maps of all methods in `beside` use the same colours for the same shares; the last has the colour bar.
    """
    ranks = sorted({point["ranks"] for point in points})
    lengths = sorted({point["max_length"] for point in points})
    share = {(point["ranks"], point["max_length"]): point["straggler"].get(method) for point in points}
    texts = {
        (point["ranks"], point["max_length"]): share_text(point, method).removesuffix("\u00a0%") for point in points
    }
    cells = [[share.get((rank, length)) for length in lengths] for rank in ranks]
    percents = [[_percent(cell) for cell in row] for row in cells]
    known = [_percent(point["straggler"].get(one)) for point in points for one in (method, *beside)]
    colours = np.log10([cell for cell in known if cell is not None] or [LEAST_PERCENT])
    trace = go.Heatmap(
        x=[f"{length:,}" for length in lengths],
        y=[f"{rank:,}" for rank in ranks],
        z=[[None if cell is None else float(np.log10(cell)) for cell in row] for row in percents],
        text=[[texts.get((rank, length), "–") for length in lengths] for rank in ranks],
        texttemplate="%{text}",
        textfont={"size": 11, "color": theme.INK},
        colorscale=[[0, theme.AREA], [1, theme.DEEP]],
        zmin=float(colours.min()),
        zmax=float(colours.max()),
        showscale=method == beside[-1],
        colorbar=_colour_bar(),
        xgap=2,
        ygap=2,
        hovertemplate="%{y} ranks, %{x} events: %{text} %<extra></extra>",
    )
    drawn = theme.figure([trace], x=theme.AXIS_NAMES["max_length"], y="ranks")
    drawn.update_xaxes(type="category", showgrid=False)
    drawn.update_yaxes(type="category", showgrid=False)
    return drawn


def share_text(point: Document, method: str) -> str:
    """The straggler share of a method, with as many digits as the drawn steps allow."""
    return numbers.percent_within(point["straggler"].get(method), point.get("straggler_error", {}).get(method))


def _colour_bar():
    decades = [0.001, 0.01, 0.1, 1, 10, 100]
    return {
        "thickness": 10,
        "outlinewidth": 0,
        "tickvals": np.log10(decades).tolist(),
        "ticktext": [f"{decade:g} %" for decade in decades],
        "tickfont": {"color": theme.MUTED, "size": 11},
    }


def _percent_line(places, shares, *, name, color, symbol, dash):
    return go.Scatter(
        x=places,
        y=[_percent(share) for share in shares],
        name=name,
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "width": 2, "dash": dash},
        marker={"symbol": symbol, "size": 7},
        text=[numbers.percent(share) for share in shares],
        hovertemplate=f"%{{x:,}}: {name} %{{text}}<extra></extra>",
    )


def _percent_axis(drawn, axis, traces, *, of):
    """Make a log axis of at least one decade, so that small differences do not look large."""
    values = [value for trace in traces for value in getattr(trace, of) or () if value is not None]
    high = max(values, default=100)
    low = min(min(values, default=LEAST_PERCENT), high / 10)
    decades = [0.001, 0.01, 0.1, 1, 10, 100]
    ticks = decades if high / low > 100 else sorted(step * decade for decade in decades for step in (1, 2, 5))
    drawn.layout[axis].update(
        type="log",
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{tick:g} %" for tick in ticks],
        range=[np.log10(low) - 0.06, np.log10(high) + 0.06],
    )


def _percent(share):
    return None if share is None else max(100 * share, LEAST_PERCENT)
