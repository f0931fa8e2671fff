"""Decides which lists FreeScale's own decoder reads, and how their values are stored (pure)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import is_list, plain
from fsdata.kernels import columns
from fsdata.schema import Number

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_SMALL = {pa.int8(): (-128, 127), pa.int16(): (-32768, 32767), pa.uint8(): (0, 255), pa.uint16(): (0, 65535)}
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")  # in the order of `fsdata.pages.kernels.rows`
_CODECS = frozenset({"UNCOMPRESSED", "ZSTD", "SNAPPY", "GZIP", "LZ4"})  # LZ4: without Hadoop's frames
_MOST_LEVELS = 7  # the kernels read levels of at most three bits
# Memory is allocated by the numbers of footer and headers, so they must be in proportion to the stored bytes. Chunks
# with higher numbers, damaged ones or long runs of one value, are left to pyarrow.
_ALWAYS = 1 << 20  # values or unpacked bytes
_RATIO = 1 << 12  # further values or unpacked bytes per stored byte


def why_left(chunk: pq.ColumnChunkMetaData) -> str | None:
    """The reason for leaving a column chunk to pyarrow, whatever its form; None if there is none."""
    if chunk.compression not in _CODECS:
        return f"compressed by {chunk.compression}"
    if chunk.file_path:
        return "in another file"
    if max(chunk.num_values, chunk.total_uncompressed_size) > _RATIO * chunk.total_compressed_size + _ALWAYS:
        return "few bytes that stand for many values"
    return None


@dataclass(frozen=True)
class Form:
    """The stored and the final type of a column's values.

    Attributes:
        physical: Parquet's physical type.
        top: definition level of a value. present: definition level of a list without elements.
        stored: a stored type of `fsdata.kernels.columns`.
        dtype: final type.
        within: smallest and largest value of small integers, which are stored in 32 bits. pyarrow truncates others,
            which no writer produces; such chunks are left to it.
    """

    physical: str
    top: int
    present: int
    stored: int
    dtype: type[np.int64] | type[np.float32]
    within: tuple[int, int] | None = None

    @cached_property
    def numbers(self) -> np.ndarray:
        """int64 [7], the form for kernels, see `fsdata.pages.kernels.rows`."""
        least, most = self.within or (0, 0)
        itemsize = np.dtype(self.dtype).itemsize
        physical = _PHYSICAL.index(self.physical)
        return np.array([physical, self.top, self.present, self.stored, itemsize, least, most])


def form_of(column: pq.ColumnSchema, schema: pa.Schema, names: Sequence[str], number: Number) -> Form | str:
    """The form of a field's leaf column, or the reason for leaving it to pyarrow.

    Args:
        schema: schema of the file. names: path to the column, see `fsdata.catalog.binding.column_paths.names_at`.
    """
    nesting = _nesting(schema, names)
    if isinstance(nesting, str):
        return nesting
    top, empty, item = nesting
    stored = _stored(column, item, number)
    if isinstance(stored, str):
        return stored
    actual = column.max_repetition_level, column.max_definition_level, len(column.path.split("."))
    # Three levels, `name.list.element`: two path components more than the field. Names may have dots.
    if actual != (1, top, sum(len(name.split(".")) for name in names) + 2):
        return "a list that is not stored as three levels"
    return Form(
        physical=column.physical_type,
        top=top,
        present=empty,
        stored=stored,
        dtype=np.float32 if number == "value" else np.int64,
        within=_SMALL.get(item),
    )


def _nesting(schema: pa.Schema, names: Sequence[str]) -> tuple[int, int, pa.DataType] | str:
    """(definition level of a value, definition level of a list without elements, type of a value), or the reason for
    leaving the column to pyarrow."""
    first, *rest = names
    field = schema.field(first)
    level, empty = 0, -1  # `empty` is -1 until the list is reached
    while True:
        level += int(field.nullable)
        kind = plain(field.type)
        if pa.types.is_fixed_size_list(kind):
            return "a list of fixed size"
        if is_list(kind):
            if empty >= 0:
                return "a list of lists"
            empty = level
            level += 1
            field = kind.value_field
        elif pa.types.is_struct(kind) and rest:
            field, rest = kind.field(rest[0]), rest[1:]
        else:
            return (level, empty, kind) if level <= _MOST_LEVELS else "a struct in too many structs"


def _stored(column: pq.ColumnSchema, item: pa.DataType, number: Number) -> int | str:
    """The stored type of `fsdata.kernels.columns`, or the reason for leaving the column to pyarrow."""
    kind, physical = pa.types, column.physical_type
    to_float = number == "value"
    if kind.is_boolean(item):
        return columns.INT64_FLOAT if to_float else columns.SAME
    if physical == "INT64" and (kind.is_int64(item) or (not to_float and _same_unit(column, item, number))):
        return columns.INT64_FLOAT if to_float else columns.SAME
    if physical == "INT32" and kind.is_integer(item) and item.bit_width <= 32:
        if kind.is_uint32(item):
            return columns.UINT32_FLOAT if to_float else columns.UINT32
        return columns.INT32_FLOAT if to_float else columns.INT32
    if to_float and physical == "FLOAT" and kind.is_float32(item):
        return columns.SAME
    if to_float and physical == "DOUBLE" and kind.is_float64(item):
        return columns.DOUBLE
    return f"{item} stored as {physical}"


def _same_unit(column: pq.ColumnSchema, item: pa.DataType, number: Number) -> bool:
    """Whether the file, Arrow and the field use the same unit of time."""
    if not pa.types.is_timestamp(item) or (number == "time" and item.unit != "ns"):
        return False
    logical = json.loads(column.logical_type.to_json())
    return logical.get("Type") == "Timestamp" and _UNITS.get(logical.get("timeUnit")) == item.unit
