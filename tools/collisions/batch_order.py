"""Decides which rows make a global batch: in file order, shuffled, or by time. Arrays in, arrays out.

Letters: N rows in memory, W ranks, B samples of a rank, G = W * B. A run is a stretch of consecutive row
groups. Both batches of a pair come from one run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.order.deal import deal, permutation

ORDERS = ("file", "shuffled", "time")
_STREAK = 4  # consecutive pairs; they need one batch more than that
_LONGEST = 64  # pairs of a streak if all pairs are counted


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
    """Batches of the same rows in different orders. Each order is made once.

    units: rows of every row group, by run; time: int64[N]; known: bool[N], as of `by_time`.
    """

    def __init__(self, units: Sequence[Sequence[int]], time: np.ndarray, known: np.ndarray, *, seed: int) -> None:
        self._units = units
        self._time, self._known = time, known
        self._seed = seed
        self._ordered: dict[str, list[np.ndarray]] = {}

    def batches(self, order: str, *, ranks: int, batch_size: int) -> Batches:
        """The batches of one of `ORDERS`."""
        if order == "file":
            return in_file_order(self._units, ranks=ranks, batch_size=batch_size)
        if order not in self._ordered:
            runs = [sum(run) for run in self._units]
            self._ordered[order] = (
                shuffled(sum(runs), self._seed) if order == "shuffled" else by_time(self._time, self._known, runs)
            )
        return sliced(self._ordered[order], ranks * batch_size)


def in_file_order(units: Sequence[Sequence[int]], *, ranks: int, batch_size: int) -> Batches:
    """The batches of a loader that does not shuffle.

    It deals row groups to ranks, and each rank reads its own in order.

    units: rows of every row group, by run.
    """
    streams, first = [], 0
    for run in units:
        begins = first + np.cumsum([0, *run])
        hands = deal(np.asarray(run, np.int64), ranks)
        where = [(begins[hand.span] + hand.start, hand.stop - hand.start) for hand in hands]
        streams.append([list(zip(starts.tolist(), counts.tolist(), strict=True)) for starts, counts in where])
        first = int(begins[-1])
    steps = tuple(min(sum(rows for _, rows in hand) for hand in stream) // batch_size for stream in streams)

    def rows(run: int, step: int) -> np.ndarray:
        begin = step * batch_size
        return np.concatenate([_stretch(hand, begin, begin + batch_size) for hand in streams[run]])

    return Batches(steps=steps, rows=rows)


def shuffled(count: int, seed: int) -> list[np.ndarray]:
    """All rows in one random order, for `sliced`."""
    return [permutation(count, seed)]


def by_time(time: np.ndarray, known: np.ndarray, runs: Sequence[int]) -> list[np.ndarray]:
    """The rows of each run sorted by time, for `sliced`.

    Equal times keep file order; rows without a time are left out. time: int64[N]; known: bool[N]; runs: rows
    of each.
    """
    ordered, first = [], 0
    for count in runs:
        places = first + np.flatnonzero(known[first : first + count])
        ordered.append(places[np.argsort(time[places], kind="stable")])
        first += count
    return ordered


def sliced(ordered: Sequence[np.ndarray], size: int) -> Batches:
    """Global batches of `size` rows one after another, by run."""
    return Batches(
        steps=tuple(len(rows) // size for rows in ordered),
        rows=lambda run, step: ordered[run][step * size : (step + 1) * size],
    )


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


def _stretch(hand: Sequence[tuple[int, int]], begin: int, end: int) -> np.ndarray:
    """Rows begin to end of what a rank reads; `hand` lists (first row, rows)."""
    parts, passed = [], 0
    for first, rows in hand:
        low, high = max(begin - passed, 0), min(end - passed, rows)
        if low < high:
            parts.append(np.arange(first + low, first + high))
        passed += rows
        if passed >= end:
            break
    return np.concatenate(parts)


def _locate(steps: Sequence[int], pair: int) -> tuple[int, int]:
    """The run and first batch of a pair, counted over all runs."""
    for run, count in enumerate(steps):
        if pair < count - 1:
            return run, pair
        pair -= max(count - 1, 0)
    raise AssertionError(f"pair {pair} of {list(steps)}")
