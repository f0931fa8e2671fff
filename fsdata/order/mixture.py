"""The mix of an epoch: of all rows, and of the rows that are left when weights or sources change within the epoch.

The change is a pure function of the rows that every rank has passed. The rows left of every source, in its own order,
are ranges of row groups. They are mixed by the new weights, dealt and shuffled as an epoch is, into units that are
numbered after those before. Only windows that are shuffled together and of which a part was read are finished first, as
they were: the rest of a permutation is no range of rows.

A source of weight 0 is not read. Its rows stay among those that are left, so a later change can mix them in; a source
that is added had this weight before.

Letters: S sources, R ranges, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fsdata.order.deal import dealt_after, permutation, window_units
from fsdata.order.mix import (
    AllUnits,
    Keys,
    Mix,
    RowRange,
    Unit,
    merge_order,
    merged_units,
    sequential_units,
    weighted_keys,
)
from fsdata.order.stream import Stream, compact, in_turn

Weights = tuple[float | None, ...]
"""`ParquetSource.weight` of every source; 0 for one that is not read, also if it was added later."""


class Ranges(NamedTuple):
    """Rows of a source, in its order: rows [start, stop) of row group `group`. Integers [R]."""

    group: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def whole(row_counts: np.ndarray) -> Ranges:
    """All rows of a source. row_counts: int64 [groups]."""
    # No array of zeros: there may be millions of row groups.
    start = np.broadcast_to(np.int64(0), row_counts.shape)
    return Ranges(np.arange(len(row_counts), dtype=np.int32), start, row_counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """The units of the rows that were left at a point of an epoch; at its begin all rows.

    Attributes:
        rows: [S] all of these rows, also of sources that are not read.
        is_read: [S] whether the weight is above 0.
        units: their "row groups" are indices of the ranges in `rows`.
        keys: the sort keys of such a range; None if units are not merged.
        first_unit: the number of the first unit.
    """

    rows: Sequence[Ranges]
    is_read: Sequence[bool]
    units: AllUnits
    keys: Keys | None
    first_unit: int = 0

    def unit(self, number: int) -> Unit:
        """A unit by its number, with ranges of the files."""
        unit = self.units[number - self.first_unit]
        return Unit(tuple(self._in_file(each) for each in unit.ranges))

    def order_in(self, number: int) -> np.ndarray:
        """int64 [rows]: the order in which a merged unit has the rows of its ranges."""
        return self._order_in(self.units[number - self.first_unit])

    def _order_in(self, unit: Unit) -> np.ndarray:
        assert self.keys is not None
        return merge_order(unit, [self.keys(each.source, each.group)[each.start : each.stop] for each in unit.ranges])

    def _in_file(self, each: RowRange) -> RowRange:
        rows, group = self.rows[each.source], int(each.group)
        start = int(rows.start[group])
        return RowRange(each.source, int(rows.group[group]), start + each.start, start + each.stop, each.first)

    def ranges_of(self, unit: np.ndarray, start: np.ndarray, stop: np.ndarray) -> list[Ranges]:
        """[S] the ranges with the rows [start, stop) of units, in the order of every source. int64 [n] each."""
        index = unit - self.first_unit
        is_whole = (start == 0) & (stop == self.units.row_counts[index])
        columns = [self.units.ranges_of(index[is_whole])]
        # Few: the parts of units that ranks have read, or share at the end of the epoch.
        parts = zip(*(each[~is_whole].tolist() for each in (index, start, stop)), strict=True)
        columns += [self._part(*part) for part in parts]
        source, group, first, last = np.concatenate(columns, axis=1)
        return [
            _joined(_within(rows, group[source == number], first[source == number], last[source == number]))
            for number, rows in enumerate(self.rows)
        ]

    def _part(self, index: int, start: int, stop: int) -> np.ndarray:
        """int64 [4, R]: source, index of the range, start and stop of the rows [start, stop) of a unit."""
        unit = self.units[index]
        # The rows of a range keep their order in a merged unit, so every cut is at one row of each range.
        before, after = np.array([start]), np.array([stop])
        if self.keys is not None:
            owner = np.repeat(np.arange(len(unit.ranges)), [each.rows for each in unit.ranges])[self._order_in(unit)]
            before, after = (np.bincount(owner[:cut], minlength=len(unit.ranges)) for cut in (start, stop))
        columns = np.array([(each.source, each.group, each.start, each.start) for each in unit.ranges], np.int64).T
        return columns + np.stack([np.zeros_like(before), np.zeros_like(before), before, after])


def mixed_by(weights: Weights, mix: Mix) -> Weights:
    """The weights on which the order depends: numbers only under `mix="weighted"` of several sources."""
    is_read = [weight != 0 for weight in weights]
    return weights if mix == "weighted" and sum(is_read) > 1 else tuple(None if read else 0.0 for read in is_read)


def mixture(
    rows: Sequence[Ranges], weights: Weights, *, mix: Mix, times: Keys | None = None, first_unit: int = 0
) -> Mixture:
    """Mix the rows of several sources. times: the keys of row groups of files, for `mix="time"`."""
    is_read = [weight != 0 for weight in weights]
    counts = [of.stop - of.start if read else of.stop[:0] for of, read in zip(rows, is_read, strict=True)]
    keys: Keys | None = None
    if mix == "weighted" and sum(is_read) > 1:
        keys = weighted_keys(counts, _shares(weights, counts))
    elif mix == "time" and sum(is_read) > 1:
        assert times is not None
        keys = _times_of(rows, times)
    units = sequential_units(counts) if keys is None else merged_units(counts, keys)
    return Mixture(rows=rows, is_read=is_read, units=units, keys=keys, first_unit=first_unit)


def remixed(
    streams: Sequence[Stream],
    last: Mixture,
    weights: Weights,
    *,
    mix: Mix,
    times: Keys | None,
    number: int,
    world_size: int,
    shuffle: bool,
    shuffle_window: int | float,
    seed: int,
    epoch: int,
) -> tuple[Mixture, list[Stream]]:
    """Mix the rows left of an epoch by other weights, and deal them.

    Args:
        streams: of every rank so far, without the rows that it has passed. last: the mixture of their units.
        number: of this change in the epoch, from 1.

    Returns the mixture of the new units, and the streams of all ranks, which begin with the windows that are finished.
    """
    begun, left = _left(streams, last, shuffle=shuffle)
    found = mixture(left, weights, mix=mix, times=times, first_unit=last.first_unit + len(last.units))
    count = len(found.units)
    # 4: no other permutation with this seed has this key, see `fsdata.order.deal`.
    permuted = shuffle and not isinstance(shuffle_window, float)
    order = permutation(count, seed, epoch, 4, number) if permuted else np.arange(count)
    size = window_units(shuffle_window, -(-count // world_size)) if shuffle else 1
    return found, dealt_after(
        begun, found.units.row_counts, order, first_unit=found.first_unit, size=size, world_size=world_size
    )


def _left(streams: Sequence[Stream], last: Mixture, *, shuffle: bool) -> tuple[Stream, list[Ranges]]:
    """(the shuffled windows of which a part was read, [S] the ranges of all other rows)."""
    begun, pieces = [], []
    for stream in map(compact, streams):
        ends = np.concatenate([[0], np.cumsum(stream.stop - stream.start)])
        rows = stream.last - stream.first
        # Parts of a window that was dealt to several ranks count as begun: its permutation is one.
        is_begun = (rows < ends[stream.ends] - ends[stream.begins]) & shuffle
        windows = np.flatnonzero(is_begun & (rows > 0))
        begun.append(stream.of(windows, np.zeros_like(windows), rows[windows]))
        is_left = np.repeat(~is_begun, stream.ends - stream.begins)
        if shuffle:
            start, stop = stream.start, stream.stop
        else:  # a window is one piece, which may have been cut
            start, stop = stream.start + stream.first, stream.start + stream.last
        pieces.append(np.stack([stream.unit, start, stop])[:, is_left])
    unit, start, stop = np.concatenate(pieces, axis=1)
    left = last.ranges_of(unit, start, stop)
    waiting = [of if read else rows for of, rows, read in zip(left, last.rows, last.is_read, strict=True)]
    return in_turn(begun), waiting


def _shares(weights: Weights, counts: Sequence[np.ndarray]) -> list[float]:
    """The weights of `mix="weighted"`, 1 if one is missing. Without any, row counts: all sources then end together."""
    if not any(weights):
        return [float(max(int(rows.sum()), 1)) for rows in counts]
    return [1.0 if weight is None else weight for weight in weights]


def _times_of(rows: Sequence[Ranges], times: Keys) -> Keys:
    def keys(source: int, number: int) -> np.ndarray:
        group, start, stop = (int(column[number]) for column in rows[source])
        return times(source, group)[start:stop]

    return keys


def _within(rows: Ranges, number: np.ndarray, start: np.ndarray, stop: np.ndarray) -> Ranges:
    """The rows [start, stop) of the ranges with these numbers."""
    first = rows.start[number]
    return Ranges(rows.group[number], first + start, first + stop)


def _joined(ranges: Ranges) -> Ranges:
    """In the order of the source; ranges that follow each other in a row group become one."""
    order = np.lexsort((ranges.start, ranges.group))
    order = order[ranges.start[order] < ranges.stop[order]]  # a part of a unit may have no row of a source
    group, start, stop = (column[order] for column in ranges)
    begins = np.append(True, (group[1:] != group[:-1]) | (start[1:] != stop[:-1]))[: len(group)]
    return Ranges(group[begins], start[begins], stop[np.append(begins[1:], True)[: len(group)]])
