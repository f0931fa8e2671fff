"""Which rows make a global batch: as the loader deals them, in order or shuffled; or by time. Arrays in, arrays out.

Letters: N rows in memory, W ranks, B samples of a rank, G = W * B. A run is a stretch of consecutive row
groups. Both batches of a pair come from one run.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.order.deal import epoch_streams, window_order
from fsdata.order.stream import Stream

ORDERS = ("file", "shuffled", "time")
WINDOW = 4  # row groups that the loader shuffles together, if it is not told otherwise
_STREAK = 4  # consecutive pairs; they need one batch more than that
_LONGEST = 64  # pairs of a streak if all pairs are counted
_KEPT = 4  # numbers of ranks whose rows are kept in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Global batches of one order.

    Attributes:
        steps: how many there are in each run.
        rows: (run, step) -> int64[G], the rows rank by rank.
    """

    steps: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]

    @property
    def pairs(self) -> int:
        return sum(max(steps - 1, 0) for steps in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """Consecutive batches of a run, from batch `first`; n batches make n - 1 pairs."""

    run: int
    first: int
    batches: int


class Orders:
    """Batches of the same rows in different orders.

    Shuffled, all runs are one: the loader deals row groups that lie far from each other to one rank.

    units: rows of every row group, by run; time: int64[N]; known: bool[N], as of `by_time`.
    """

    def __init__(self, units: Sequence[Sequence[int]], time: np.ndarray, known: np.ndarray, *, seed: int) -> None:
        self._units = units
        self._seed = seed
        self._streams = functools.lru_cache(_KEPT)(self._dealt)
        self._by_time = functools.cache(lambda: by_time(time, known, [sum(run) for run in units]))

    def batches(self, order: str, *, ranks: int, batch_size: int) -> Batches:
        """The batches of one of `ORDERS`."""
        if order == "time":
            ordered, size = self._by_time(), ranks * batch_size
            steps = [len(rows) // size for rows in ordered]
            return Batches(steps=tuple(steps), rows=lambda run, step: ordered[run][step * size : (step + 1) * size])
        streams = functools.cache(lambda: self._streams(order, ranks))  # dealt when the first batch is wanted

        def rows(run: int, step: int) -> np.ndarray:
            return np.concatenate([of[step * batch_size : (step + 1) * batch_size] for of in streams()[run]])

        return Batches(steps=tuple(sum(run) // ranks // batch_size for run in self._runs(order)), rows=rows)

    def _runs(self, order: str) -> Sequence[Sequence[int]]:
        return self._units if order == "file" else [[rows for run in self._units for rows in run]]

    def _dealt(self, order: str, ranks: int) -> list[list[np.ndarray]]:
        """For each run and each rank the rows that a loader gives it in an epoch, in order."""
        found, first = [], 0
        for run in self._runs(order):
            rows = np.array([each for each in run if each], np.int64)
            begins = first + np.cumsum(rows) - rows
            shuffle, seed = order == "shuffled", self._seed
            streams = epoch_streams(rows, world_size=ranks, shuffle=shuffle, shuffle_window=WINDOW, seed=seed, epoch=0)
            found.append([_rows_of(stream, begins, seed if shuffle else None) for stream in streams])
            first += int(rows.sum())
        return found


def _rows_of(stream: Stream, begins: np.ndarray, seed: int | None) -> np.ndarray:
    """The rows of a stream, in order; begins: int64 [units], the first row of each. seed: that shuffles them."""
    found = [np.empty(0, np.int64)]
    for window in stream:
        parts = [np.arange(piece.start, piece.stop) + begins[piece.unit] for piece in window.pieces]
        rows = np.concatenate(parts)
        if seed is not None:
            rows = rows[window_order(window, seed=seed, epoch=0)]
        found.append(rows[window.start : window.stop])
    return np.concatenate(found)


def by_time(time: np.ndarray, known: np.ndarray, runs: Sequence[int]) -> list[np.ndarray]:
    """The rows of each run sorted by time.

    Equal times keep file order; rows without a time are left out. time: int64[N]; known: bool[N]; runs: rows
    of each.
    """
    ordered, first = [], 0
    for count in runs:
        places = first + np.flatnonzero(known[first : first + count])
        ordered.append(places[np.argsort(time[places], kind="stable")])
        first += count
    return ordered


def streaks(batches: Batches, pairs: int) -> list[Streak]:
    """Streaks with about `pairs` pairs in all, or with all pairs, spread evenly over the data."""
    available = batches.pairs
    if pairs >= available:
        return [
            Streak(run=run, first=first, batches=min(_LONGEST, steps - 1 - first) + 1)
            for run, steps in enumerate(batches.steps)
            for first in range(0, steps - 1, _LONGEST)
        ]
    number = -(-pairs // _STREAK)
    chosen, passed = [], 0
    for index in range(number):
        size = pairs // number + (index < pairs % number)
        run, first = _locate(batches.steps, passed + (available - pairs) * index // number)
        chosen.append(Streak(run=run, first=first, batches=min(size, batches.steps[run] - 1 - first) + 1))
        passed += size
    return chosen


def _locate(steps: Sequence[int], pair: int) -> tuple[int, int]:
    """The run and first batch of a pair, counted over all runs."""
    for run, count in enumerate(steps):
        if pair < count - 1:
            return run, pair
        pair -= max(count - 1, 0)
    raise AssertionError(f"pair {pair} of {list(steps)}")
