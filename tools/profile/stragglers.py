"""The grid of a profile: straggler shares along every axis around its default, and length against ranks."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from freescale_tools.console.options import RANKS
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import METHODS, UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CostModel, Polynomial, Power
from fsranks.machine.cores import usable_cores

MAX_LENGTHS = (1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)
BATCH_SIZES = (16, 32, 64, 128, 256, 512)
COSTS: tuple[CostModel, ...] = (Polynomial(), Power(alpha=1), Power(alpha=1.5), Power(alpha=2))

_LONGEST_DEFAULT = 21_000  # the paper's
_TWO_WAY_METHODS = ("fbs", "fbs+swap")
_TWO_WAY_RANKS = (8, 64, 256, 1024)

Task = tuple[str, Setting, tuple[str, ...]]
"""Axis, setting, methods of one point."""


def straggler_grid(
    histogram: LengthHistogram,
    *,
    candidates: LengthHistogram | None = None,
    ranks: Sequence[int] = RANKS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    batch_size: int = 128,
    default_ranks: int = 64,
    max_length: int | None = None,
    cost: CostModel | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of all simulated points: one axis at a time around the default, and length against ranks.

    `max_length` belongs to the default; None takes the longest history of the data, at most 21,000. On the
    axis `cost`, plans use the true cost model. Points of `wrong_model` are planned by `planned_by` although
    `cost` is true. `lower_bound` holds for plans with equal counts; `vbs` may get below it. `two-way` may
    lack methods. `progress` counts simulated samples. Takes some seconds on all cores. Raises UsageError
    without events.
    """
    model = cost or Polynomial()
    samples = Samples(histogram=histogram, candidates=candidates, seed=seed)
    lengths = max_lengths(histogram)
    default = Setting(
        max_length=max_length or min(histogram.longest, _LONGEST_DEFAULT),
        ranks=default_ranks,
        batch_size=batch_size,
        cost=model,
    )
    tasks = _tasks(default, lengths, ranks, batch_sizes)
    found = _simulate_all(samples, tasks, progress)
    points = [{"axis": axis, **found[setting]} for axis, setting, _ in tasks]
    return {
        "default": {
            "ranks": default.ranks,
            "batch_size": default.batch_size,
            "max_length": default.max_length,
            "cost": repr(model),
        },
        "max_lengths": lengths,
        "ranks": sorted({*ranks, default_ranks}),
        "batch_sizes": sorted({*batch_sizes, batch_size}),
        "methods": [UNPACKED, *METHODS],
        "points": [point for point in points if point["axis"] != "wrong_model"],
        "wrong_model": [point for point in points if point["axis"] == "wrong_model"],
    }


def max_lengths(histogram: LengthHistogram) -> list[int]:
    """The lengths to cut at: those of the paper below the longest history, and the longest history."""
    return [*(length for length in MAX_LENGTHS if length < histogram.longest), histogram.longest]


def _simulate_all(samples: Samples, tasks: Sequence[Task], progress: Progress | None) -> dict[Setting, dict[str, Any]]:
    """Simulate every setting once, although all axes contain the default.

    Its first task gives the methods.
    """
    methods: dict[Setting, tuple[str, ...]] = {}
    for _, setting, wanted in tasks:
        methods.setdefault(setting, wanted)
    # The largest first: a large setting that starts last would run alone at the end.
    order = sorted(methods, key=lambda setting: -setting.samples * setting.steps * len(methods[setting]))

    def one(setting: Setting) -> dict[str, Any]:
        point = simulate_setting(samples, setting, methods=methods[setting])
        if progress is not None:
            progress.advance(rows=setting.samples * setting.steps)
        return point

    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-straggler") as pool:
        return dict(zip(order, pool.map(one, order), strict=True))


def _tasks(default: Setting, lengths: Sequence[int], ranks: Sequence[int], batch_sizes: Sequence[int]) -> list[Task]:
    """Every point of the document; each axis contains the default."""

    def at(**changes: Any) -> Setting:
        return dataclasses.replace(default, **changes)

    ranks_axis = sorted({*ranks, default.ranks})
    others = [cost for cost in COSTS if repr(cost) != repr(default.cost)]
    tasks: list[Task] = [
        ("max_length", at(max_length=length), METHODS) for length in sorted({*lengths, default.max_length})
    ]
    tasks += [("ranks", at(ranks=number), METHODS) for number in ranks_axis]
    tasks += [("batch_size", at(batch_size=size), METHODS) for size in sorted({*batch_sizes, default.batch_size})]
    tasks += [("cost", at(cost=cost), METHODS) for cost in (default.cost, *others)]
    tasks += [
        ("two-way", at(max_length=length, ranks=number), _TWO_WAY_METHODS)
        for length in lengths
        for number in ranks_axis
        if number in _TWO_WAY_RANKS
    ]
    tasks += [("wrong_model", at(planned_by=cost), METHODS) for cost in others]
    return tasks
