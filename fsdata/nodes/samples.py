"""Rows become samples when their batch is made, on the rank that computes them (pure planning; no value is copied).

With `Schema(explode="candidates")` every candidate of a row is a sample; rows are read, planned and moved whole.
Samples that see overlapping stretches of one history share it (`Sequence(share=...)`): a batch holds these events once.
Where histories stand in the rows, only the samples of one row share; they stand next to each other.

Letters: N rows or samples, C candidates of all rows, M merged windows, F fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fsdata.decode.block import Spans
from fsdata.decode.row_layout import REFERENCE, Layout


def explode(spans: Spans, layout: Layout) -> tuple[Spans, np.ndarray]:
    """(a sample for each candidate, in order, with all other fields of its row; int64 [C], the row of each)."""
    assert layout.exploded is not None
    count = spans.length[layout.groups[layout.exploded]]
    row = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    found = spans.take(row)
    for slot, field in enumerate(layout.fields):
        if field.group == layout.exploded:
            found.start[slot] += within
            found.length[slot] = 1
    return found, row


def items_of(lengths: Mapping[str, np.ndarray], exploded: str | None) -> dict[str, int]:
    """Group name -> elements of the group in all samples. lengths: group name -> int64 [N] of the rows."""
    if exploded is None:
        return {name: int(length.sum()) for name, length in lengths.items()}
    count = lengths[exploded]
    return {name: int((count if name == exploded else length * count).sum()) for name, length in lengths.items()}


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


def windows_of_rows(places: np.ndarray, length: np.ndarray) -> Windows:
    """One window for the samples of each row. places: int64 [k, N], the block of each sample and where its fields
    begin; length: int64 [N].

    All fields are compared: null lists of one field begin at the same default in every row.
    """
    some = np.flatnonzero(length)
    places = np.vstack([places, length])[:, some]
    opens = np.ones(len(some), bool)
    opens[1:] = (places[:, 1:] != places[:, :-1]).any(axis=0)
    row, first = np.zeros_like(length), some[opens]
    row[some] = np.cumsum(opens) - 1
    return Windows(row=row, start=np.zeros_like(length), length=length.copy(), first=first, size=length[first])


def share(spans: Spans, layout: Layout) -> tuple[list[Spans], np.ndarray, dict[str, Windows]]:
    """(what is copied, part by part; int64 [F, N], the lengths of all fields; the windows by sequence).

    The fields of a shared sequence have merged windows, M of them in the first rows, and nothing in the others.
    """
    found: dict[str, Windows] = {}
    parts, length = [replace(spans, length=spans.length.copy())], spans.length.copy()
    for name in layout.shared:
        fields = [slot for slot, field in enumerate(layout.fields) if field.group == name]
        seen = spans.length[fields[0]]
        if name in layout.references:
            table, begin = _tables(spans, layout.references[name], seen), spans.start[fields[0]]
            windows = merge_windows(table, begin, seen)
        else:
            windows = windows_of_rows(np.vstack([spans.block, spans.start[fields]]), seen)
        ids = list(range(len(layout.fields))[layout.nested[name][1]]) if name in layout.nested else []
        merged = spans.take(windows.first)
        sizes = np.zeros_like(merged.length)
        sizes[fields], sizes[ids] = windows.size, merged.length[ids]
        parts.append(replace(merged, length=sizes))
        parts[0].length[fields + ids] = length[fields + ids] = 0
        length[fields + ids, : len(windows.first)] = sizes[fields + ids]
        found[name] = windows
    return parts, length, found


def _tables(spans: Spans, slot: int, length: np.ndarray) -> np.ndarray:
    """int64 [N]: a number for the table that the events of each row lie in.

    Events of a window of which some do not count are copied without those: they lie apart, for every block.
    slot: of the references. length: int64 [N], how many events count.
    """
    numbers = np.empty((spans.num_rows, REFERENCE), np.int64)
    target = np.zeros(len(spans.start), np.int64)
    target[slot] = numbers.ctypes.data
    spans.gather(np.full(len(target), 8), target)
    source, first, stop, _ = numbers.T
    found: np.ndarray = source + np.where(length < stop - first, (spans.block.astype(np.int64) + 1) << 16, 0)
    return found
