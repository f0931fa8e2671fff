"""The section of a profile about stragglers: by longest history, ranks, batch size and cost model."""

from collections.abc import Iterator, Sequence

from freescale_tools.report import plots
from freescale_tools.report.blocks import Block, Column, Document, Look, Plot, Section, Table
from freescale_tools.report.numbers import COUNT, PERCENTS, TEXT, cost, count, percent, times
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
    return Section(
        id="stragglers",
        title="Stragglers",
        intro="The straggler share is the part of a step that the mean rank spends waiting for the slowest one. Where "
        f"nothing else is said: {_where(grid['default'], '')}, a sample of length L costs "
        f"{cost(grid['default']['cost'])}. No digit is shown that is smaller than the standard error of the drawn "
        f"steps; axes are logarithmic, and shares below {LEAST} % are drawn there. {_bound(grid)}",
        blocks=tuple(_blocks(grid)),
    )


def best_method(points: Sequence[Document]) -> str | None:
    """The method with the lowest mean share over all points that have it; None if no point is balanced."""
    shares: dict[str, list[float]] = {}
    for point in points:
        for method, share in point["straggler"].items():
            if method != NONE and share is not None:
                shares.setdefault(method, []).append(share)
    return min(shares, key=lambda method: sum(shares[method]) / len(shares[method])) if shares else None


def _said(point: Document, method: str) -> str:
    """The straggler share of a method, with as many digits as the drawn steps allow."""
    return percent(point["straggler"].get(method), point.get("straggler_error", {}).get(method))


def _where(default: Document, axis: str) -> str:
    parts = {
        "ranks": f"{count(default['ranks'])} ranks",
        "batch_size": f"{count(default['batch_size'])} samples each",
        "max_length": f"histories of at most {count(default['max_length'])} events",
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
        f"{percent(max(usual, default=None))} at these settings, {percent(worst['lower_bound'])} at most, with "
        f"{count(worst['ranks'])} ranks of {count(worst['batch_size'])} samples and histories of at most "
        f"{count(worst['max_length'])} events."
    )


def _blocks(grid: Document) -> Iterator[Block]:
    for axis in _AXES:
        points = sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
        yield _along(grid, axis, points)
    yield _costs(grid)
    yield from _maps([point for point in grid["points"] if point["axis"] == "two-way"])


def _table(title: str, first: Column, points: Sequence[Document], grid: Document, *, lines: bool) -> Table:
    """`first`: tells the points from each other. `lines`: methods are drawn as lines, with the bound and padding."""
    return Table(
        title=title,
        columns=(
            first,
            Column("padding", PERCENTS, "sparsity", look=Look(color=plots.MUTED, dash="dash") if lines else None),
            *(
                _of_method(method, Look(color=_METHODS[method][1], dash="solid" if lines else "", symbol=symbol))
                for method, symbol in zip(grid["methods"], plots.SYMBOLS, strict=False)
            ),
            Column("lower bound", PERCENTS, "lower_bound", look=Look(color=plots.INK, dash="dot") if lines else None),
        ),
        rows=points,
        notes=["padding: share of a batch, if it were padded to its longest history."],
    )


def _of_method(method: str, look: Look | None = None) -> Column:
    return Column(method_name(method), PERCENTS, f"straggler.{method}", error=f"straggler_error.{method}", look=look)


def _along(grid: Document, axis: str, points: Sequence[Document]) -> Block:
    """Straggler share of every method along one axis, and the bound that no plan with equal counts can beat."""
    name, unit = _AXES[axis]
    first, last, best = points[0], points[-1], best_method(points)
    aid = f"At {count(last[axis])} {unit}, ranks without balancing idle {_said(last, NONE)} of the time"
    if len(points) > 1:
        aid += f" ({_said(first, NONE)} at {count(first[axis])})"
    if best is not None:
        aid += f"; {method_name(best)} leaves {_said(last, best)}"
    if 100 * last["lower_bound"] >= LEAST:
        aid += f", where no equal counts get below {percent(last['lower_bound'])}"
    table = _table(f"Straggler share (%) by {name}", Column(name, COUNT, axis), points, grid, lines=True)
    across = Axis(name if name == unit else f"{name} ({unit})", "measured")
    return Plot(
        title=table.title,
        aid=f"{aid}. With {_where(grid['default'], axis)}.",
        figure=plots.lines(points, table.columns[0], table.columns, x=across, y=_SHARE),
        table=table,
        height=430 if axis == "max_length" else 400,
        half=axis != "max_length",
        on_terminal=axis == "max_length",
    )


def _costs(grid: Document) -> Block:
    """A row for each cost model, true or wrong, with a mark for each method."""
    true, wrong = [point for point in grid["points"] if point["axis"] == "cost"], grid["wrong_model"]
    points, best = [*true, *wrong], best_method(true)
    unbalanced = [point["straggler"][NONE] for point in true]
    aid = (
        f"Ranks without balancing idle {percent(min(unbalanced))} to {percent(max(unbalanced))} of the time, the more "
    )
    aid += "the steeper the cost grows with length."
    if best and wrong:
        worst = max(wrong, key=lambda point: point["straggler"][best])
        share, none = worst["straggler"][best], worst["straggler"][NONE]
        aid += (
            f" {method_name(best)} leaves at most {percent(max(point['straggler'][best] for point in true))} of it. "
            f"What a wrong model costs: a sample takes {cost(worst['cost'])}; planned by {cost(worst['planned_by'])}, "
            f"{method_name(best)} leaves {percent(share)}, {'still' if share < none else 'no'} less than the "
            f"{percent(none)} without balancing."
        )

    def name(point: Document) -> str:
        believed = point.get("planned_by", point["cost"])
        return cost(point["cost"]) + (f", planned by {cost(believed)}" if believed != point["cost"] else "")

    table = _table(
        "Straggler share (%) by what a sample costs, and by what the plan believes",
        Column("cost", TEXT, name),
        points,
        grid,
        lines=False,
    )
    return Plot(
        title=table.title,
        aid=aid,
        figure=plots.lines(points, table.columns[0], table.columns, x=_SHARE, y=Axis("", "names"), turned=True),
        table=table,
        height=420,
    )


def _maps(points: Sequence[Document]) -> Iterator[Block]:
    """Straggler share by ranks and longest history, without balancing and by the best method."""
    best = best_method(points)
    if best is None:
        return
    columns = [_of_method(method) for method in (NONE, best)]
    for method, column in zip((NONE, best), columns, strict=True):
        worst = max(points, key=column.value)
        name = "without balancing" if method == NONE else f"with {method_name(method)}"
        ratio = ""
        if method != NONE and worst["straggler"][NONE] > 1.1 * worst["straggler"][method] > 0:
            ratio = f", {times(worst['straggler'][NONE] / worst['straggler'][method])} less than unbalanced"
        yield Plot(
            title=f"Straggler share (%) {name}, by ranks and longest history",
            aid=f"Worst is {_said(worst, method)}{ratio}, on {count(worst['ranks'])} ranks with histories of up to "
            f"{count(worst['max_length'])} events.",
            figure=plots.heat_map(
                points,
                Column("longest history kept (events)", COUNT, "max_length"),
                Column("ranks", COUNT, "ranks"),
                column,
                beside=columns,
                scale=method == best,
            ),
            height=320,
            half=True,
        )
