"""Which columns FreeScale decodes itself, and how their values are stored. Pure: schemas in, forms or reasons out."""

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.arrow_types import is_list, plain
from fsdata.kernels import columns
from fsdata.schema import Number

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_SMALL = {pa.int8(): (-128, 127), pa.int16(): (-32768, 32767), pa.uint8(): (0, 255), pa.uint16(): (0, 65535)}
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")  # in the order of `fsdata.kernels.pages.rows`
_CODECS = frozenset({"UNCOMPRESSED", "ZSTD", "SNAPPY", "GZIP", "LZ4"})  # LZ4: without Hadoop's frames
_FEW = 1 << 20
_RATIO = 1 << 12  # values or bytes that a stored byte may stand for, beyond the first million


def why_left(chunk: pq.ColumnChunkMetaData) -> str | None:
    """Why a column chunk of any form is left to pyarrow, if it is."""
    if chunk.compression not in _CODECS:
        return f"compressed by {chunk.compression}"
    if chunk.file_path:
        return "in another file"
    if max(chunk.num_values, chunk.total_uncompressed_size) > _RATIO * chunk.total_compressed_size + _FEW:
        return "few bytes that stand for many values"
    return None


@dataclass(frozen=True)
class Form:
    """How a column is stored, and as what it is needed.

    Attributes:
        physical: of a value, in the file.
        repeated: lists; top: level of definition of a value; present: of a list without elements.
        stored: one of those of `fsdata.kernels.columns`.
        dtype: what a value becomes.
        within: of small integers, least and greatest; pyarrow cuts others, which no writer makes.
    """

    physical: str
    repeated: bool
    top: int
    present: int
    stored: int
    dtype: type[np.int64] | type[np.float32]
    within: tuple[int, int] | None = None

    @cached_property
    def numbers(self) -> np.ndarray:
        """int64 [8], the same for kernels, see `fsdata.kernels.pages.rows`."""
        least, most = self.within or (0, 0)
        itemsize = np.dtype(self.dtype).itemsize
        physical = _PHYSICAL.index(self.physical)
        return np.array([physical, self.repeated, self.top, self.present, self.stored, itemsize, least, most])


def form_of(column: pq.ColumnSchema, name: str, arrow_type: pa.DataType, number: Number) -> Form | str:
    """The form of a leaf column that serves a field, or why it is left to pyarrow.

    Args:
        name, arrow_type: of the column in the file's Arrow schema.
    """
    if isinstance(arrow_type, pa.BaseExtensionType) or pa.types.is_dictionary(arrow_type):
        arrow_type = plain(arrow_type)
    parts = column.path[len(name) :].split(".")  # without the name, which may have dots
    levels = (column.max_repetition_level, column.max_definition_level)
    repeated = is_list(arrow_type)
    if repeated:
        if pa.types.is_fixed_size_list(arrow_type):
            return "a list of fixed size"
        item = arrow_type.value_field
        present = levels[1] - 1 - int(item.nullable)
        if len(parts) != 3 or levels[0] != 1 or present not in (0, 1):
            return "a list that is not stored as three levels"
        arrow_type = plain(item.type)
        if is_list(arrow_type):
            return "a list of lists"
    else:
        if len(parts) != 1 or levels[0] or levels[1] > 1:
            return "nested"
        present = 0
    stored = _stored(column, arrow_type, number)
    if isinstance(stored, str):
        return stored
    return Form(
        physical=column.physical_type,
        repeated=repeated,
        top=levels[1],
        present=present,
        stored=stored,
        dtype=np.float32 if number == "value" else np.int64,
        within=_SMALL.get(arrow_type),
    )


def _stored(column: pq.ColumnSchema, item: pa.DataType, number: Number) -> int | str:
    """How values are stored, or why they are left to pyarrow."""
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
    """Whether the file counts time as Arrow does, and as the field wants it."""
    if not pa.types.is_timestamp(item) or (number == "time" and item.unit != "ns"):
        return False
    logical = json.loads(column.logical_type.to_json())
    return logical.get("Type") == "Timestamp" and _UNITS.get(logical.get("timeUnit")) == item.unit
