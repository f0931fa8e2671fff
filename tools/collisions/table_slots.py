"""What ids do in an embedding table of Z rows: how many share a row, by modulo hashing and by MPZCH.

MPZCH is multi-probe zero collision hashing (arXiv 2602.17050; `HashZchManagedCollisionModule` of TorchRec), whose rules
are fscomm's `assign_slots`. Ids are hashed first: ids of a data set are often 1 to N, which modulo hashing would spread
evenly as no hash does.

An id *shares* its row if at its last occurrence it was given a row that another id was given at its own last
occurrence, and the row was not taken from its owner between the two. By modulo hashing, and without a TTL, no row is
ever taken: an id then shares its row if another id has it, too. Of the ids that share one row, all but one have none
*of their own*. By occurrence, every id counts as often as it occurs.

All that happens to an id in an hour happens at its first occurrence in this hour: what was used in the hour has not
expired, and a row that has an owner never becomes free. So an id is looked up once an hour, and without a TTL once.

N rows of the data, U distinct ids, Z rows of the table. An id's *number* is its place among all ids by first
occurrence.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from freescale_tools.collisions.kernels import NO_NUMBER, ids_of_hour, number_ids
from freescale_tools.console.errors import UsageError
from fscomm.managed.zero_collision import EVICTED, FREE, assign_slots

PROBES = (8, 32, 128)
_MOST_PROBE = 4096
_MOST_ROWS = 1 << 30  # of a table, in memory with 8 bytes a row, and with a TTL with 20
_MOST_OCCURRENCES = 256 << 20  # stored once, histories of requests overlap and may have many more
_CHUNK = 1 << 16  # ids of a call: `assign_slots` takes arrays of arguments
_MOST_HOURS = 100 * 366 * 24
_SECONDS_PER_DAY = 86_400

Chunks = Callable[[], Iterator[tuple[int, np.ndarray]]]
"""Gives (hour, numbers of at most `_CHUNK` ids), anew for every table: the ids of an hour by first occurrence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTable:
    """What is asked of a table.

    Attributes:
        rows: Z.
        probes: rows that MPZCH looks at for an id, at most; one prediction for each.
        ttl: hours after its last occurrence at which the row of an id may be taken; None: never.

    Raises UsageError if a number is out of range.
    """

    rows: int
    probes: tuple[int, ...] = PROBES
    ttl: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= _MOST_ROWS:
            raise UsageError(
                f"--table-rows must be from 1 to {_MOST_ROWS:,}, got {self.rows:,}: give the rows of the embedding "
                "table, or of its part on one rank"
            )
        if wrong := [probe for probe in self.probes if not 1 <= probe <= _MOST_PROBE]:
            raise UsageError(
                f"--probe must be from 1 to {_MOST_PROBE:,}, got {wrong[0]:,}: it is the number of rows that an id "
                "looks at for one of its own"
            )
        if self.ttl is not None and self.ttl < 0:
            raise UsageError(f"--ttl must be 0 or more hours, got {self.ttl}: leave it out if ids never expire")


