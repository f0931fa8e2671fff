"""`Sequence(share=...)`: samples with overlapping windows of one history share its events, which a batch contains once
(pure planning; no value is copied).

Where histories are stored in the rows, only the samples of one row (`explode`) share; they are consecutive.

Letters: N samples, M merged windows, F fields.
"""

from dataclasses import replace

import numpy as np

from fsdata.batch.merged_windows import MergedWindows, merge_windows
from fsdata.decode.block import Spans
from fsdata.decode.row_layout import REFERENCE, Layout


def windows_of_rows(starts: np.ndarray, length: np.ndarray) -> MergedWindows:
    """One window for the samples of each row. starts: int64 [k, N], the block of each sample and the first value of
    each of its fields; length: int64 [N].

    All fields are compared: null lists of one field begin at the same default in every row.
    """
    samples = np.flatnonzero(length)
    starts = np.vstack([starts, length])[:, samples]
    opens = np.ones(len(samples), bool)
    opens[1:] = (starts[:, 1:] != starts[:, :-1]).any(axis=0)
    row, first = np.zeros_like(length), samples[opens]
    row[samples] = np.cumsum(opens) - 1
    return MergedWindows(row=row, start=np.zeros_like(length), length=length.copy(), first=first, size=length[first])


def share(spans: Spans, layout: Layout) -> tuple[list[Spans], np.ndarray, dict[str, MergedWindows]]:
    """(the spans to copy, one `Spans` after another; int64 [F, N], the lengths of all fields; the windows by sequence).

    The fields of a shared sequence have M merged windows in the first rows; their other rows are empty.
    """
    by_sequence: dict[str, MergedWindows] = {}
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
        # Flat fields are copied with parts[0]. There the shared fields get length 0, so that they are copied once.
        parts.append(replace(merged, length=sizes, flat=np.zeros_like(merged.flat)))
        parts[0].length[fields + ids] = length[fields + ids] = 0
        length[fields + ids, : len(windows.first)] = sizes[fields + ids]
        by_sequence[name] = windows
    return parts, length, by_sequence


def _tables(spans: Spans, slot: int, length: np.ndarray) -> np.ndarray:
    """int64 [N]: a number for the table that contains the events of each row.

    slot: of the references. length: int64 [N], events that the row sees.
    """
    references = np.empty((spans.num_rows, REFERENCE), np.int64)
    target = np.zeros(len(spans.start), np.int64)
    target[slot] = references.ctypes.data
    spans.gather(np.full(len(target), 8), target)
    source, first, stop, _ = references.T
    # A window with events that do not count was compacted into memory of its block: it must not be merged with windows
    # of the table itself, so each block counts as a table of its own, with a number above those of sources.
    compacted = length < stop - first
    tables: np.ndarray = source + np.where(compacted, (spans.block.astype(np.int64) + 1) << 16, 0)
    return tables
