"""What stochastic length (`Sequence(sample=StochasticLength(alpha=...))`) costs and saves, beside plain truncation.

Three ways to shorten the histories of the same batches: cut at `max_length`, cut there and sampled, and cut so short
that as many events remain as in the sampled ones. Events are the expectation over the histogram of lengths. What ranks
wait and compute is simulated: each history of a step draws its length.
"""

import bisect
import dataclasses
from typing import Any

import numpy as np

from freescale_tools.model.batches import UNPACKED, Samples, Setting, deal_out
from freescale_tools.report import numbers as n
from freescale_tools.report.blocks import Column, Document, Table
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.sampling.stochastic_length import short_length, whole_probability
from fsdata.schema import StochasticLength

_TRUNCATED, _SAMPLED, _SHORT = "truncated", "sampled", "cut to as many"


def sampled_lengths(samples: Samples, setting: Setting, *, alpha: float, method: str) -> dict[str, Any]:
    """The `sampled` of a trade-off: alpha, `short`, the length of a shortened history, and three points.

    A point: `events`, expected mean of a row; `events_lost` and `rows_touched`, expected shares of the events and rows
    without any cut; straggler % and time lost, unbalanced and balanced by `method`; `compute`, the cost of all ranks by
    the cost model, as a share of that of the first point.
    """
    sample, histogram = StochasticLength(alpha=alpha), samples.histogram
    lengths = np.minimum(histogram.lengths, setting.max_length)
    whole = whole_probability(sample, setting.max_length, lengths)
    short = short_length(sample, setting.max_length)
    mean = float(histogram.counts @ (whole * lengths + (1 - whole) * short)) / histogram.rows
    touched = 1 - float(histogram.counts @ np.where(histogram.lengths > lengths, 0.0, whole)) / histogram.rows
    cut = _as_many(histogram, mean, setting.max_length)
    ways = [
        (_TRUNCATED, setting, histogram.clipped(setting.max_length).mean, None),
        (_SAMPLED, dataclasses.replace(setting, sample=sample), mean, touched),
        (_SHORT, dataclasses.replace(setting, max_length=cut), histogram.clipped(cut).mean, None),
    ]
    points: list[dict[str, Any]] = []
    compute: list[float] = []
    for way, one, events, rows_touched in ways:
        found = deal_out(samples, one, methods=(method,))
        waits = {name: found.waits(of) for name, of in (("none", UNPACKED), ("balanced", method))}
        compute.append(float(found.weight @ waits["none"].mean) / float(found.weight.sum()))
        points.append(
            {
                "way": way,
                "max_length": one.max_length,
                "events": events,
                "events_lost": 1 - events / histogram.mean,
                "rows_touched": histogram.longer_share(one.max_length) if rows_touched is None else rows_touched,
                "straggler": {name: of.straggler()[0] for name, of in waits.items()},
                "time_lost": {name: of.time_lost()[0] for name, of in waits.items()},
                "compute": compute[-1] / compute[0],
            }
        )
    return {"alpha": alpha, "short": short, "points": points}


def sampled_table(found: Document) -> Table:
    """The points, one per line."""
    columns = (
        Column("histories", n.TEXT, "way"),
        Column("longest", n.COUNT, "max_length"),
        Column("mean events", n.COUNT, lambda one: round(one["events"])),
        Column("events lost", n.SHARE, "events_lost"),
        Column("straggler", n.SHARE, "straggler.none"),
        Column("balanced", n.SHARE, "straggler.balanced"),
        Column("compute", n.SHARE, "compute"),
    )
    most = found["points"][0]["max_length"]
    note = (
        f"sampled: Sequence(max_length={most}, sample=StochasticLength(alpha={found['alpha']})). In each epoch, a "
        f"history of n of at most {n.count(most)} events stays whole with probability "
        f"min(1, {most}^{found['alpha']} / n^2), and else has {n.count(found['short'])} events. Its events are those "
        "of a mean epoch. compute: of all samples by the cost model, as a share of that of the first line."
    )
    return Table(title="Stochastic length", columns=columns, rows=found["points"], notes=[note])


def _as_many(histogram: LengthHistogram, mean: float, longest: int) -> int:
    """The least length at which truncation leaves at least `mean` events of a row, up to `longest`."""
    lengths = range(longest + 1)
    return min(bisect.bisect_left(lengths, mean, lo=1, key=lambda length: histogram.clipped(length).mean), longest)
