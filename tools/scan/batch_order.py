"""Which rows make a global batch: as the loader deals them, in order or shuffled; or by time. Arrays in, arrays out.

Letters: N rows in memory, W ranks, B samples of a rank, G = W * B. A run is a stretch of consecutive row
groups. Both batches of a pair come from one run.
"""

import base64
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsdata.order.deal import epoch_streams, window_order

DEALT = ("file", "shuffled")  # that a loader has
ORDERS = (*DEALT, "time")
WINDOW = 4  # row groups that the loader shuffles together, if it is not told otherwise
_STREAK = 4  # consecutive pairs; they need one batch more than that
_LONGEST = 64  # pairs of a streak if all pairs are counted
_KEPT = 4  # numbers of ranks whose rows are kept in order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsInOrder:
    """How long the rows of a data set are, as they lie in its files: what lengths of batches are dealt from.

    Attributes:
        units: rows of every row group, by run, N in all.
        lengths: list column -> uint32 [N].
    """

    units: tuple[tuple[int, ...], ...]
    lengths: Mapping[str, np.ndarray]

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document: one to two bytes a row."""
        packed = {name: zlib.compress(of.astype("<u4").tobytes()) for name, of in self.lengths.items()}
        text = {name: base64.b64encode(of).decode() for name, of in packed.items()}
        return {"units": [list(run) for run in self.units], "lengths": text}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "RowsInOrder":
        """What `to_dict` made. Raises ValueError where it is damaged."""
        units = tuple(tuple(run) for run in document["units"])
        rows = sum(map(sum, units))
        found = {}
        for name, text in document["lengths"].items():
            try:
                found[name] = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4")
            except (ValueError, zlib.error) as error:
                raise ValueError(f"the lengths of {name} are damaged: {error}") from error
            if len(found[name]) != rows:
                raise ValueError(f"the lengths of {name} are damaged: {len(found[name]):,} rows instead of {rows:,}")
        return cls(units=units, lengths=found)


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


class Streak(NamedTuple):
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
        self._runs = {"file": units, "shuffled": [[rows for run in units for rows in run]]}
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

        return Batches(steps=tuple(sum(run) // ranks // batch_size for run in self._runs[order]), rows=rows)

    def _dealt(self, order: str, ranks: int) -> list[list[np.ndarray]]:
        """For each run and each rank the rows that a loader gives it in an epoch, in order."""
        found, first, seed, shuffle = [], 0, self._seed, order == "shuffled"
        for run in self._runs[order]:
            rows = np.array([each for each in run if each], np.int64)
            begins = first + np.cumsum(rows) - rows
            first += int(rows.sum())
            of_ranks = []
            for stream in epoch_streams(
                rows, world_size=ranks, shuffle=shuffle, shuffle_window=WINDOW, seed=seed, epoch=0
            ):
                parts = [np.empty(0, np.int64)]
                for window in stream:
                    some = np.concatenate([np.arange(one.start, one.stop) + begins[one.unit] for one in window.pieces])
                    some = some[window_order(window, seed=seed, epoch=0)] if shuffle else some
                    parts.append(some[window.start : window.stop])
                of_ranks.append(np.concatenate(parts))
            found.append(of_ranks)
        return found


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
            Streak(run, first, min(_LONGEST, steps - 1 - first) + 1)
            for run, steps in enumerate(batches.steps)
            for first in range(0, steps - 1, _LONGEST)
        ]
    of_run = np.maximum(np.array(batches.steps) - 1, 0)
    ends = of_run.cumsum()  # of runs, in pairs
    number = -(-pairs // _STREAK)
    chosen, passed = [], 0
    for index in range(number):
        size = pairs // number + (index < pairs % number)
        pair = passed + (available - pairs) * index // number
        run = int(np.searchsorted(ends, pair, side="right"))
        first = int(pair - ends[run] + of_run[run])
        chosen.append(Streak(run, first, min(size, batches.steps[run] - 1 - first) + 1))
        passed += size
    return chosen
