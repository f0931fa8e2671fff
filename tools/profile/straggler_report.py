"""The section of a profile about waiting for the slowest rank: by longest history, ranks and batch size."""

from collections.abc import Sequence

from freescale_tools.report import numbers as n
from freescale_tools.report import plots
from freescale_tools.report.blocks import Block, Column, Document, Look, Plot, Section, Table
from freescale_tools.report.plots import LEAST, Axis

NONE = "none"
_METHODS = {
    NONE: ("no balancing", plots.RED),
    "fbs": ("FBS", plots.BLUE),
    "fbs+swap": ("FBS + swap", plots.SKY),
    "vbs": ("VBS", plots.GREEN),
    "vbs-contiguous": ("VBS contiguous", plots.PINK),
    "repair": ("repair", plots.AMBER),
    "hierarchical": ("hierarchical", plots.GREY),
}
_AXES = {
    "max_length": ("longest history kept", "events"),
    "ranks": ("ranks", "ranks"),
    "batch_size": ("batch size", "samples"),
}
"""Axis -> its name, and the unit of its values."""
_SHARE = Axis("time lost (%)", "log")


def method_name(method: str) -> str:
    return _METHODS.get(method, (method,))[0]


def straggler_section(grid: Document) -> Section:
    """Plots along every axis, and tables of their points."""
    return Section(
        id="stragglers",
        title="Stragglers",
        intro="Time lost is the share of the compute time that the mean rank waits for the slowest one. Where "
        f"nothing else is said: {_where(grid['default'], '')}, a sample of length L costs "
        f"{n.cost(grid['default']['cost'])}. No digit is shown that is smaller than the standard error of the "
        f"steps; axes are logarithmic, and shares below {LEAST} % are drawn there. {_bound(grid)}",
        blocks=[
            _along(grid, axis, points)
            for axis in _AXES
            if len(points := sorted((one for one in grid["points"] if one["axis"] == axis), key=lambda of: of[axis]))
            > 1
        ],
    )


def _where(default: Document, axis: str) -> str:
    """The settings of the default, but for the one of `axis`."""
    parts = {
        "ranks": f"{n.count(default['ranks'])} ranks",
        "batch_size": f"{n.count(default['batch_size'])} samples each",
        "max_length": f"histories of at most {n.count(default['max_length'])} events",
    }
    return ", ".join(text for key, text in parts.items() if key != axis)


def _bound(grid: Document) -> str:
    """What the lower bound says about this data."""
    default = grid["default"]
    usual = [point["bound_time_lost"] for point in grid["points"] if all(point[key] == default[key] for key in default)]
    worst = max(grid["points"], key=lambda point: point["bound_time_lost"])
    if 100 * worst["bound_time_lost"] < LEAST:
        return "The lower bound of plans with equal counts is 0 at every point: no sample costs more than a mean rank."
    return (
        "Where one sample costs more than a mean rank, no plan with equal counts gets below the lower bound: "
        f"{n.percent(max(usual, default=None))} at these settings, {n.percent(worst['bound_time_lost'])} at most, with "
        f"{n.count(worst['ranks'])} ranks of {n.count(worst['batch_size'])} samples and histories of at most "
        f"{n.count(worst['max_length'])} events."
    )


def best_method(points: Sequence[Document]) -> str | None:
    """Of the methods that every point has, the one that loses least time on average; None if there is none."""
    known = [{method for method, share in point["time_lost"].items() if share is not None} for point in points]
    methods = sorted(set.intersection(*known) - {NONE}) if known else []
    return min(methods, key=lambda method: sum(point["time_lost"][method] for point in points), default=None)


def _of_method(method: str, look: Look | None = None) -> Column:
    return Column(method_name(method), n.PERCENTS, f"time_lost.{method}", error=f"time_lost_error.{method}", look=look)


def _said(point: Document, method: str) -> str:
    """The time lost of a method, with as many digits as the drawn steps allow."""
    return n.percent(point["time_lost"].get(method), point.get("time_lost_error", {}).get(method))


def _table(title: str, first: Column, points: Sequence[Document], grid: Document, *, lines: bool) -> Table:
    """`first`: tells the points from each other. `lines`: methods are drawn as lines, with the bound and padding."""
    methods = [
        _of_method(method, Look(color=_METHODS[method][1], dash="solid" if lines else "", symbol=symbol))
        for method, symbol in zip(grid["methods"], plots.SYMBOLS, strict=False)
    ]
    padding = Look(color=plots.MUTED, dash="dash") if lines else None
    bound = Look(color=plots.INK, dash="dot") if lines else None
    return Table(
        title=title,
        columns=(
            first,
            Column("padding", n.PERCENTS, "sparsity", look=padding),
            *methods,
            Column("lower bound", n.PERCENTS, "bound_time_lost", look=bound),
            Column("straggler %, no balancing", n.PERCENTS, f"straggler.{NONE}", error=f"straggler_error.{NONE}"),
        ),
        rows=points,
        notes=["padding: share of a batch, if it were padded to its longest history."],
    )


def _along(grid: Document, axis: str, points: Sequence[Document]) -> Block:
    """Time lost by every method along one axis, and the bound that no plan with equal counts can beat."""
    name, unit = _AXES[axis]
    first, last, best = points[0], points[-1], best_method(points)
    aid = f"At {n.count(last[axis])} {unit}, ranks without balancing lose {_said(last, NONE)} of the time"
    if len(points) > 1:
        aid += f" ({_said(first, NONE)} at {n.count(first[axis])})"
    if best is not None:
        aid += f"; {method_name(best)} leaves {_said(last, best)}"
    if 100 * last["bound_time_lost"] >= LEAST:
        aid += f", where no equal counts get below {n.percent(last['bound_time_lost'])}"
    table = _table(f"Time lost (%) by {name}", Column(name, n.COUNT, axis), points, grid, lines=True)
    across = Axis(name if name == unit else f"{name} ({unit})", "measured")
    whole = axis == "max_length"
    return Plot(
        title=table.title,
        aid=f"{aid}. With {_where(grid['default'], axis)}.",
        figure=plots.lines(points, table.columns, x=across, y=_SHARE),
        table=table,
        height=430 if whole else 400,
        half=not whole,
        on_terminal=whole,
    )
