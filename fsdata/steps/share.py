"""Samples that see overlapping stretches of one history share it: which events a batch holds once (pure planning).

Two windows of one table overlap if they overlap in memory, as nothing of the table is copied before the batch is made.
Where histories stand in the rows, only the samples of one row share; they stand next to each other.
Letters: N samples, M merged windows, F fields of the sequence.
"""

from dataclasses import dataclass

import numpy as np

from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import RowTable
from fsdata.kernels.copy import STORED_SHIFT, step_of


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


def merge_windows(address: np.ndarray, length: np.ndarray, itemsize: int) -> Windows:
    """Merge windows of tables that overlap. address, length: int64 [N] of one field; itemsize: of it in a batch."""
    row, start = np.zeros_like(length), np.zeros_like(length)
    some = np.flatnonzero(length)
    width = step_of(address[some], itemsize)
    begin = address[some] & ((1 << STORED_SHIFT) - 1)
    order = np.lexsort((some, begin))
    begins, ends = begin[order], np.maximum.accumulate((begin + length[some] * width)[order])
    opens = np.ones(len(some), bool)
    opens[1:] = begins[1:] >= ends[:-1]
    window = np.cumsum(opens) - 1
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(some) - 1)[: window[-1] + 1 if len(window) else 0]
    samples = some[order]
    earliest = np.minimum.reduceat(samples, np.flatnonzero(opens)) if len(some) else samples
    number = np.empty_like(earliest)
    number[np.argsort(earliest)] = np.arange(len(earliest))
    widths = width[order]
    row[samples] = number[window]
    start[samples] = (begins - begins[opens][window]) // widths
    first, size = np.empty_like(number), np.empty_like(number)
    first[number] = samples[opens]
    size[number] = (ends[last] - begins[opens]) // widths[opens]
    return Windows(row=row, start=start, length=length.copy(), first=first, size=size)


def windows_of_rows(address: np.ndarray, length: np.ndarray) -> Windows:
    """One window for the samples of each row. address: int64 [F, N], of all fields; length: int64 [N].

    All fields are compared: null lists of one field begin at the same default in every row.
    """
    some = np.flatnonzero(length)
    places = np.vstack([address, length])[:, some]
    opens = np.ones(len(some), bool)
    opens[1:] = (places[:, 1:] != places[:, :-1]).any(axis=0)
    row, first = np.zeros_like(length), some[opens]
    row[some] = np.cumsum(opens) - 1
    return Windows(row=row, start=np.zeros_like(length), length=length.copy(), first=first, size=length[first])


def share(table: RowTable, layout: Layout) -> tuple[RowTable, dict[str, Windows]]:
    """The rows with merged windows in the fields of shared sequences, M of them in the first rows and none in the
    others, and the windows by sequence."""
    found: dict[str, Windows] = {}
    address, length = table.address.copy(), table.length.copy()
    for name in layout.shared:
        fields = [row for row, field in enumerate(layout.fields) if field.group == name]
        if name in layout.references:
            windows = merge_windows(address[fields[0]], length[fields[0]], layout.fields[fields[0]].itemsize)
        else:
            windows = windows_of_rows(address[fields], length[fields[0]])
        ids = range(len(layout.fields))[layout.nested[name][1]] if name in layout.nested else ()
        for row in (*fields, *ids):
            sizes = length[row, windows.first] if row in ids else windows.size
            address[row, : len(sizes)] = address[row, windows.first]
            length[row, : len(sizes)], length[row, len(sizes) :] = sizes, 0
        found[name] = windows
    return RowTable(address, length, table.itemsize, table.owners), found
