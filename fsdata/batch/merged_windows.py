"""Merges overlapping windows of a history, so that a batch contains their events once (pure planning).

Letters: N samples, M merged windows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedWindows:
    """Merged windows, ordered by the first sample of each, and the position of each sample's events in them.

    Attributes:
        row: int64 [N], the merged window of each sample; 0 where a sample has no events.
        start: int64 [N], position of the sample's first event in its merged window. length: int64 [N], its events.
        first: int64 [M], the sample whose first event is that of the merged window. size: int64 [M], events.
    """

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    first: np.ndarray
    size: np.ndarray

    @property
    def offset(self) -> np.ndarray:
        """int64 [N]: position of the sample's first event among the events of all merged windows."""
        starts = np.cumsum(self.size) - self.size
        return np.where(self.length > 0, np.append(starts, 0)[self.row] + self.start, 0)


def merge_windows(table: np.ndarray, begin: np.ndarray, length: np.ndarray) -> MergedWindows:
    """Merge overlapping windows. table, begin, length: int64 [N], the table of each window, its first event, its
    events."""
    row, start = np.zeros_like(length), np.zeros_like(length)
    samples = np.flatnonzero(length)
    samples = samples[np.lexsort((samples, begin[samples], table[samples]))]
    if not len(samples):
        return MergedWindows(row=row, start=start, length=length.copy(), first=samples, size=samples)
    begins, stops = begin[samples], begin[samples] + length[samples]
    new_table = np.ones(len(samples), bool)
    new_table[1:] = table[samples][1:] != table[samples][:-1]
    # A running maximum over all tables needs one axis: each table is shifted past the events of the table before it.
    shift = (int(stops.max()) + 1) * np.cumsum(new_table)
    reach = np.maximum.accumulate(stops + shift) - shift
    opens = new_table  # a sample opens a merged window if no earlier window of its table reaches its first event
    opens[1:] |= begins[1:] >= reach[:-1]
    opening = np.flatnonzero(opens)
    window = np.cumsum(opens) - 1
    # Windows are numbered by their first sample, not by table and event: the order of a batch then depends on its
    # samples only.
    number = np.empty(len(opening), np.int64)
    number[np.argsort(np.minimum.reduceat(samples, opening))] = np.arange(len(opening))
    row[samples] = number[window]
    start[samples] = begins - begins[opening][window]
    first, size = np.empty_like(number), np.empty_like(number)
    first[number] = samples[opening]
    size[number] = np.append(reach[opening[1:] - 1], reach[-1]) - begins[opening]
    return MergedWindows(row=row, start=start, length=length.copy(), first=first, size=size)
