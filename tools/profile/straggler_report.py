"""The section of a profile about stragglers: by longest history, ranks, batch size and cost model."""

from collections.abc import Iterator, Sequence

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
_SHARE = Axis("straggler share of the step (%)", "log")


def method_name(method: str) -> str:
    return _METHODS.get(method, (method,))[0]


def straggler_section(grid: Document) -> Section:
    """Plots along every axis, cost models, ranks against length, and tables of their points."""
    by_axis = {axis: [one for one in grid["points"] if one["axis"] == axis] for axis in (*_AXES, "cost", "two-way")}
    return Section(
        id="stragglers",
        title="Stragglers",
        intro="The straggler share is the part of a step that the mean rank spends waiting for the slowest one. Where "
        f"nothing else is said: {_where(grid['default'], '')}, a sample of length L costs "
        f"{n.cost(grid['default']['cost'])}. No digit is shown that is smaller than the standard error of the drawn "
        f"steps; axes are logarithmic, and shares below {LEAST} % are drawn there. {_bound(grid)}",
        blocks=(
            *(_along(grid, axis, sorted(by_axis[axis], key=lambda point: point[axis])) for axis in _AXES),
            _costs(grid, by_axis["cost"]),
            *_maps(by_axis["two-way"]),
        ),
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
    usual = [point["lower_bound"] for point in grid["points"] if all(point[key] == default[key] for key in default)]
    worst = max(grid["points"], key=lambda point: point["lower_bound"])
    if 100 * worst["lower_bound"] < LEAST:
        return "The lower bound of plans with equal counts is 0 at every point: no sample costs more than a mean rank."
    return (
        "Where one sample costs more than a mean rank, no plan with equal counts gets below the lower bound: "
        f"{n.percent(max(usual, default=None))} at these settings, {n.percent(worst['lower_bound'])} at most, with "
        f"{n.count(worst['ranks'])} ranks of {n.count(worst['batch_size'])} samples and histories of at most "
        f"{n.count(worst['max_length'])} events."
    )


def best_method(points: Sequence[Document]) -> str | None:
    """Of the methods that every point has, the one with the lowest mean share; None if there is none."""
    known = [{method for method, share in point["straggler"].items() if share is not None} for point in points]
    methods = sorted(set.intersection(*known) - {NONE}) if known else []
    return min(methods, key=lambda method: sum(point["straggler"][method] for point in points), default=None)


def _of_method(method: str, look: Look | None = None) -> Column:
    return Column(method_name(method), n.PERCENTS, f"straggler.{method}", error=f"straggler_error.{method}", look=look)


def _said(point: Document, method: str) -> str:
    """The straggler share of a method, with as many digits as the drawn steps allow."""
    return n.percent(point["straggler"].get(method), point.get("straggler_error", {}).get(method))


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
            Column("lower bound", n.PERCENTS, "lower_bound", look=bound),
        ),
        rows=points,
        notes=["padding: share of a batch, if it were padded to its longest history."],
    )


def _along(grid: Document, axis: str, points: Sequence[Document]) -> Block:
    """Straggler share of every method along one axis, and the bound that no plan with equal counts can beat."""
    name, unit = _AXES[axis]
    first, last, best = points[0], points[-1], best_method(points)
    aid = f"At {n.count(last[axis])} {unit}, ranks without balancing idle {_said(last, NONE)} of the time"
    if len(points) > 1:
        aid += f" ({_said(first, NONE)} at {n.count(first[axis])})"
    if best is not None:
        aid += f"; {method_name(best)} leaves {_said(last, best)}"
    if 100 * last["lower_bound"] >= LEAST:
        aid += f", where no equal counts get below {n.percent(last['lower_bound'])}"
    table = _table(f"Straggler share (%) by {name}", Column(name, n.COUNT, axis), points, grid, lines=True)
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


def _costs(grid: Document, true: Sequence[Document]) -> Block:
    """A row for each cost model, true or wrong, with a mark for each method."""
    wrong, best = grid["wrong_model"], best_method(true)
    unbalanced = [point["straggler"][NONE] for point in true]
    aid = (
        f"Ranks without balancing idle {n.percent(min(unbalanced))} to {n.percent(max(unbalanced))} of the time, the "
        "more the steeper the cost grows with length."
    )
    if best and wrong:
        worst = max(wrong, key=lambda point: point["straggler"][best])
        share, none = worst["straggler"][best], worst["straggler"][NONE]
        aid += (
            f" {method_name(best)} leaves at most {n.percent(max(point['straggler'][best] for point in true))} of it. "
            f"What a wrong model costs: a sample takes {n.cost(worst['cost'])}; planned by "
            f"{n.cost(worst['planned_by'])}, {method_name(best)} leaves {n.percent(share)}, "
            f"{'still' if share < none else 'no'} less than the {n.percent(none)} without balancing."
        )

    def name(point: Document) -> str:
        believed = point.get("planned_by", point["cost"])
        return n.cost(point["cost"]) + (f", planned by {n.cost(believed)}" if believed != point["cost"] else "")

    title = "Straggler share (%) by what a sample costs, and by what the plan believes"
    table = _table(title, Column("cost", n.TEXT, name), [*true, *wrong], grid, lines=False)
    figure = plots.lines(table.rows, table.columns, x=_SHARE, y=Axis("", "names"), turned=True)
    return Plot(title=title, aid=aid, figure=figure, table=table, height=420)


def _maps(points: Sequence[Document]) -> Iterator[Block]:
    """Straggler share by ranks and longest history, without balancing and by the best method."""
    best = best_method(points)
    if best is None:
        return
    columns = {method: _of_method(method) for method in (NONE, best)}
    across, down = Column("longest history kept (events)", n.COUNT, "max_length"), Column("ranks", n.COUNT, "ranks")
    for method, column in columns.items():
        worst = max(points, key=column.value)
        name = "without balancing" if method == NONE else f"with {method_name(method)}"
        ratio = ""
        if method != NONE and worst["straggler"][NONE] > 1.1 * worst["straggler"][method] > 0:
            ratio = f", {n.times(worst['straggler'][NONE] / worst['straggler'][method])} less than unbalanced"
        beside = list(columns.values())
        yield Plot(
            title=f"Straggler share (%) {name}, by ranks and longest history",
            aid=f"Worst is {_said(worst, method)}{ratio}, on {n.count(worst['ranks'])} ranks with histories of up to "
            f"{n.count(worst['max_length'])} events.",
            figure=plots.heat_map(points, across, down, column, beside=beside, scale=method == best),
            height=320,
            half=True,
        )
