"""Compares two streams of rows bit by bit: null equals null, NaN equals NaN, and -0.0 differs from 0.0.

Arrow's `equals` is fast and knows every type, but takes floats for numbers. So the buffers of both streams are looked
at as other types, in which floats are integers of the same width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from freescale_tools.write.optimize.layout import is_list, list_of

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


class Difference(Exception):
    """The first value that differs from the source. The row counts from the start of the streams."""


def equal_rows(source: Iterator[pa.RecordBatch], written: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Compare batch by batch, and yield how many rows were equal. Raises Difference at the first that is not.

    The streams have the same columns, whose types may differ in nullability. Their batches may differ in size.
    """
    row = 0
    for one, other in _side_by_side(source, written):
        for name, expected, found in zip(other.schema.names, one.columns, other.columns, strict=True):
            at = unequal_row(expected, found)
            if at is not None:
                values = f"{_text(found[at])} where the source has {_text(expected[at])}"
                raise Difference(f"row {row + at}, column {name}: {values}")
        row += one.num_rows
        yield one.num_rows


def unequal_row(one: pa.Array, other: pa.Array) -> int | None:
    """The first row in which two arrays of the same length differ, found by bisection."""
    one, other = _as_bits(one), _as_bits(other)
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


def retyped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same buffers under a schema that differs only in nullability and metadata."""
    return pa.record_batch(_Exported(batch, schema))


class _Exported:
    """An array or a batch that hands out its buffers as another type (the Arrow C data interface)."""

    def __init__(self, data: pa.Array | pa.RecordBatch, kind: pa.DataType | pa.Schema) -> None:
        self._data = data
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._kind.__arrow_c_schema__(), self._data.__arrow_c_array__()[1]


def _as_bits(array: pa.Array) -> pa.Array:
    """Without dictionaries, extensions and floats, and all parts nullable."""
    plain = pa.array(_Exported(array, _rebuilt(array.type, lambda kind: kind)))
    decoded = plain.cast(_rebuilt(plain.type, _without_dictionary))
    return pa.array(_Exported(decoded, _rebuilt(decoded.type, _bits)))


def _rebuilt(kind: pa.DataType, leaf: Callable[[Any], Any]) -> Any:
    """`kind` with `leaf` of every type in it that is not nested. Fields are nullable, extensions their storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return _rebuilt(kind.storage_type, leaf)
    if is_list(kind):
        return list_of(kind, _rebuilt(kind.value_type, leaf))
    if pa.types.is_map(kind):
        return pa.map_(_rebuilt(kind.key_type, leaf), _rebuilt(kind.item_type, leaf))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _rebuilt(field.type, leaf)) for field in kind])
    return leaf(kind)


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _bits(kind: pa.DataType) -> pa.DataType:
    return _BITS[kind.bit_width] if pa.types.is_floating(kind) else kind


def _side_by_side(
    one: Iterator[pa.RecordBatch], other: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Slices of equal length of both streams. Raises Difference if one ends before the other."""
    left, right, row = next(one, None), next(other, None), 0
    while left is not None and right is not None:
        rows = min(left.num_rows, right.num_rows)
        if rows:
            yield left.slice(0, rows), right.slice(0, rows)
        row += rows
        left = left.slice(rows) if rows < left.num_rows else next(one, None)
        right = right.slice(rows) if rows < right.num_rows else next(other, None)
    if left is not None or right is not None:
        missing, there = ("the end", "more rows") if right is None else ("more rows", "the end")
        raise Difference(f"row {row}, column (all): {missing} where the source has {there}")


def _text(value: pa.Scalar) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