def predict_table(
    ids: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    *,
    distinct: int,
    asked: AskedTable,
    time: np.ndarray,
    known: np.ndarray,
    per_day: int,
    most_occurrences: int = _MOST_OCCURRENCES,
) -> dict[str, Any]:
    """The part of the document about the table.

    ids: uint32, all below `distinct`; row n of the data has ids[starts[n] : starts[n] + lengths[n]], int64 [N]. They
    count in the order of the rows, and with a TTL in the order of time, without rows that have none.
    time: int64 [N], known: bool [N], read with a TTL only. per_day: as of `hours_of`.

    Of more than `most_occurrences` ids every second, third ... row counts. Raises UsageError as `hours_of`, and if no
    row has a time.
    """
    rows, hours, ttl = np.arange(len(starts)), None, asked.ttl
    if ttl is not None:
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(time[rows], kind="stable")]
        if not len(rows):
            raise UsageError("--ttl needs times, and no row has one: name another column with --time")
    every = max(-(-int(lengths[rows].sum()) // most_occurrences), 1)
    rows = rows[::every]
    if ttl is not None:
        hours = hours_of(time[rows], per_day)
    numbers = np.full(distinct, NO_NUMBER, np.uint32)
    found, counts = np.empty(distinct, np.uint32), np.zeros(distinct, np.uint32)
    total = number_ids(ids, starts, lengths, rows, numbers, found, counts)
    hashed, counts = _hashed(found[:total]), counts[:total].copy()
    del found

    def chunks() -> Iterator[tuple[int, np.ndarray]]:
        if hours is None:
            for at in range(0, total, _CHUNK):
                yield 0, np.arange(at, min(at + _CHUNK, total), dtype=np.uint32)
            return
        last, seen = np.full(total, -1, np.int32), np.empty(total, np.uint32)
        cuts = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(rows)]
        for begin, end in itertools.pairwise(cuts):
            hour = int(hours[begin])
            some = ids_of_hour(ids, starts, lengths, rows[begin:end], numbers, hour, last, seen)
            for at in range(0, some, _CHUNK):
                yield hour, seen[at : min(at + _CHUNK, some)]

    occurrences = int(counts.sum(dtype=np.int64))
    return {
        "rows": asked.rows,
        "distinct": total,
        "occurrences": occurrences,
        "rows_per_id": asked.rows / total if total else None,
        "ttl": ttl,
        "hours": None if hours is None else int(hours[-1]) + 1,
        "without_time": 0 if hours is None else int(len(known) - known.sum()),
        "every": every,
        "ways": [
            _modulo(hashed, counts, asked.rows),
            *(_mpzch(hashed, counts, chunks, asked.rows, probe, ttl) for probe in asked.probes),
        ],
    }


def hours_of(time: np.ndarray, per_day: int) -> np.ndarray:
    """int64 [N]: whole hours since that of the first one. time: int64 [N], ascending.

    per_day: parts of a day in `time`; 0: plain integers, which are taken as seconds since 1970.

    Raises UsageError if the times span more than a hundred years: integers are then no seconds.
    """
    per_day = per_day or _SECONDS_PER_DAY
    hours = time // (per_day // 24) if per_day >= 24 else time * (24 // per_day)
    if int(hours[-1]) - int(hours[0]) > _MOST_HOURS:
        raise UsageError(
            f"the times of --time span {(int(hours[-1]) - int(hours[0])) / _MOST_HOURS * 100:,.0f} years. For --ttl, "
            "integers are seconds since 1970: give a column of seconds, timestamps or dates"
        )
    return hours - hours[0]


def _hashed(ids: np.ndarray) -> np.ndarray:
    """uint64 [U], another one for every uint32 [U] (finalizer of SplitMix64): never all ones, which means `FREE`."""
    x = ids.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def _modulo(hashed: np.ndarray, counts: np.ndarray, rows: int) -> dict[str, Any]:
    given = (hashed % np.uint64(rows)).view(np.int64)
    return {
        "max_probe": None,
        **_shares(given, counts),
        "occupancy": int(np.count_nonzero(np.bincount(given))) / rows,
        "evictions_per_million": None,
    }


def _mpzch(
    hashed: np.ndarray, counts: np.ndarray, chunks: Chunks, rows: int, probe: int, ttl: int | None
) -> dict[str, Any]:
    """A row that is taken from its owner becomes another one here: `tenures` has the number of each as it is now."""
    keys = hashed.view(np.int64)
    identities = np.full(rows, FREE, np.int64)
    expires = np.zeros(0 if ttl is None else rows, np.int32)
    tenures = np.arange(0 if ttl is None else rows)
    given, evictions = np.empty(len(keys), np.int64), 0
    sizes, starts, refused = np.full(_CHUNK, rows), np.zeros(_CHUNK, np.int64), np.empty(0, bool)
    slots, outcomes = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.uint8)
    expiries = np.zeros(_CHUNK, np.int32)
    for hour, some in chunks():
        n = len(some)
        expiries[:n] = hour + min(ttl or 0, _MOST_HOURS)
        assign_slots(
            keys[some], sizes[:n], starts[:n], probe, 0, refused, expiries[:n], hour, False, False,
            identities, expires, slots[:n], outcomes[:n],
        )  # fmt: skip
        if ttl is None:
            given[some] = slots[:n]
            continue
        # No id of this hour had a row that is taken in this hour: so first what is taken, then who has what.
        taken = slots[:n][outcomes[:n] == EVICTED]
        tenures[taken] = rows + evictions + np.arange(len(taken))
        evictions += len(taken)
        given[some] = tenures[slots[:n]]
    return {
        "max_probe": probe,
        **_shares(given, counts),
        "occupancy": int(np.count_nonzero(identities != FREE)) / rows,
        "evictions_per_million": None if ttl is None else 1e6 * evictions / max(int(counts.sum(dtype=np.int64)), 1),
    }


def _shares(given: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """given: int64 [U], the row of each id; counts: uint32 [U], occurrences."""
    users = np.bincount(given)
    shared = users[given] > 1
    return {
        "by_id": int(np.count_nonzero(shared)) / max(len(given), 1),
        "by_occurrence": int(counts[shared].sum(dtype=np.int64)) / max(int(counts.sum(dtype=np.int64)), 1),
        "without_own": (len(given) - int(np.count_nonzero(users))) / max(len(given), 1),
    }
