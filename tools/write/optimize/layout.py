"""Plans the layout of a file: rows of a row group, required columns, columns stored as deltas.

Pure planning: footers and sampled rows in, settings of the writer out. A *path* names a part of a nested
column as a tuple: `("items",)` is the column, `("items", "element")` its elements, `("s", "x")` a field of a
struct.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.scan.footers import Footer
from fsdata.catalog.binding.arrow_types import is_list

UNIT_BYTES = 32 << 20
"""Decoded bytes of a row group. The loader keeps a few row groups per thread and shuffles inside them."""

_FEWEST_ROWS, _MOST_ROWS = 256, 65_536
_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_INTEGERS = ("INT32", "INT64")

ColumnPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose.

    Attributes:
        row_group_rows: rows of a row group; None sizes row groups by `unit_bytes`.
        unit_bytes: decoded bytes of a row group.
    """

    row_group_rows: int | None = None
    unit_bytes: int = UNIT_BYTES

    def __post_init__(self) -> None:
        for name in ("row_group_rows", "unit_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one file is written.

    Attributes:
        schema: of the new file; its metadata is that of the source.
        rows: of a row group.
        required: dotted paths of columns and elements that were nullable before.
        delta: leaf columns to be written as DELTA_BINARY_PACKED, as Parquet names them.
        dictionary: the other leaf columns.
    """

    schema: pa.Schema
    rows: int
    required: tuple[str, ...]
    delta: tuple[str, ...]
    dictionary: tuple[str, ...]


def unit_rows(metadata: pq.FileMetaData, settings: Settings) -> int:
    """Rows of a row group: as given, or a power of two whose values take about `unit_bytes`.

    Offsets and validity do not count; text and binary take what the footer says.
    """
    if settings.row_group_rows is not None:
        return settings.row_group_rows
    size = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in map(row_group.column, range(row_group.num_columns)):
            width = _WIDTH.get(column.physical_type)
            size += column.total_uncompressed_size if width is None else width * column.num_values
    per_row = size / max(metadata.num_rows, 1)
    rows = 2 ** round(math.log2(settings.unit_bytes / max(per_row, 1)))
    return min(max(rows, _FEWEST_ROWS), _MOST_ROWS)


def without_nulls(footer: Footer) -> set[str]:
    """Nullable columns of single values that hold no null, by the statistics of every row group."""
    metadata, schema = footer.metadata, footer.schema
    at = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    flat = [field.name for field in schema if field.nullable and not pa.types.is_nested(field.type)]
    return {name for name in flat if name in at and (footer.null_counts[:, at[name]] == 0).all()}


def note_nulls(array: pa.Array, path: ColumnPath, found: set[ColumnPath]) -> None:
    """Add to `found` every path of `array` that holds a null. Elements of null lists do not count."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        array = array.storage
    elif pa.types.is_dictionary(kind) and array.dictionary.null_count:
        found.add(path)
    if array.null_count:
        found.add(path)
    if is_list(kind):
        note_nulls(array.flatten(), (*path, "element"), found)
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):  # the writer takes fields of null structs as nulls
            note_nulls(array.field(index), (*path, kind.field(index).name), found)


def tightened(schema: pa.Schema, found: set[ColumnPath]) -> tuple[pa.Schema, tuple[str, ...]]:
    """(schema in which all paths outside `found` are required, those that were nullable before)."""
    required: list[str] = []

    def tighter(field: pa.Field, path: ColumnPath) -> pa.Field:
        kind = field.type
        if is_list(kind):
            kind = list_of(kind, tighter(kind.value_field, (*path, "element")))
        elif pa.types.is_struct(kind):
            kind = pa.struct([tighter(inner, (*path, inner.name)) for inner in kind])
        nullable = field.nullable and (path in found or pa.types.is_null(kind))
        if field.nullable and not nullable:
            required.append(".".join(path))
        return pa.field(field.name, kind, nullable, field.metadata)

    return pa.schema([tighter(field, (field.name,)) for field in schema]), tuple(required)


def delta_columns(sample: pa.Table, writer: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(integer leaf columns that are not larger as deltas, all other leaves), from rows written both ways.

    At equal size, deltas decode two to three times as fast as dictionary or plain pages, because there is
    less for zstd to decompress. Rising times and ids with many distinct values gain; columns with few
    distinct values do not. `writer`: the other settings of the files.
    """
    plain = _written(sample, **writer)
    names = [plain.schema.column(index).path for index in range(plain.num_columns)]
    integers = [index for index in range(len(names)) if plain.schema.column(index).physical_type in _INTEGERS]
    if not integers or sample.num_rows == 0:
        return (), tuple(names)
    encodings = {names[index]: "DELTA_BINARY_PACKED" for index in integers}
    others = [name for name in names if name not in encodings]
    packed = _written(sample, **{**writer, "use_dictionary": others, "column_encoding": encodings})

    def size(of: pq.FileMetaData, index: int) -> int:
        return int(of.row_group(0).column(index).total_compressed_size)

    delta = tuple(names[index] for index in integers if size(packed, index) <= size(plain, index))
    return delta, tuple(name for name in names if name not in delta)


def _written(sample: pa.Table, **options: Any) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(sample, sink, row_group_size=max(sample.num_rows, 1), **options)
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def list_of(kind: pa.DataType, child: pa.Field | pa.DataType) -> pa.DataType:
    """The list type `kind` with other elements."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(child, kind.list_size)
    return pa.large_list(child) if pa.types.is_large_list(kind) else pa.list_(child)
