"""Compares two streams of rows bit by bit: null equals null, NaN equals NaN, and -0.0 differs from 0.0."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.write.optimize.layout import is_list, retyped

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first value that differs from the source. `row` counts from the start of the streams."""

    column: str
    row: int
    expected: str
    found: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}: {self.found} where the source has {self.expected}"


def first_difference(
    source: Iterator[pa.RecordBatch], written: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[int | Difference]:
    """Compare batch by batch: yield how many rows were equal, or yield the difference and end.

    `schema` is the schema of `written`; it may differ from the source's in nullability. The batches of the
    two streams may differ in size.
    """
    row = 0
    for one, other in _side_by_side(source, written):
        if one is None or other is None:
            there, missing = ("more rows", "the end") if other is None else ("the end", "more rows")
            yield Difference(column="(all)", row=row, expected=there, found=missing)
            return
        expected = retyped(one, schema)
        for index, name in enumerate(schema.names):
            at = unequal_row(expected.column(index), other.column(index))
            if at is not None:
                yield Difference(
                    column=name,
                    row=row + at,
                    expected=_text(one.column(index)[at]),
                    found=_text(other.column(index)[at]),
                )
                return
        row += one.num_rows
        yield one.num_rows


def unequal_row(one: pa.Array, other: pa.Array) -> int | None:
    """The first row in which two arrays of the same type and length differ."""
    kind = one.type
    if isinstance(kind, pa.BaseExtensionType):
        return unequal_row(one.storage, other.storage)
    if pa.types.is_dictionary(kind):
        return unequal_row(one.dictionary_decode(), other.dictionary_decode())
    if pa.types.is_map(kind):
        pairs = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return unequal_row(_with_type(one, pairs), _with_type(other, pairs))
    if pa.types.is_floating(kind):
        bits = _BITS[kind.bit_width]
        return unequal_row(one.view(bits), other.view(bits))
    if not is_list(kind) and not pa.types.is_struct(kind):
        return None if one.equals(other) else _search(one, other)
    places = [_search(one.is_null(), other.is_null())]
    if places[0] is None and is_list(kind):
        places.append(_unequal_list(one, other))
    elif places[0] is None:
        places += [unequal_row(inner, outer) for inner, outer in zip(one.flatten(), other.flatten(), strict=True)]
    return min((place for place in places if place is not None), default=None)


def _unequal_list(one: pa.Array, other: pa.Array) -> int | None:
    place = _search(pc.list_value_length(one), pc.list_value_length(other))
    if place is not None:
        return place
    element = unequal_row(one.flatten(), other.flatten())
    if element is None:
        return None
    return int(np.searchsorted(np.cumsum(_lengths(one)), element, side="right"))


def _with_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same buffers as another type of the same layout."""
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    return retyped(batch, pa.schema([("x", kind)])).column(0)


def _lengths(lists: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64()))


def _search(one: pa.Array, other: pa.Array) -> int | None:
    """The first unequal position, by bisection: `equals` is fast and works for every type."""
    if one.equals(other):
        return None
    start, stop = 0, len(one)
    while stop - start > 1:
        middle = (start + stop) // 2
        if one[start:middle].equals(other[start:middle]):
            start = middle
        else:
            stop = middle
    return start


def _side_by_side(
    one: Iterator[pa.RecordBatch], other: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    """Slices of equal length of both streams. A stream that ends first gives None."""
    left, right = next(one, None), next(other, None)
    while left is not None and right is not None:
        rows = min(left.num_rows, right.num_rows)
        if rows:
            yield left.slice(0, rows), right.slice(0, rows)
        left = left.slice(rows) if rows < left.num_rows else next(one, None)
        right = right.slice(rows) if rows < right.num_rows else next(other, None)
    if left is not None or right is not None:
        yield left, right


def _text(value: pa.Scalar) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
