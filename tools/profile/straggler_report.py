"""The section of a profile about stragglers: by longest history, ranks, batch size and cost model."""

from collections.abc import Iterator, Sequence

from freescale_tools.report import plots
from freescale_tools.report.blocks import Block, Column, Document, Plot, Section, Table
from freescale_tools.report.numbers import COUNT, PERCENTS, SHARE, TEXT, cost, count, percent, times
from freescale_tools.report.plots import LEAST, Axis, Series

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
        f"steps. {_bound(grid)}",
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
    if 100 * max(usual, default=0.0) >= LEAST:
        return (
            "No plan with equal counts gets below the lower bound, because one sample costs more than a mean rank: "
            f"{percent(max(usual))} at these settings, {percent(worst['lower_bound'])} at most."
        )
    return (
        "The lower bound of plans with equal counts is 0 at these settings, because no sample costs more than a mean "
        f"rank; it is {percent(worst['lower_bound'])} at most, with {count(worst['ranks'])} ranks of "
        f"{count(worst['batch_size'])} samples and histories of at most {count(worst['max_length'])} events."
    )


def _blocks(grid: Document) -> Iterator[Block]:
    along = {
        axis: sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
        for axis in _AXES
    }
    for axis, points in along.items():
        yield _axis_plot(grid, axis, points)
    for axis, points in along.items():
        name, main = _AXES[axis][0], axis == "max_length"
        yield _table(f"Straggler share (%) by {name}", [Column(name, COUNT, axis)], points, grid, on_terminal=main)
    true, wrong = [point for point in grid["points"] if point["axis"] == "cost"], grid["wrong_model"]
    right = [point for point in true if wrong and point["cost"] == wrong[0]["cost"]]
    yield _true_costs(grid, true)
    if wrong:
        yield _wrong_costs(grid, right, wrong)
    yield _table(
        "Straggler share (%) by what a sample costs, and by what the plan believes",
        [
            Column("cost", TEXT, lambda point: cost(point["cost"])),
            Column("planned by", TEXT, lambda point: cost(point.get("planned_by", point["cost"]))),
        ],
        [*true, *wrong],
        grid,
        on_terminal=False,
    )
    yield from _maps([point for point in grid["points"] if point["axis"] == "two-way"])


def _table(
    title: str, first: Sequence[Column], points: Sequence[Document], grid: Document, *, on_terminal: bool
) -> Table:
    """`first`: columns that tell the points from each other."""
    return Table(
        title=title,
        columns=(
            *first,
            Column("padding", PERCENTS, "sparsity"),
            *(
                Column(method_name(one), PERCENTS, f"straggler.{one}", error=f"straggler_error.{one}")
                for one in grid["methods"]
            ),
            Column("lower bound", PERCENTS, "lower_bound"),
        ),
        rows=points,
        notes=["padding: share of a batch, if it were padded to its longest history."],
        folded=True,
        on_terminal=on_terminal,
    )


def _axis_plot(grid: Document, axis: str, points: Sequence[Document]) -> Block:
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
    places = [point[axis] for point in points]
    series = [
        Series(
            name=method_name(method),
            x=places,
            y=[point["straggler"].get(method) for point in points],
            color=_METHODS[method][1],
            symbol=plots.SYMBOLS[rank % len(plots.SYMBOLS)],
            said=[f"{count(point[axis])}: {method_name(method)} {_said(point, method)}" for point in points],
        )
        for rank, method in enumerate(grid["methods"])
    ]
    bound = [point["lower_bound"] for point in points]
    series.append(Series(name="lower bound", x=places, y=bound, color=plots.INK, dash="dot"))
    if axis == "max_length":
        padding = [point["sparsity"] for point in points]
        series.append(Series(name="padding, were it padded", x=places, y=padding, color=plots.MUTED, dash="dash"))
    return Plot(
        title=f"Straggler share (%) by {name}",
        aid=f"{aid}. With {_where(grid['default'], axis)}.",
        figure=plots.lines(series, x=Axis(name if name == unit else f"{name} ({unit})", COUNT, "measured"), y=_share_axis()),
        height=430 if axis == "max_length" else 400,
        half=axis != "max_length",
    )


