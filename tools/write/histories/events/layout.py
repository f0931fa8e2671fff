"""The columns of events, and the columns of the table that is made of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

VERSION = 1
MARK = b"freescale.histories"
HASH = "multiply-xor-multiply"
"""The name of the hash in `keys`; another hash would need another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of the events, in the order of the table.

    Attributes:
        flat: schema of events: the key, the time, then the other fields.
    """

    flat: pa.Schema

    @property
    def by(self) -> str:
        return str(self.flat.names[0])

    @property
    def time(self) -> str:
        return str(self.flat.names[1])

    @property
    def fields(self) -> tuple[str, ...]:
        """Without key and time."""
        return tuple(self.flat.names[2:])

    def table_schema(self, buckets: int) -> pa.Schema:
        """Schema of the table: the key, and a list of every other column. Its metadata is the mark of a table."""
        key, *others = self.flat
        columns = [key, *(pa.field(one.name, pa.list_(one.type)) for one in others)]
        mark = {"version": VERSION, "by": self.by, "time": self.time, "fields": list(self.fields)}
        mark |= {"buckets": buckets, "hash": HASH}
        return pa.schema(columns, metadata={MARK: json.dumps(mark)})


def layout_of(schema: pa.Schema, names: Sequence[str]) -> Layout:
    """The layout of the columns `names` of an event file: key, time, fields."""
    return Layout(flat=pa.schema([pa.field(name, stored_type(schema.field(name).type)) for name in names]))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that Parquet stores, without what Arrow makes of it: no dictionaries, no variants of text."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, in its order and with its types, which are those of `stored_type`."""
    columns = [batch.column(field.name) for field in schema]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def raw_numbers(array: pa.Array) -> np.ndarray:
    """The numbers of an integer or time array without nulls, as they are stored, without a copy."""
    unsigned = pa.types.is_unsigned_integer(array.type)
    # Not `to_numpy`, whose first call imports pandas.
    stored = np.frombuffer(array.buffers()[1] or b"", f"{'u' if unsigned else 'i'}{array.type.bit_width // 8}")
    return stored[array.offset : array.offset + len(array)]
