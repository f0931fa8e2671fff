"""Units of several sources: what one thread decodes at once, and the order of rows inside.

`sequential` makes every row group a unit. `weighted` and `time` merge the sources row by row: rows are ordered by a
key (a row's place in its source divided by the source's weight; or its time), ties by source, and each source keeps
its own order. A merged unit is a contiguous range of every source, so the merge itself can wait until the unit is
decoded, and planning needs no more than the keys at a few cuts.

Letters: S sources, C candidate cuts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Mix = Literal["sequential", "weighted", "time"]


class HasRows(Protocol):
    """A row group: what the planning needs to know of it."""

    @property
    def rows(self) -> int: ...


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


Keys = Callable[[int, int], np.ndarray]
"""(source, group) -> the sort keys of the group's rows, in row order."""


def sequential_units(sources: Sequence[Sequence[HasRows]]) -> list[Unit]:
    """One unit per row group, source after source."""
    units = []
    for source, groups in enumerate(sources):
        first = 0
        for index, group in enumerate(groups):
            units.append(Unit((RowRange(source, index, 0, group.rows, first),)))
            first += group.rows
    return units


def weighted_keys(sources: Sequence[Sequence[HasRows]], weights: Sequence[float]) -> Keys:
    """Keys under which source s has a share of weight_s in every stretch, until it is exhausted."""
    starts = [_starts(groups) for groups in sources]

    def keys(source: int, group: int) -> np.ndarray:
        rows = np.arange(starts[source][group], starts[source][group + 1])
        return (rows + 0.5) / weights[source]

    return keys


def merged_units(sources: Sequence[Sequence[HasRows]], keys: Keys) -> list[Unit]:
    """Units of one row group per source or a little more, whose order is the merge of all sources by `keys`.

    Calls `keys` twice for every row group, one row group at a time.
    """
    cuts = _cuts(sources, keys)
    size = sum(max((group.rows for group in groups), default=0) for groups in sources)
    starts = [_starts(groups) for groups in sources]
    units = []
    begin = np.zeros(len(sources), np.int64)
    for cut in cuts:
        if (cut - begin).sum() >= size or cut is cuts[-1]:
            units.append(Unit(tuple(_ranges(starts, begin, cut))))
            begin = cut
    return [unit for unit in units if unit.rows]


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


def _cuts(sources: Sequence[Sequence[HasRows]], keys: Keys) -> list[np.ndarray]:
    """int64 [S] each, increasing: rows of every source that come before the end of some row group."""
    ends = [_running_ends(keys, source, len(groups)) for source, groups in enumerate(sources)]
    at = [(key, source, group) for source, of in enumerate(ends) for group, key in enumerate(of)]
    at.sort()
    if not at:
        return []
    cut_keys = np.array([key for key, _, _ in at])
    cut_source = np.array([source for _, source, _ in at])
    cut_group = np.array([group for _, _, group in at])
    counts = np.zeros((len(at), len(sources)), np.int64)
    for source, groups in enumerate(sources):
        floor = None
        for group in range(len(groups)):
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
        counts[own, source] = _starts(groups)[cut_group[own] + 1]
    return list(counts)


def _starts(groups: Sequence[HasRows]) -> np.ndarray:
    """int64 [groups + 1]: the source's row number at which each group starts, and its end."""
    return np.cumsum([0, *(group.rows for group in groups)])


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
