"""AllUnits of several sources: what one thread decodes at once, and the order of rows inside.

`sequential` makes every row group a unit. `weighted` and `time` merge the sources row by row: rows are ordered by a
key (a row's place in its source divided by the source's weight; or its time), ties by source, and each source keeps
its own order. A merged unit is a contiguous range of every source, so the merge itself can wait until the unit is
decoded, and planning needs no more than the keys at a few cuts.

Sources are given by the rows of their row groups, int64 [groups] each. AllUnits are kept in arrays, as there may be
millions. Letters: S sources, C candidate cuts, U units, R ranges of all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np

Mix = Literal["sequential", "weighted", "time"]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of row group `group` of source `source`; `first` is the source's row number of row `start`."""

    source: int
    group: int
    start: int
    stop: int
    first: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Unit:
    """Ranges in order of source and row group; a merged unit has more than one."""

    ranges: tuple[RowRange, ...]

    @property
    def rows(self) -> int:
        return sum(row_range.rows for row_range in self.ranges)


class AllUnits(Sequence[Unit]):
    """AllUnits in arrays; a `Unit` is made when somebody asks for one.

    Attributes:
        row_counts: int64 [U].
    """

    def __init__(self, ranges: np.ndarray, ends: np.ndarray) -> None:
        """ranges: int64 [5, R], the attributes of `RowRange`; ends: int64 [U], the ranges of each unit end there."""
        self._source = ranges[0].astype(np.int32)
        self._group = ranges[1].astype(np.int32)
        self._start, self._stop, self._first = ranges[2:]
        self._ends = ends
        rows = np.concatenate([[0], np.cumsum(self._stop - self._start)])
        self.row_counts = np.diff(rows[np.concatenate([[0], ends])])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Unit:  # type: ignore[override]  # no slices
        number = range(len(self))[index]
        here = slice(self._ends[number - 1] if number else 0, self._ends[number])
        columns = (of[here].tolist() for of in (self._source, self._group, self._start, self._stop, self._first))
        return Unit(tuple(RowRange(*of) for of in zip(*columns, strict=True)))


Keys = Callable[[int, int], np.ndarray]
"""(source, group) -> the sort keys of the group's rows, in row order."""


def sequential_units(sources: Sequence[np.ndarray]) -> AllUnits:
    """One unit per row group, source after source."""
    columns = [np.empty((5, 0), np.int64)]
    for source, rows in enumerate(sources):
        zeros = np.zeros_like(rows)
        columns.append(np.stack([zeros + source, np.arange(len(rows)), zeros, rows, _starts(rows)[:-1]]))
    ranges = np.concatenate(columns, axis=1)
    return AllUnits(ranges, np.arange(1, ranges.shape[1] + 1))


def weighted_keys(sources: Sequence[np.ndarray], weights: Sequence[float]) -> Keys:
    """Keys under which source s has a share of weight_s in every stretch, until it is exhausted."""
    starts = [_starts(rows) for rows in sources]

    def keys(source: int, group: int) -> np.ndarray:
        rows = np.arange(starts[source][group], starts[source][group + 1])
        return (rows + 0.5) / weights[source]

    return keys


def merged_units(sources: Sequence[np.ndarray], keys: Keys) -> AllUnits:
    """AllUnits of one row group per source or a little more, whose order is the merge of all sources by `keys`.

    Calls `keys` twice for every row group, one row group at a time.
    """
    cuts = _cuts(sources, keys)
    size = sum(int(rows.max(initial=0)) for rows in sources)
    starts = [_starts(rows) for rows in sources]
    ranges: list[RowRange] = []
    ends = []
    begin = np.zeros(len(sources), np.int64)
    for cut in cuts:
        if (cut - begin).sum() >= size or cut is cuts[-1]:
            ranges += _ranges(starts, begin, cut)
            ends.append(len(ranges))
            begin = cut
    columns = np.array([astuple(each) for each in ranges], np.int64).reshape(-1, 5).T
    return AllUnits(columns, np.unique([end for end in ends if end]).astype(np.int64))


def merge_order(unit: Unit, keys: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [rows]: positions in the concatenated ranges, in merged order; `keys[r]` are those of range r.

    The k-way merge that always takes the smallest head is a stable sort by every source's running maximum.
    """
    running: list[np.ndarray] = []
    for position, (row_range, range_keys) in enumerate(zip(unit.ranges, keys, strict=True)):
        continued = position > 0 and unit.ranges[position - 1].source == row_range.source
        floor = running[-1][-1:] if continued else range_keys[:0]
        running.append(np.maximum.accumulate(np.concatenate([floor, range_keys]))[len(floor) :])
    return np.argsort(np.concatenate(running), kind="stable")


def _cuts(sources: Sequence[np.ndarray], keys: Keys) -> list[np.ndarray]:
    """int64 [S] each, increasing: rows of every source that come before the end of some row group."""
    ends = [_running_ends(keys, source, len(rows)) for source, rows in enumerate(sources)]
    at = [(key, source, group) for source, of in enumerate(ends) for group, key in enumerate(of)]
    at.sort()
    if not at:
        return []
    cut_keys = np.array([key for key, _, _ in at])
    cut_source = np.array([source for _, source, _ in at])
    cut_group = np.array([group for _, _, group in at])
    counts = np.zeros((len(at), len(sources)), np.int64)
    for source, rows in enumerate(sources):
        floor = None
        for group in range(len(rows)):
            of = keys(source, group)
            of = np.maximum.accumulate(of if floor is None else np.maximum(of, floor))
            floor = of[-1]
            inside = slice(np.searchsorted(cut_keys, of[0], "left"), np.searchsorted(cut_keys, of[-1], "right"))
            ties = source < cut_source[inside]
            counts[inside, source] += np.where(
                ties, np.searchsorted(of, cut_keys[inside], "right"), np.searchsorted(of, cut_keys[inside], "left")
            )
            counts[inside.stop :, source] += len(of)
        own = cut_source == source
        counts[own, source] = _starts(rows)[cut_group[own] + 1]
    return list(counts)


def _starts(rows: np.ndarray) -> np.ndarray:
    """int64 [groups + 1]: the source's row number at which each group starts, and its end."""
    return np.concatenate([[0], np.cumsum(rows)])


def _running_ends(keys: Keys, source: int, groups: int) -> np.ndarray:
    """The largest key up to the end of every row group."""
    return np.maximum.accumulate([keys(source, group).max() for group in range(groups)]) if groups else np.empty(0)


def _ranges(starts: Sequence[np.ndarray], begin: np.ndarray, end: np.ndarray) -> list[RowRange]:
    """The row groups' rows between two cuts."""
    ranges = []
    for source, of in enumerate(starts):
        group = int(np.searchsorted(of, begin[source], "right")) - 1
        at = int(begin[source])
        while at < end[source]:
            stop = min(int(of[group + 1]), int(end[source]))
            if at < stop:
                ranges.append(RowRange(source, group, at - int(of[group]), stop - int(of[group]), at))
            at, group = stop, group + 1
    return ranges
