"""Windows of one history that overlap are merged, so that a batch holds their events once (pure planning).

Letters: N samples, M merged windows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Merged windows, in order of the first sample of each, and where samples find theirs.

    Attributes:
        row: int64 [N], the merged window of each sample; 0 where a sample has no events.
        start: int64 [N], where the sample's events begin in it. length: int64 [N].
        first: int64 [M], the sample with whose events each begins. size: int64 [M] events.
    """

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    first: np.ndarray
    size: np.ndarray

    @property
    def offset(self) -> np.ndarray:
        """int64 [N]: where the sample's events begin among the events of all merged windows."""
        starts = np.cumsum(self.size) - self.size
        return np.where(self.length > 0, np.append(starts, 0)[self.row] + self.start, 0)


def merge_windows(table: np.ndarray, begin: np.ndarray, length: np.ndarray) -> Windows:
    """Merge windows that overlap. table, begin, length: int64 [N], in which table each lies, and where."""
    row, start = np.zeros_like(length), np.zeros_like(length)
    some = np.flatnonzero(length)
    order = np.lexsort((some, begin[some], table[some]))
    of, begins = table[some][order], begin[some][order]
    reach = begins + length[some][order]
    opens = np.ones(len(some), bool)
    tables = np.ones(len(some), bool)
    tables[1:] = of[1:] != of[:-1]
    far = int(reach.max(initial=0)) + 1
    apart = far * np.cumsum(tables)  # so that windows of one table end before those of the next begin
    ends = np.maximum.accumulate(reach + apart) - apart
    opens[1:] = tables[1:] | (begins[1:] >= ends[:-1])
    window = np.cumsum(opens) - 1
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(some) - 1)[: window[-1] + 1 if len(window) else 0]
    samples = some[order]
    earliest = np.minimum.reduceat(samples, np.flatnonzero(opens)) if len(some) else samples
    number = np.empty_like(earliest)
    number[np.argsort(earliest)] = np.arange(len(earliest))
    row[samples] = number[window]
    start[samples] = begins - begins[opens][window]
    first, size = np.empty_like(number), np.empty_like(number)
    first[number] = samples[opens]
    size[number] = ends[last] - begins[opens]
    return Windows(row=row, start=start, length=length.copy(), first=first, size=size)
