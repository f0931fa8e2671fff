"""The section about stragglers, by longest history, ranks, batch size and cost model."""

from collections.abc import Iterator, Sequence

from freescale_tools.profile.page import straggler_figures as figures
from freescale_tools.report.blocks import Block, Document, Plot, Section, Table
from freescale_tools.report.numbers import cost, count, percent, times

NONE = "none"
_AXES = (("max_length", "longest history kept (events)"), ("ranks", "ranks"), ("batch_size", "batch size (samples)"))
_UNITS = {"max_length": "events", "ranks": "ranks", "batch_size": "samples"}
_MOST_ROWS = 400


def straggler_section(grid: Document) -> Section:
    """Plots along every axis, cost models, ranks against length, and all simulated points."""
    default = grid["default"]
    return Section(
        id="stragglers",
        title="Stragglers",
        intro="The straggler share is the part of a step that the mean rank spends waiting for the slowest one. Where "
        f"nothing else is said: {_where(default, '')}. "
        "No digit is shown that is smaller than the standard error of the drawn steps. Axes are logarithmic, shares "
        "below 0.001 % are drawn there. " + _bound(grid),
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


def _blocks(grid: Document) -> Iterator[Block]:
    for axis, title in _AXES:
        points = sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
        if points:
            yield Plot(
                title=f"Straggler share (%) by {title}",
                aid=_aid(points, axis, grid["default"]),
                figure=figures.stragglers(grid, axis, sparsity=axis == "max_length"),
                height=430 if axis == "max_length" else 400,
                half=axis != "max_length",
            )
    yield from _costs(grid)
    two_way = [point for point in grid["points"] if point["axis"] == "two-way"]
    method = best_method(two_way)
    shown = [NONE, method] if two_way and method else []
    for name in shown:
        yield _two_way(two_way, name, shown)
    yield _table(grid)


def _bound(grid: Document) -> str:
    """What the lower bound says about this data."""
    default = grid["default"]
    usual = [point["lower_bound"] for point in grid["points"] if all(point[key] == default[key] for key in default)]
    worst = max(grid["points"], key=lambda point: point["lower_bound"])
    if 100 * worst["lower_bound"] < figures.LEAST_PERCENT:
        return "The lower bound of plans with equal counts is 0 at every point: no sample costs more than a mean rank."
    if 100 * max(usual, default=0.0) >= figures.LEAST_PERCENT:
        return (
            "No plan with equal counts gets below the lower bound, because one sample costs more than a mean rank: "
            f"{percent(max(usual))} at these settings, {percent(worst['lower_bound'])} at most."
        )
    return (
        "The lower bound of plans with equal counts is 0 at these settings, because no sample costs more than a mean "
        f"rank; it is {percent(worst['lower_bound'])} at most, with {count(worst['ranks'])} ranks of "
        f"{count(worst['batch_size'])} samples and histories of at most {count(worst['max_length'])} events."
    )


def _where(default: Document, axis: str) -> str:
    parts = {
        "ranks": f"{count(default['ranks'])} ranks",
        "batch_size": f"{count(default['batch_size'])} samples each",
        "max_length": f"histories of at most {count(default['max_length'])} events",
    }
    return ", ".join(text for key, text in parts.items() if key != axis)


def _aid(points: Sequence[Document], axis: str, default: Document) -> str:
    first, last, method = points[0], points[-1], best_method(points)
    unit = _UNITS[axis]
    text = f"At {count(last[axis])} {unit}, ranks without balancing idle {figures.share_text(last, NONE)} of the time"
    if len(points) > 1:
        text += f" ({figures.share_text(first, NONE)} at {count(first[axis])})"
    if method is not None:
        text += f"; {figures.method_name(method)} leaves {figures.share_text(last, method)}"
    if 100 * last["lower_bound"] >= figures.LEAST_PERCENT:
        text += f", where no equal counts get below {percent(last['lower_bound'])}"
    return f"{text}. With {_where(default, axis)}."


def _costs(grid: Document) -> Iterator[Block]:
    true = [point for point in grid["points"] if point["axis"] == "cost"]
    if true:
        unbalanced = [point["straggler"][NONE] for point in true]
        method = best_method(true)
        rest = (
            f"; {figures.method_name(method)} leaves at most "
            f"{percent(max(point['straggler'][method] for point in true))}"
            if method
            else ""
        )
        yield Plot(
            title="Straggler share (%) by what a sample costs",
            aid=f"If the model's cost is known, ranks idle {percent(min(unbalanced))} to {percent(max(unbalanced))} "
            f"without balancing, the more the steeper the cost grows with length{rest}.",
            figure=figures.costs(grid, true, key="cost"),
            height=380,
            half=True,
        )
    wrong = grid.get("wrong_model") or ()
    if not wrong:
        return
    right = [point for point in true if point["cost"] == wrong[0]["cost"]][:1]
    yield Plot(
        title="Straggler share (%) by what the plan believes",
        aid=_wrong_aid(wrong, right),
        figure=figures.costs(grid, [*right, *wrong], key="planned_by"),
        height=380,
        half=True,
    )


def _wrong_aid(wrong: Sequence[Document], right: Sequence[Document]) -> str:
    method = best_method([*right, *wrong])
    if method is None:
        return "What a wrong cost model costs."
    worst = max(wrong, key=lambda point: point["straggler"][method])
    share, none = worst["straggler"][method], worst["straggler"][NONE]
    instead = f" instead of {figures.share_text(right[0], method)}" if right else ""
    still = f"still less than the {percent(none)}" if share < none else f"no less than the {percent(none)}"
    return (
        f"What a wrong model costs: a sample takes {cost(worst['cost'])}; planned by {cost(worst['planned_by'])}, "
        f"{figures.method_name(method)} leaves {percent(share)}{instead}, {still} without balancing."
    )


def _two_way(points: Sequence[Document], method: str, beside: Sequence[str]) -> Block:
    own = [point for point in points if point["straggler"].get(method) is not None]
    worst = max(own, key=lambda point: point["straggler"][method])
    name = "without balancing" if method == NONE else f"with {figures.method_name(method)}"
    ratio = ""
    if method != NONE and worst["straggler"][NONE] > 1.1 * worst["straggler"][method] > 0:
        ratio = f", {times(worst['straggler'][NONE] / worst['straggler'][method])} less than unbalanced"
    return Plot(
        title=f"Straggler share (%) {name}, by ranks and longest history",
        aid=f"Worst is {figures.share_text(worst, method)}{ratio}, on {count(worst['ranks'])} ranks with histories "
        f"of up to {count(worst['max_length'])} events.",
        figure=figures.two_way(points, method, beside=beside),
        height=320,
        half=True,
    )


def _table(grid: Document) -> Table:
    methods = grid["methods"]
    names = {"max_length": "longest history", "ranks": "ranks", "batch_size": "batch size", "two-way": "two-way"}
    points = [
        *((names.get(point["axis"], point["axis"]), point) for point in grid["points"]),
        *(("wrong model", point) for point in grid.get("wrong_model") or ()),
    ]
    return Table(
        title=f"All {count(len(points))} simulated points",
        columns=(
            "Axis",
            "Cost",
            "Planned by",
            "Events",
            "Ranks",
            "Batch",
            "Steps",
            "Padding",
            "Bound",
            *(figures.method_name(method) for method in methods),
        ),
        rows=[
            (
                name,
                cost(point["cost"]),
                cost(point.get("planned_by", point["cost"])),
                *(count(point[key]) for key in ("max_length", "ranks", "batch_size", "steps")),
                percent(point["sparsity"]),
                percent(point["lower_bound"]),
                *(figures.share_text(point, method) for method in methods),
            )
            for name, point in points[:_MOST_ROWS]
        ],
        words=3,
        folded=True,
    )
