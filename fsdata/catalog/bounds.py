"""The smallest and the largest value of a column in every row group, from the statistics of footers.

Only for columns of integers and times: for these Parquet's order is the order of numbers, and statistics count every
value (those of floats ignore NaN). Bounds are int64 in the units of the column's Arrow type.

Letters: G row groups.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import leaves_of, plain
from fsdata.kernels import footer as kernel

Bounds = Mapping[str, np.ndarray]
"""Column -> int64 [2, G], smallest and largest value; the largest is below the smallest if the footer has none."""

UNKNOWN = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min])
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_STORED = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_MS_PER_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class BoundsReader:
    """Reads the bounds of one column from the footers of one schema.

    A stored value, multiplied by `times` and divided by `by`, is in the units of the Arrow type.
    """

    leaf: int
    size: int
    signed: bool
    times: int = 1
    by: int = 1

    def read(self, raw: bytes, chunks: np.ndarray, leaves: int) -> np.ndarray:
        """int64 [2, G]. raw: the footer; chunks: int64 [G * leaves, 11], see `fsdata.kernels.footer`."""
        positions = chunks[self.leaf :: leaves, [kernel.LEAST, kernel.GREATEST]]
        bounds = np.empty((2, len(positions)), np.int64)
        for group, (least, greatest) in enumerate(positions.tolist()):
            # One end alone is not used: unknown bounds have one mark for both ends.
            low = self._value(raw, least) if least >= 0 <= greatest else None
            high = self._value(raw, greatest) if low is not None else None
            # Rounded outwards: bounds may be too wide, but must not exclude a value.
            bounds[:, group] = UNKNOWN if low is None or high is None else (low // self.by, -(-high // self.by))
        return bounds

    def _value(self, raw: bytes, at: int) -> int | None:
        value = int.from_bytes(raw[at : at + self.size], "little", signed=self.signed) * self.times
        return value if -(2**63) <= value < 2**63 else None


def readers(metadata: pq.FileMetaData, schema: pa.Schema, names: Iterable[str]) -> dict[str, BoundsReader]:
    """Name -> reader, of the columns in `names` whose bounds can be read."""
    leaves = dict(zip(schema.names, leaves_of(schema), strict=True))
    result = {}
    for name in names:
        if len(schema.get_all_field_indices(name)) == 1:
            leaf = leaves[name][0]
            reader = _reader(leaf, metadata.schema.column(leaf), plain(schema.field(name).type))
            if reader is not None:
                result[name] = reader
    return result


def _reader(leaf: int, column: pq.ColumnSchema, arrow: pa.DataType) -> BoundsReader | None:
    size = {"INT32": 4, "INT64": 8}.get(column.physical_type)
    if size is None:
        return None
    logical = json.loads(column.logical_type.to_json())
    if pa.types.is_integer(arrow):
        signed = logical.get("isSigned", True)
        return BoundsReader(leaf, size, signed) if signed or size == 4 else None  # uint64 does not fit into int64
    if pa.types.is_date32(arrow) and logical["Type"] == "Date":
        return BoundsReader(leaf, size, True)
    if pa.types.is_date64(arrow) and logical["Type"] == "Date":
        return BoundsReader(leaf, size, True, times=_MS_PER_DAY)
    if pa.types.is_timestamp(arrow) and logical["Type"] == "Timestamp" and logical["timeUnit"] in _STORED:
        stored, wanted = _PER_SECOND[_STORED[logical["timeUnit"]]], _PER_SECOND[arrow.unit]
        return BoundsReader(leaf, size, True, times=max(wanted // stored, 1), by=max(stored // wanted, 1))
    return None


def unknown(groups: int) -> np.ndarray:
    """int64 [2, groups] of a column without bounds."""
    return np.repeat(UNKNOWN[:, None], groups, axis=1)


def joined(parts: Sequence[Bounds], groups: Sequence[int], names: Iterable[str]) -> dict[str, np.ndarray]:
    """The bounds of several parts, one after another. groups: number of row groups of each part."""
    empty = np.empty((2, 0), np.int64)
    return {
        name: np.concatenate(
            [empty, *(part.get(name, unknown(count)) for part, count in zip(parts, groups, strict=True))], axis=1
        )
        for name in names
    }


def as_columns(bounds: np.ndarray, arrow: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """(smallest, largest) as columns of the type, null where they are unknown."""
    kind, none = plain(arrow), bounds[1] < bounds[0]
    stored = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    low, high = (pa.array(np.where(none, 0, end), pa.int64(), mask=none).cast(stored).cast(kind) for end in bounds)
    return low, high