def _share_axis() -> Axis:
    return Axis("straggler share of the step (%)", SHARE, "log")


def _true_costs(grid: Document, true: Sequence[Document]) -> Block:
    unbalanced, best = [point["straggler"][NONE] for point in true], best_method(true)
    most = percent(max(point["straggler"][best] for point in true)) if best else ""
    return Plot(
        title="Straggler share (%) by what a sample costs",
        aid=f"If the model's cost is known, ranks idle {percent(min(unbalanced))} to {percent(max(unbalanced))} "
        "without balancing, the more the steeper the cost grows with length"
        + (f"; {method_name(best)} leaves at most {most}." if best else "."),
        figure=_costs(grid, true, "cost"),
        height=380,
        half=True,
    )


def _wrong_costs(grid: Document, right: Sequence[Document], wrong: Sequence[Document]) -> Block:
    aid, best = "What a wrong cost model costs.", best_method([*right, *wrong])
    if best:
        worst = max(wrong, key=lambda point: point["straggler"][best])
        share, none = worst["straggler"][best], worst["straggler"][NONE]
        instead = f" instead of {_said(right[0], best)}" if right else ""
        still = f"{'still' if share < none else 'no'} less than the {percent(none)}"
        aid = (
            f"What a wrong model costs: a sample takes {cost(worst['cost'])}; planned by {cost(worst['planned_by'])}, "
            f"{method_name(best)} leaves {percent(share)}{instead}, {still} without balancing."
        )
    return Plot(
        title="Straggler share (%) by what the plan believes",
        aid=aid,
        figure=_costs(grid, [*right, *wrong], "planned_by"),
        height=380,
        half=True,
    )


def _costs(grid: Document, points: Sequence[Document], key: str) -> "plots.go.Figure":
    """A row for each cost model, with a mark for each method. `key`: `cost` for true models, `planned_by` else."""
    series = [
        Series(
            name=method_name(method),
            x=[point["straggler"].get(method) for point in reversed(points)],
            y=[cost(point[key]) for point in reversed(points)],
            color=_METHODS[method][1],
            dash="",
            symbol=plots.SYMBOLS[rank % len(plots.SYMBOLS)],
            said=[f"{method_name(method)}, {cost(point[key])}: {_said(point, method)}" for point in reversed(points)],
        )
        for rank, method in enumerate(grid["methods"])
    ]
    return plots.lines(series, x=_share_axis(), y=Axis("", scale="names"))


def _maps(points: Sequence[Document]) -> Iterator[Block]:
    """Straggler share by ranks and longest history, without balancing and by the best method."""
    best = best_method(points)
    if best is None:
        return
    everything = [point["straggler"].get(method) for point in points for method in (NONE, best)]
    for method in (NONE, best):
        own = [point for point in points if point["straggler"].get(method) is not None]
        worst = max(own, key=lambda point: point["straggler"][method])
        name = "without balancing" if method == NONE else f"with {method_name(method)}"
        ratio = ""
        if method != NONE and worst["straggler"][NONE] > 1.1 * worst["straggler"][method] > 0:
            ratio = f", {times(worst['straggler'][NONE] / worst['straggler'][method])} less than unbalanced"
        places = {(point["max_length"], point["ranks"]): point for point in own}
        yield Plot(
            title=f"Straggler share (%) {name}, by ranks and longest history",
            aid=f"Worst is {_said(worst, method)}{ratio}, on {count(worst['ranks'])} ranks with histories of up to "
            f"{count(worst['max_length'])} events.",
            figure=plots.heat_map(
                {place: point["straggler"][method] for place, point in places.items()},
                x=Axis("longest history kept (events)"),
                y=Axis("ranks"),
                said={place: _said(point, method).removesuffix("\u00a0%") for place, point in places.items()},
                beside=everything,
                scale=method == best,
            ),
            height=320,
            half=True,
        )
