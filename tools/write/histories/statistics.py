"""Counts what is in a table while it is made: lengths, times, ties, and events that lie in the future."""

import datetime
import time
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.scan.histogram import LengthHistogram

_TICKS = {"days": 1 / 86_400, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second
_EPOCH_FROM, _EPOCH_TO = 10**8, 10**10  # seconds: from 1973 to 2286, so that no number fits two units


class Statistics:
    """The counts of a table, part by part. Events later than the time of its construction lie in the future."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._now_s = time.time()
        self._units = [unit] if (unit := _unit(kind)) else ["s", "ms", "us", "ns"]
        self._lengths: list[LengthHistogram] = []
        self._ranges: list[tuple[int, int]] = []
        self._ties = 0
        self._fits = dict.fromkeys(self._units, 0)
        self._later = dict.fromkeys(self._units, 0)

    def add(self, times: np.ndarray, starts: np.ndarray) -> None:
        """Count the events of one part.

        times: of its N events, history after history, as they are stored. starts: int64[U + 1], the first event of
        every history, and N.
        """
        self._lengths.append(LengthHistogram.of(np.diff(starts)))
        if len(times) == 0:
            return
        first, last = int(times.min()), int(times.max())
        self._ranges.append((first, last))
        same = times[1:] == times[:-1]
        same[starts[1:-1] - 1] = False  # the last event of a history, against the first of the next
        self._ties += int(np.count_nonzero(same))
        for unit in self._units:
            start, stop, now = (int(limit * _TICKS[unit]) for limit in (_EPOCH_FROM, _EPOCH_TO, self._now_s))
            if last >= start and first < stop:
                self._fits[unit] += int(np.count_nonzero((times >= start) & (times < stop)))
            if last > now:
                self._later[unit] += int(np.count_nonzero(times > now))

    def document(self) -> dict[str, Any]:
        """What was counted.

        Keys:
            lengths: `mean`, `p50`, `p99`, `max`.
            time: `first`, `last` as stored, and as ISO texts in UTC if a `unit` is known.
            ties: events whose time is that of the event before them in their history.
            future: events later than now; None if the unit of the time is not known.
        """
        lengths = LengthHistogram.merged(self._lengths)
        unit = self._unit(lengths.events)
        first = min((first for first, _ in self._ranges), default=None)
        last = max((last for _, last in self._ranges), default=None)
        return {
            "events": lengths.events,
            "users": lengths.rows,
            "lengths": {
                "mean": lengths.mean,
                "p50": lengths.quantile(0.5),
                "p99": lengths.quantile(0.99),
                "max": lengths.longest,
            },
            "time": {
                "type": str(self._kind),
                "unit": unit,
                "first": first,
                "last": last,
                "first_utc": _iso(first, unit),
                "last_utc": _iso(last, unit),
            },
            "ties": {"events": self._ties, "share": self._ties / max(lengths.events, 1)},
            "future": None if unit is None else self._later[unit],
        }

    def _unit(self, events: int) -> str | None:
        """The unit of the type; for integers the unit in which most times are an epoch of our days."""
        unit = max(self._units, key=lambda one: self._fits[one])
        return unit if len(self._units) == 1 or self._fits[unit] > events / 2 else None


def _unit(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return str(kind.unit)
    if pa.types.is_date32(kind):
        return "days"
    return "ms" if pa.types.is_date64(kind) else None


def _iso(value: int | None, unit: str | None) -> str | None:
    if value is None or unit is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(value / _TICKS[unit], datetime.UTC)
    except (ValueError, OverflowError, OSError):  # before the year 1 or after 9999
        return None
    return at.isoformat(timespec="seconds")
