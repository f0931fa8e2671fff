"""Colours and the common look of the plots.

Figures carry the light colours. If the reader's system is dark, the page's script replaces each colour by its
dark one. Colour-blind readers can tell the hues apart (after Okabe and Ito); lines also differ by marker and
dash.
"""

import plotly.graph_objects as go

INK, MUTED, GRID, AXIS, PAPER = "#1c232b", "#55606d", "#e4e8ed", "#b4bdc7", "#ffffff"
BLUE, RED, GREEN, PINK = "#0068a8", "#c44e0a", "#00805d", "#a4508b"
AMBER, SKY, GREY, FAINT = "#a87600", "#3f93d2", "#727d89", "#d3d9e0"
AREA, DEEP = "#c9dff0", "#72b0df"  # fills below text in INK

DARK = {
    INK: "#e4e9ee",
    MUTED: "#a3aeba",
    GRID: "#2b333c",
    AXIS: "#56616d",
    PAPER: "#14191f",
    BLUE: "#4aa8e8",
    RED: "#ff8b52",
    GREEN: "#2ec79b",
    PINK: "#e08fc6",
    AMBER: "#ecb93f",
    SKY: "#9ad3fb",
    GREY: "#929ca8",
    AREA: "#1d3d56",
    DEEP: "#2a6a9c",
    FAINT: "#39434e",
}

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash")

AXIS_NAMES = {
    "max_length": "longest history kept (events)",
    "ranks": "ranks",
    "batch_size": "samples of a rank and step",
}

MARGIN = {"l": 64, "r": 16, "t": 8, "b": 48}


def figure(traces: list, *, x: str, y: str) -> go.Figure:
    """A figure with two named axes that shows only the traces."""
    return go.Figure(
        data=traces,
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": INK, "size": 13},
            "margin": MARGIN,
            "hovermode": "closest",
            "hoverlabel": {
                "bgcolor": PAPER,
                "bordercolor": AXIS,
                "font": {"color": INK, "size": 13},
                "align": "left",
            },
            "showlegend": False,  # the page has its own, which takes no room from the axes
            "xaxis": axis(x),
            "yaxis": axis(y),
        },
    )


def axis(title: str) -> dict:
    """The layout of an axis: a thin line with a light grid."""
    return {
        "title": {"text": title, "font": {"size": 13, "color": MUTED}, "standoff": 10},
        "gridcolor": GRID,
        "linecolor": AXIS,
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": AXIS,
        "tickfont": {"color": MUTED, "size": 12},
        "automargin": True,
    }


def named_ticks(values: list) -> dict:
    """A log axis with the measured values as its ticks. The page hides tick labels that would overlap."""
    return {"type": "log", "tickmode": "array", "tickvals": values, "ticktext": [f"{value:,}" for value in values]}
