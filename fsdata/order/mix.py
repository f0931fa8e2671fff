"""Divides the rows of several sources into units (each is decoded by one thread at once) and orders the rows inside.

`sequential` makes every row group a unit. `weighted` and `time` merge the sources row by row: rows are ordered by a
key (a row's number in its source divided by the source's weight; or its time), ties by source, and each source keeps
its own order. A merged unit is a contiguous range of every source. Its rows are therefore merged only when it is
decoded, and planning stores only counts at a few cuts.

A source is described by the row counts of its row groups, int64 [groups]. Letters: S sources, C candidate cuts,
U units, R ranges of all units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Mix = Literal["sequential", "weighted", "time"]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of row group `group` of source `source`; row `start` has the number `first` in the source."""

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
    """All units in arrays, as there may be millions; indexing creates a `Unit`.

    Attributes:
        row_counts: int64 [U].
    """

    def __init__(self, ranges: np.ndarray, ends: np.ndarray) -> None:
        """ranges: int64 [5, R], the attributes of `RowRange`; ends: int64 [U], unit u has the ranges up to ends[u]."""
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
        own = slice(self._ends[number - 1] if number else 0, self._ends[number])
        columns = (array[own].tolist() for array in (self._source, self._group, self._start, self._stop, self._first))
        return Unit(tuple(RowRange(*values) for values in zip(*columns, strict=True)))

    def ranges_of(self, numbers: np.ndarray) -> np.ndarray:
        """int64 [4, R]: source, group, start and stop of the ranges of these units, one unit after the other."""
        ends = np.concatenate([[0], self._ends])
        counts = ends[numbers + 1] - ends[numbers]
        before = np.cumsum(counts) - counts
        own = np.repeat(ends[numbers] - before, counts) + np.arange(int(counts.sum()))
        columns = (self._source, self._group, self._start, self._stop)
        return np.stack([column[own].astype(np.int64) for column in columns])


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
    """Keys by which source s gets a share proportional to weight_s in every stretch, until it is exhausted."""
    starts = [_starts(rows) for rows in sources]

    def keys(source: int, group: int) -> np.ndarray:
        rows = np.arange(starts[source][group], starts[source][group + 1])
        # + 0.5: row 0 of a light source comes after the first rows of heavy ones, not before them.
        return (rows + 0.5) / weights[source]

    return keys


def merged_units(sources: Sequence[np.ndarray], keys: Keys) -> AllUnits:
    """Units of about one row group per source, whose order is the merge of all sources by `keys`.

    Calls `keys` twice for every row group, so that the keys of one row group at a time are in memory.
    """
    cuts = _cuts(sources, keys)
    size = sum(int(rows.max(initial=0)) for rows in sources)  # rows of a unit: the largest row group of every source
    starts = [_starts(rows) for rows in sources]
    ranges: list[RowRange] = []
    ends = []
    begin = np.zeros(len(sources), np.int64)
    for cut in cuts:
        if (cut - begin).sum() >= size or cut is cuts[-1]:
            ranges += _ranges(starts, begin, cut)
            ends.append(len(ranges))
            begin = cut
    # Not `astuple`, which copies every number: there may be millions.
    rows = [(each.source, each.group, each.start, each.stop, each.first) for each in ranges]
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    # Cuts without rows between them would be units without ranges: they repeat an end, or end at 0.
    return AllUnits(columns, np.unique([end for end in ends if end]).astype(np.int64))


def merge_order(unit: Unit, keys: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [rows]: positions in the concatenated ranges, in merged order; `keys[r]` are those of range r.

    A k-way merge that always takes the smallest head equals a stable sort by the running maximum of every source: a
    row whose key is smaller than an earlier one of its source (times out of order) still comes after it.
    """
    running: list[np.ndarray] = []
    for position, (row_range, range_keys) in enumerate(zip(unit.ranges, keys, strict=True)):
        # A range of the next row group of the same source continues the maximum of the range before.
        continued = position > 0 and unit.ranges[position - 1].source == row_range.source
        floor = running[-1][-1:] if continued else range_keys[:0]
        running.append(np.maximum.accumulate(np.concatenate([floor, range_keys]))[len(floor) :])
    return np.argsort(np.concatenate(running), kind="stable")


def _cuts(sources: Sequence[np.ndarray], keys: Keys) -> list[np.ndarray]:
    """C cuts in merged order, one at the end of every row group; each is int64 [S], rows of each source before it."""
    last_keys = [_running_ends(keys, source, len(rows)) for source, rows in enumerate(sources)]
    cuts = [(key, source, group) for source, of in enumerate(last_keys) for group, key in enumerate(of)]
    cuts.sort()
    if not cuts:
        return []
    cut_keys = np.array([key for key, _, _ in cuts])
    cut_source = np.array([source for _, source, _ in cuts])
    cut_group = np.array([group for _, _, group in cuts])
    counts = np.zeros((len(cuts), len(sources)), np.int64)
    for source, rows in enumerate(sources):
        floor = None
        whole = np.zeros(len(cuts) + 1, np.int64)  # rows of the groups that are whole before a cut and all after it
        for group in range(len(rows)):
            running = keys(source, group)
            running = np.maximum.accumulate(running if floor is None else np.maximum(running, floor))
            floor = running[-1]
            # Cuts before this group count none of its rows, cuts after it all; only those between are searched.
            first = np.searchsorted(cut_keys, running[0], "left")
            inside = slice(first, np.searchsorted(cut_keys, running[-1], "right"))
            # Of rows with the key of the cut, those of sources before the cut's source precede it.
            ties = source < cut_source[inside]
            at_cut = cut_keys[inside]
            counts[inside, source] += np.where(
                ties, np.searchsorted(running, at_cut, "right"), np.searchsorted(running, at_cut, "left")
            )
            whole[inside.stop] += len(running)
        counts[:, source] += np.cumsum(whole)[:-1]
        # In the cut's own source rows of an equal key may follow the group's end: its count is exact by definition.
        own = cut_source == source
        counts[own, source] = _starts(rows)[cut_group[own] + 1]
    return list(counts)


def _starts(rows: np.ndarray) -> np.ndarray:
    """int64 [groups + 1]: the row number in the source at which each group starts, and the source's end."""
    return np.concatenate([[0], np.cumsum(rows)])


def _running_ends(keys: Keys, source: int, groups: int) -> np.ndarray:
    """The largest key up to the end of every row group."""
    return np.maximum.accumulate([keys(source, group).max() for group in range(groups)]) if groups else np.empty(0)


def _ranges(starts: Sequence[np.ndarray], begin: np.ndarray, end: np.ndarray) -> list[RowRange]:
    """The ranges of all row groups between two cuts."""
    ranges = []
    for source, group_starts in enumerate(starts):
        group = int(np.searchsorted(group_starts, begin[source], "right")) - 1
        row = int(begin[source])
        while row < end[source]:
            first, stop = int(group_starts[group]), min(int(group_starts[group + 1]), int(end[source]))
            if row < stop:  # not so in a row group without rows
                ranges.append(RowRange(source, group, row - first, stop - first, row))
            row, group = stop, group + 1
    return ranges
