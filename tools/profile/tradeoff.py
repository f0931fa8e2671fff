"""The trade-off table: what batch size and longest history cost, in time, events, memory, collisions and GPU-hours.

Batch sizes go from a quarter of the asked one to four times it, as far as the rows are enough for them. Lengths
are the longest history, the cuts that lose about 5 and 20 % of the events, and the even cut (`cuts`).
"""

import bisect
import dataclasses
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.model.batches import PACKED, Samples, Setting, enough_for, simulate_setting
from freescale_tools.model.durations import FLOAT, ID, step
from freescale_tools.model.hardware import Hardware, calibrated
from freescale_tools.model.step import BALANCED
from freescale_tools.model.workload import workload
from freescale_tools.profile.recommend import EvenCut
from freescale_tools.scan.histogram import LengthHistogram
from fsranks.machine.cores import usable_cores

_LOST = (0.05, 0.2)
_HOUR_MS = 3_600_000


def tradeoff(
    profile: Mapping[str, Any],
    samples: Samples,
    cut: EvenCut,
    hardware: Hardware,
    *,
    calibration: Calibration | None = None,
    gpu_hour_price: float | None = None,
) -> dict[str, Any]:
    """The `tradeoff` of a profile document that has stragglers, recommended settings and, if counted, collisions.

    A point: `time_lost` with its error, balanced by the recommended method; `events_lost` and `rows_touched`, shares of
    the events that are cut off and of the rows that lose some; `tokens` of the fullest rank of a simulated step, and
    their `bytes`: an id, and an embedding row and its gradient of `dim` floats each; `collisions`, the share of
    look-ups, None where they were not counted for this batch size; `steps`, `gpu_hours` and, with a price, `money` of
    an epoch. A step is that of TorchRec's pipeline, balanced.
    """
    method = profile["recommended"]["method"]
    hardware = calibrated(hardware, calibration) if calibration else hardware
    dim = workload(profile, calibration=calibration).dim
    settings = [
        dataclasses.replace(cut.uncut, batch_size=size, max_length=length)
        for size in batch_sizes(samples.histogram.rows, cut.uncut)
        for length in sorted({*lengths(samples.histogram, cut), profile["recommended"]["max_length"]})
    ]
    # Share of the look-ups whose row the batch before used, too, for the batch sizes that it was counted for.
    collisions = profile["collisions"]
    counted = {
        point["batch_size"]: point["by_occurrence"]["mean"]
        for point in (collisions["points"] if collisions else ())
        if point["ranks"] == cut.uncut.ranks and point["axis"] in ("default", "batch_size")
    }

    def one(setting: Setting) -> dict[str, Any]:
        found = simulate_setting(samples, setting, methods=(method,))
        steps = math.ceil(samples.histogram.rows / setting.samples)
        load = workload(profile, batch_size=setting.batch_size, max_length=setting.max_length, calibration=calibration)
        at = setting.ranks, PACKED
        load = dataclasses.replace(load, time_lost={at: found["time_lost"][method]}, skews={at: found["skew"][method]})
        step_ms = step(hardware, load, BALANCED, ranks=setting.ranks)["step_ms"]
        hours = steps * setting.ranks * step_ms / _HOUR_MS
        return {
            "batch_size": setting.batch_size,
            "max_length": setting.max_length,
            "time_lost": found["time_lost"][method],
            "time_lost_error": found["time_lost_error"][method],
            "events_lost": 1.0 - samples.histogram.kept_share(setting.max_length),
            "rows_touched": samples.histogram.longer_share(setting.max_length),
            "tokens": found["fullest"][method],
            "bytes": found["fullest"][method] * (ID + 2 * FLOAT * dim),
            "collisions": counted.get(setting.batch_size),
            "steps": steps,
            "step_ms": step_ms,
            "gpu_hours": hours,
            "money": None if gpu_hour_price is None else hours * gpu_hour_price,
        }

    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-tradeoff") as pool:
        points = list(pool.map(one, settings))
    return {
        "ranks": cut.uncut.ranks,
        "method": method,
        "dim": dim,
        "collisions_max_length": collisions["max_length"] if counted else None,
        "calibrated": calibration is not None,
        "step_source": calibration.source if calibration else f"simulated on {hardware.name}",
        "gpu_hour_price": gpu_hour_price,
        "points": points,
    }


def tradeoff_notes(found: Mapping[str, Any]) -> list[str]:
    """What the columns of the table hold."""
    notes = [
        "Steps, GPU-hours and money are those of an epoch. Lost: share of the events; touched: share of the rows that "
        "lose some.",
        f"Memory: of the fullest rank of the simulated steps. An event or candidate has {ID} bytes of id, "
        f"{FLOAT * found['dim']:,.0f} of its embedding row and as many of its gradient; activations of the model come "
        "on top.",
    ]
    if found["collisions_max_length"] is not None:
        notes.append(f"Collisions: counted with histories of at most {found['collisions_max_length']:,} events.")
    more = "" if found["calibrated"] else "; --calibration takes those of your run"
    price = "" if found["gpu_hour_price"] is not None else " --gpu-hour-price shows money."
    return [*notes, f"Seconds: of balanced steps of TorchRec's pipeline, {found['step_source']}{more}.{price}"]


def batch_sizes(rows: int, uncut: Setting) -> list[int]:
    """The asked batch size, and those around it that the rows are enough for."""
    asked = uncut.batch_size
    sizes = {asked // 4, asked // 2, 2 * asked, 4 * asked} - {0}
    return sorted({asked, *(size for size in sizes if enough_for(rows, uncut.ranks, size))})


def lengths(histogram: LengthHistogram, cut: EvenCut) -> list[int]:
    """The lengths to cut at, ascending; the last is that of no cut."""

    def shortest(lost: float) -> int:
        """That cuts off at most `lost` of the events."""
        within = range(histogram.longest)
        return bisect.bisect_left(within, True, lo=1, key=lambda length: 1.0 - histogram.kept_share(length) <= lost)

    return sorted({*map(shortest, _LOST), cut.max_length, histogram.longest})
