"""The grid of a profile: what ranks wait by method, along every axis around the settings of the page."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import METHODS, UNPACKED, Samples, Setting, enough_for, simulate_setting
from freescale_tools.scan.histogram import LengthHistogram
from fsranks.machine.cores import usable_cores

MAX_LENGTHS = (1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)
BATCH_SIZES = (16, 32, 64, 128, 256, 512)


def straggler_grid(
    samples: Samples, default: Setting, *, ranks: Sequence[int], progress: Progress | None = None
) -> dict[str, Any]:
    """The document of all simulated points: one axis at a time around the default, which every axis contains.

    `lower_bound` holds for plans with equal counts; `vbs` may get below it. Batch sizes are those that the rows are
    enough for. `progress` counts simulated samples. Takes some seconds on all cores.
    """
    cuts, rows = max_lengths(samples.histogram), samples.histogram.rows
    ranks = sorted({*ranks, default.ranks})
    sizes = [size for size in BATCH_SIZES if enough_for(rows, default.ranks, size)]
    batch_sizes = sorted({*sizes, default.batch_size})
    axes: dict[str, list[Setting]] = {
        "max_length": [replace(default, max_length=length) for length in sorted({*cuts, default.max_length})],
        "ranks": [replace(default, ranks=number) for number in ranks],
        "batch_size": [replace(default, batch_size=size) for size in batch_sizes],
    }
    # The largest first: a large setting that starts last would run alone at the end.
    settings = {setting for of_axis in axes.values() for setting in of_axis}
    order = sorted(settings, key=lambda setting: -setting.samples * setting.steps)

    def one(setting: Setting) -> dict[str, Any]:
        point = simulate_setting(samples, setting)
        if progress is not None:
            progress.advance(rows=setting.samples * point["steps"])
        return point

    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-straggler") as pool:
        found = dict(zip(order, pool.map(one, order), strict=True))
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
        "points": [{"axis": axis, **found[setting]} for axis, of_axis in axes.items() for setting in of_axis],
    }


def max_lengths(histogram: LengthHistogram) -> list[int]:
    """The lengths to cut at: those of the paper below the longest history, and the longest history."""
    return [*(length for length in MAX_LENGTHS if length < histogram.longest), histogram.longest]
