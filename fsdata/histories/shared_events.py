"""Samples that see overlapping stretches of one history share it (`Sequence(share=...)`): a batch holds these events
once (pure planning; no value is copied).

Where histories stand in the rows, only the samples of one row share; they stand next to each other.

Letters: N samples, M merged windows, F fields.
"""

from dataclasses import replace

import numpy as np

from fsdata.batch.windows import Windows, merge_windows
from fsdata.decode.block import Spans
from fsdata.decode.row_layout import REFERENCE, Layout


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
        parts.append(replace(merged, length=sizes, flat=np.zeros_like(merged.flat)))  # copied with the first part
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
