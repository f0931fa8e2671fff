"""The stage that aligns the lists of a sequence: one length, truncated; null lists become lists of defaults."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fsdata.decode.block import Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.schema import Field


def align(decoded: DecodedRows, defaults: Mapping[str, float | str]) -> None:
    """Check that the lists of a sequence have one length, truncate them, and fill null lists with defaults, in place.

    Lengths are compared before truncation. Fields with equal starts get one array of starts, so that a block stores it
    once.

    defaults: field -> default, of fields that have one.

    Raises:
        DataError: lists of one sequence that differ in length, with the row and all lengths.
    """
    layout, columns = decoded.layout, decoded.columns
    for name, slots in layout.aligned:
        first = layout.fields[slots[0]]
        lengths = [_length(columns[slot], len(decoded.rows)) for slot in slots]
        common = lengths[0]
        if any(each is not common and not np.array_equal(each, common) for each in lengths[1:]):
            common = np.maximum.reduce(lengths)
            differ = np.logical_or.reduce([(each != common) & (each >= 0) for each in lengths]) & ~decoded.drop
            if differ.any():
                _ragged(decoded, name, slots, lengths, np.flatnonzero(differ))
                common = np.where(differ, 0, common)
        nulls = common.min(initial=0) < 0 or common is not lengths[0]
        kept = common if common.min(initial=0) >= 0 else np.maximum(common, 0)
        skip = 0
        if first.max_length is not None and kept.max(initial=0) > first.max_length:
            whole, kept = kept, np.minimum(kept, first.max_length)
            skip = whole - kept if first.keep_last else 0
        before, shared = np.empty(0, np.int64), np.empty(0, np.int64)  # starts of the field before, whole and cut
        for slot, length in zip(slots, lengths, strict=True):
            column = columns[slot]
            start = column.start if column.start is not None else column.step * np.arange(len(kept))
            if start is not before and not np.array_equal(start, before):
                before, shared = start, start + skip if isinstance(skip, np.ndarray) else start
            column = replace(column, start=shared, length=kept)
            columns[slot] = (
                _with_defaults(column, length < 0, decoded, layout.fields[slot], defaults) if nulls else column
            )


def _length(column: Column, rows: int) -> np.ndarray:
    """int64 [N], -1 for null lists."""
    return np.full(rows, column.width) if column.length is None else column.length


def _with_defaults(
    column: Column, null: np.ndarray, decoded: DecodedRows, field: Field, defaults: Mapping[str, float | str]
) -> Column:
    """The column with lists of defaults in place of null lists. All start at one array, as long as the longest."""
    start, length = column.bounds
    longest = int(length[null & ~decoded.drop].max(initial=0))
    if longest == 0:
        return column
    value = 0 if field.kind == "counts" else defaults.get(field.name, 0)  # a null list has no ids
    filled = column.plus(np.full(longest, value, field.dtype))
    return replace(filled, start=np.where(null, column.size, start))


def _ragged(
    decoded: DecodedRows, name: str, slots: tuple[int, ...], lengths: list[np.ndarray], rows: np.ndarray
) -> None:
    of = {decoded.layout.fields[slot].name: int(each[rows[0]]) for slot, each in zip(slots, lengths, strict=True)}
    listed = ", ".join(f"{name} {'null' if length < 0 else length}" for name, length in of.items())
    what = f"the lists of {name!r} have different lengths: {listed}"
    todo = ". Aligned fields need one length in every row; move a field to a Sequence of its own if it is not aligned"
    decoded.faults.found("ragged", name, decoded.rows[rows], what, todo=todo)
