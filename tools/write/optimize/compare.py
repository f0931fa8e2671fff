"""Compares two streams of rows bit by bit: null equals null, NaN equals NaN, and -0.0 differs from 0.0.

Arrow's `equals` is fast and knows every type, but takes floats for numbers. So the buffers of both streams are looked
at as other types, in which floats are integers of the same width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from freescale_tools.write.optimize.layout import list_of
from fsdata.catalog.arrow_types import is_list

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


class Difference(Exception):
    """What was written differs from its source; the message names the first value that does."""


def equal_rows(source: Iterator[pa.RecordBatch], written: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Compare batch by batch, and yield how many rows were equal. Raises Difference at the first that is not.

    The streams have the same columns, whose types may differ in nullability. Their batches may differ in size.
    """
    one, other, row = next(source, None), next(written, None), 0
    while one is not None and other is not None:
        rows = min(one.num_rows, other.num_rows)
        for name, expected, found in zip(other.schema.names, one.columns, other.columns, strict=True):
            at = unequal_row(expected.slice(0, rows), found.slice(0, rows))
            if at is not None:
                values = f"{_text(found[at])} where the source has {_text(expected[at])}"
                raise Difference(f"row {row + at}, column {name}: {values}")
        if rows:
            yield rows
        row += rows
        one = one.slice(rows) if rows < one.num_rows else next(source, None)
        other = other.slice(rows) if rows < other.num_rows else next(written, None)
    if one is not None or other is not None:
        missing, there = ("the end", "more rows") if other is None else ("more rows", "the end")
        raise Difference(f"row {row}, column (all): {missing} where the source has {there}")


def _text(value: pa.Scalar) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
    no_dictionaries = _rebuilt(plain.type, lambda kind: kind.value_type if pa.types.is_dictionary(kind) else kind)
    decoded = plain.cast(no_dictionaries)
    no_floats = _rebuilt(decoded.type, lambda kind: _BITS[kind.bit_width] if pa.types.is_floating(kind) else kind)
    return pa.array(_Exported(decoded, no_floats))


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
