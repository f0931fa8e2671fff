"""The rows of global batches: in file order or shuffled, as the loader deals them, or by time (pure planning).

Letters: N rows in memory, W ranks, B samples of a rank, G = W * B. A run is a number of consecutive row groups. A pair
are two consecutive batches of one run.
"""

import base64
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsdata.order.deal import epoch_streams, window_order

DEALT = ("file", "shuffled")  # the orders of a loader
ORDERS = (*DEALT, "time")
WINDOW = 4  # row groups that the loader shuffles together by default
_STREAK = 4  # consecutive pairs; they need one batch more than that
_LONGEST = 64  # pairs of a streak if all pairs are counted
_CACHED = 4  # numbers of ranks for which the dealt rows are cached


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsInOrder:
    """The lengths of the rows of a data set in the order of its files, from which batches are dealt.

    Attributes:
        units: rows of every row group, by run, N in total.
        lengths: list column -> uint32 [N].
    """

    units: tuple[tuple[int, ...], ...]
    lengths: Mapping[str, np.ndarray]

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document: one to two bytes a row."""
        packed = {name: zlib.compress(lengths.astype("<u4").tobytes()) for name, lengths in self.lengths.items()}
        text = {name: base64.b64encode(compressed).decode() for name, compressed in packed.items()}
        return {"units": [list(run) for run in self.units], "lengths": text}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "RowsInOrder":
        """From the result of `to_dict`. Raises ValueError if it is damaged."""
        units = tuple(tuple(run) for run in document["units"])
        rows = sum(map(sum, units))
        by_column = {}
        for name, text in document["lengths"].items():
            try:
                lengths = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4")
            except (ValueError, zlib.error) as error:
                raise ValueError(f"the lengths of {name} are damaged: {error}") from error
            if len(lengths) != rows:
                raise ValueError(f"the lengths of {name} are damaged: {len(lengths):,} rows instead of {rows:,}")
            by_column[name] = lengths
        return cls(units=units, lengths=by_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Global batches of one order.

    Attributes:
        steps: number of batches of each run.
        rows: (run, step) -> int64[G], the rows of one batch, rank by rank.
    """

    steps: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]

    @property
    def pairs(self) -> int:
        return sum(max(steps - 1, 0) for steps in self.steps)


class Streak(NamedTuple):
    """Consecutive batches of a run, from batch `first` on; n batches are n - 1 pairs."""

    run: int
    first: int
    batches: int


class Orders:
    """Batches of the same rows in different orders.

    When shuffled, all runs count as one, because the loader deals distant row groups to one rank.

    units: rows of every row group, by run; time: int64[N] and has_time: bool[N], see `by_time`.
    """

    def __init__(self, units: Sequence[Sequence[int]], time: np.ndarray, has_time: np.ndarray, *, seed: int) -> None:
        self._runs = {"file": units, "shuffled": [[rows for run in units for rows in run]]}
        self._seed = seed
        self._streams = functools.lru_cache(_CACHED)(self._dealt)
        self._by_time = functools.cache(lambda: by_time(time, has_time, [sum(run) for run in units]))

    def batches(self, order: str, *, ranks: int, batch_size: int) -> Batches:
        """The batches of one of `ORDERS`."""
        if order == "time":
            ordered, size = self._by_time(), ranks * batch_size
            steps = [len(rows) // size for rows in ordered]
            return Batches(steps=tuple(steps), rows=lambda run, step: ordered[run][step * size : (step + 1) * size])
        streams = functools.cache(lambda: self._streams(order, ranks))  # dealt when the first batch is needed

        def rows(run: int, step: int) -> np.ndarray:
            return np.concatenate([stream[step * batch_size : (step + 1) * batch_size] for stream in streams()[run]])

        return Batches(steps=tuple(sum(run) // ranks // batch_size for run in self._runs[order]), rows=rows)

    def _dealt(self, order: str, ranks: int) -> list[list[np.ndarray]]:
        """For each run and each rank the rows that a loader deals to it in an epoch, in order."""
        dealt, first, seed, shuffle = [], 0, self._seed, order == "shuffled"
        for run in self._runs[order]:
            rows = np.array([count for count in run if count], np.int64)
            begins = first + np.cumsum(rows) - rows
            first += int(rows.sum())
            by_rank = []
            for stream in epoch_streams(
                rows, world_size=ranks, shuffle=shuffle, shuffle_window=WINDOW, seed=seed, epoch=0
            ):
                chunks = [np.empty(0, np.int64)]
                for window in stream:
                    in_window = np.concatenate(
                        [np.arange(piece.start, piece.stop) + begins[piece.unit] for piece in window.pieces]
                    )
                    if shuffle:
                        in_window = in_window[window_order(window, seed=seed, epoch=0)]
                    chunks.append(in_window[window.start : window.stop])
                by_rank.append(np.concatenate(chunks))
            dealt.append(by_rank)
        return dealt


def by_time(time: np.ndarray, has_time: np.ndarray, runs: Sequence[int]) -> list[np.ndarray]:
    """The rows of each run, sorted by time.

    Equal times keep file order; rows without a time are skipped. time: int64[N]; has_time: bool[N]; runs: rows of each.
    """
    ordered, first = [], 0
    for count in runs:
        rows = first + np.flatnonzero(has_time[first : first + count])
        ordered.append(rows[np.argsort(time[rows], kind="stable")])
        first += count
    return ordered


def streaks(batches: Batches, pairs: int) -> list[Streak]:
    """Streaks with `pairs` pairs in total, or with all pairs if there are fewer, spread evenly over the data."""
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
    selected, selected_pairs = [], 0
    for index in range(number):
        size = pairs // number + (index < pairs % number)
        # Gaps of equal size: this one's share of the pairs that are not selected is before it.
        pair = selected_pairs + (available - pairs) * index // number
        run = int(np.searchsorted(ends, pair, side="right"))
        first = int(pair - ends[run] + of_run[run])
        # A streak ends with its run, so the total may be a few pairs smaller.
        selected.append(Streak(run, first, min(size, batches.steps[run] - 1 - first) + 1))
        selected_pairs += size
    return selected
