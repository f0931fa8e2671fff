"""The grid of a profile: straggler shares along every axis around its default, and length against ranks."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import METHODS, UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CostModel, Polynomial, Power
from fsranks.machine.cores import usable_cores

MAX_LENGTHS = (1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)
BATCH_SIZES = (16, 32, 64, 128, 256, 512)
COSTS: tuple[CostModel, ...] = (Polynomial(), Power(alpha=1), Power(alpha=1.5), Power(alpha=2))
_TWO_WAY_METHODS = ("fbs", "fbs+swap")
_TWO_WAY_RANKS = (8, 64, 256, 1024)


def straggler_grid(
    samples: Samples,
    default: Setting,
    *,
    ranks: Sequence[int],
    batch_sizes: Sequence[int] = BATCH_SIZES,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of all simulated points: one axis at a time around the default, and length against ranks.

    Each axis contains the default. On the axis `cost`, plans use the true cost model. Points of `wrong_model` are
    planned by `planned_by` although `cost` is true. `lower_bound` holds for plans with equal counts; `vbs` may get
    below it. `two-way` may lack methods. `progress` counts simulated samples. Takes some seconds on all cores.
    """
    cuts = max_lengths(samples.histogram)
    ranks, batch_sizes = sorted({*ranks, default.ranks}), sorted({*batch_sizes, default.batch_size})
    others = [cost for cost in COSTS if repr(cost) != repr(default.cost)]
    axes: dict[str, list[Setting]] = {
        "max_length": [replace(default, max_length=length) for length in sorted({*cuts, default.max_length})],
        "ranks": [replace(default, ranks=number) for number in ranks],
        "batch_size": [replace(default, batch_size=size) for size in batch_sizes],
        "cost": [replace(default, cost=cost) for cost in (default.cost, *others)],
        "two-way": [
            replace(default, max_length=length, ranks=number)
            for length in cuts
            for number in ranks
            if number in _TWO_WAY_RANKS
        ],
        "wrong_model": [replace(default, planned_by=cost) for cost in others],
    }
    # A setting that stands on several axes is simulated once, with the methods of the first of them.
    methods: dict[Setting, tuple[str, ...]] = {}
    for axis, settings in axes.items():
        for setting in settings:
            methods.setdefault(setting, _TWO_WAY_METHODS if axis == "two-way" else METHODS)
    # The largest first: a large setting that starts last would run alone at the end.
    order = sorted(methods, key=lambda setting: -setting.samples * setting.steps * len(methods[setting]))

    def one(setting: Setting) -> dict[str, Any]:
        point = simulate_setting(samples, setting, methods=methods[setting])
        if progress is not None:
            progress.advance(rows=setting.samples * setting.steps)
        return point

    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-straggler") as pool:
        found = dict(zip(order, pool.map(one, order), strict=True))
    points = {axis: [{"axis": axis, **found[setting]} for setting in settings] for axis, settings in axes.items()}
    wrong = points.pop("wrong_model")
    return {
        "default": {
            "ranks": default.ranks,
            "batch_size": default.batch_size,
            "max_length": default.max_length,
            "cost": repr(default.cost),
        },
        "max_lengths": cuts,
        "ranks": ranks,
        "batch_sizes": batch_sizes,
        "methods": [UNPACKED, *METHODS],
        "points": [point for of_axis in points.values() for point in of_axis],
        "wrong_model": wrong,
    }


def max_lengths(histogram: LengthHistogram) -> list[int]:
    """The lengths to cut at: those of the paper below the longest history, and the longest history."""
    return [*(length for length in MAX_LENGTHS if length < histogram.longest), histogram.longest]
