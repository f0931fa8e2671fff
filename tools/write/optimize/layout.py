"""Plans the layout of a file: rows of a row group, required columns, columns stored as deltas.

Pure planning: footers and sampled rows in, settings of the writer out. A *path* names a part of a nested
column as a tuple: `("items",)` is the column, `("items", "element")` its elements, `("s", "x")` a field of a
struct.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.footers import Footer

UNIT_BYTES = 32 << 20
"""Decoded bytes of a row group. The loader keeps a few row groups per thread and shuffles inside them."""

_FEWEST_ROWS, _MOST_ROWS = 256, 65_536
_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_INTEGERS = ("INT32", "INT64")

Path = tuple[str, ...]


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def decoded_bytes(metadata: pq.FileMetaData) -> int:
    """Bytes of all decoded values, without offsets and validity.

    For text and binary, the size in the footer.
    """
    total = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            width = _WIDTH.get(column.physical_type)
            total += column.total_uncompressed_size if width is None else width * column.num_values
    return total


def unit_rows(metadata: pq.FileMetaData, settings: Settings) -> int:
    """Rows of a row group: as given, or a power of two whose values take about `unit_bytes`."""
    if settings.row_group_rows is not None:
        return settings.row_group_rows
    per_row = decoded_bytes(metadata) / max(metadata.num_rows, 1)
    rows = 2 ** round(math.log2(settings.unit_bytes / max(per_row, 1)))
    return min(max(rows, _FEWEST_ROWS), _MOST_ROWS)


def without_nulls(footer: Footer) -> set[str]:
    """Nullable columns of single values that hold no null, by the statistics of every row group."""
    metadata, schema = footer.metadata, footer.schema
    at = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    flat = [
        field.name for field in schema if field.nullable and field.name in at and not pa.types.is_nested(field.type)
    ]
    return {name for name in flat if (footer.null_counts[:, at[name]] == 0).all()}


def note_nulls(array: pa.Array, path: Path, found: set[Path]) -> None:
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


def tightened(schema: pa.Schema, found: set[Path]) -> tuple[pa.Schema, tuple[str, ...]]:
    """(schema in which all paths outside `found` are required, those that were nullable before)."""
    required: list[str] = []
    fields = [_tightened(field, (field.name,), found, required) for field in schema]
    return pa.schema(fields), tuple(required)


def delta_columns(sample: pa.Table, writer: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(integer leaf columns that are not larger as deltas, all other leaves), from rows written both ways.

    At equal size, deltas decode two to three times as fast as dictionary or plain pages, because there is
    less for zstd to decompress. Rising times and ids with many distinct values gain; columns with few
    distinct values do not. `writer`: the other settings of the files.
    """
    plain = _written(sample, **writer)
    names = [plain.schema.column(index).path for index in range(plain.num_columns)]
    integers = [names[i] for i in range(len(names)) if plain.schema.column(i).physical_type in _INTEGERS]
    if not integers or sample.num_rows == 0:
        return (), tuple(names)
    others = [name for name in names if name not in integers]
    encodings = dict.fromkeys(integers, "DELTA_BINARY_PACKED")
    packed = _written(sample, **{**writer, "use_dictionary": others, "column_encoding": encodings})
    before, after = (
        [one.row_group(0).column(index).total_compressed_size for index in range(len(names))] for one in (plain, packed)
    )
    smaller = {name for name, was, is_now in zip(names, before, after, strict=True) if is_now <= was}
    delta = tuple(name for name in integers if name in smaller)
    return delta, tuple(name for name in names if name not in delta)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def list_of(kind: pa.DataType, child: pa.Field | pa.DataType) -> pa.DataType:
    """The list type `kind` with other elements."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(child, kind.list_size)
    return pa.large_list(child) if pa.types.is_large_list(kind) else pa.list_(child)


def _tightened(field: pa.Field, path: Path, found: set[Path], required: list[str]) -> pa.Field:
    kind = field.type
    if is_list(kind):
        child = _tightened(kind.value_field, (*path, "element"), found, required)
        kind = list_of(kind, child)
    elif pa.types.is_struct(kind):
        kind = pa.struct([_tightened(inner, (*path, inner.name), found, required) for inner in kind])
    nullable = field.nullable and (path in found or pa.types.is_null(kind))
    if field.nullable and not nullable:
        required.append(".".join(path))
    return pa.field(field.name, kind, nullable, field.metadata)


def _written(sample: pa.Table, **options: Any) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(sample, sink, row_group_size=max(sample.num_rows, 1), **options)
    return pq.read_metadata(io.BytesIO(sink.getvalue()))
