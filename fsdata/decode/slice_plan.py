"""From bindings to what the decode kernels take: which columns to read, and one line of numbers per field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from fsdata.catalog.bind import Bound, Kind
from fsdata.catalog.roles import Want, is_list, plain
from fsdata.decode.row_layout import Layout
from fsdata.decode.widen import is_native
from fsdata.errors import SchemaError
from fsdata.kernels import index
from fsdata.schema import Schema

POLICY = {"error": index.ERROR, "default": index.DEFAULT, "drop": index.DROP}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a field goes: a row of the table, a column of the dense block, or an array of its own (time, keys)."""

    kind: Literal["row", "dense", "array"]
    index: int
    is_list: bool = False
    itemsize: int = 8


@dataclass(frozen=True, slots=True)
class Places:
    """The fields of a table.

    Attributes:
        of: field -> its place.
        rows, dense: F and D, what is to be allocated.
        itemsize: int64 [F], bytes per element.
        limit: int64 [F], most elements that anybody will want, -1 for all.
        keep_last: uint8 [F], whether those are the last.
    """

    of: Mapping[str, Place]
    rows: int
    dense: int
    itemsize: np.ndarray
    limit: np.ndarray
    keep_last: np.ndarray


def places_of(layout: Layout, schema: Schema) -> Places:
    """Fields of a sample go where the layout says, the dense ones into the columns of its one dense field."""
    groups = {group.name: group for group in schema.groups}
    of_row = [None if field.group is None else groups[field.group] for field in layout.fields]
    places: dict[str, Place] = {}
    for row, field in enumerate(layout.fields):
        if field.kind != "dense":
            places[field.name] = Place("row", row, field.group is not None, field.itemsize)
    places.update({name: Place("dense", column) for column, name in enumerate(schema.dense)})
    return Places(
        places,
        len(layout.fields),
        len(schema.dense),
        layout.itemsize,
        limit=np.array([group.max_length if group and group.max_length else -1 for group in of_row], np.int64),
        keep_last=np.array([group is not None and group.keep == "last" for group in of_row], np.uint8),
    )


def no_places() -> Places:
    """For reading times and keys alone."""
    none = np.empty(0, np.int64)
    return Places({}, 0, 0, none, none, none.astype(np.uint8))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the batch that the kernels see: a column of the file (`name`) or an expression's result."""

    bound: Bound
    name: str | None
    expression: int
    native: bool


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """How rows of one kind of file become rows of a table.

    Attributes:
        read: columns to decode, in the file's order.
        columns: columns of the batch that the kernels see; if `direct` they are those of the decoded batch.
        packed: int64, the rows of the table that the columns fill, in order of falling item size.
        spec, fallback, dense_spec, dense_default: see `fsdata.kernels.index`.
        spec_fields, dense_fields: the field of every line; defaults: its default.
        arrays: (want, column of the batch, -1 for one of `constants`) of time and keys.
        drops_all: a partition value is null under the policy `drop`.
        owners: keeps `fallback` alive.
    """

    read: tuple[str, ...]
    columns: tuple[Column, ...]
    direct: bool
    packed: np.ndarray
    spec: np.ndarray
    spec_fields: tuple[str, ...]
    defaults: tuple[float, ...]
    fallback: np.ndarray
    dense_spec: np.ndarray
    dense_fields: tuple[str, ...]
    dense_default: np.ndarray
    arrays: tuple[tuple[Want, int], ...]
    constants: dict[str, int]
    drops_all: bool
    owners: tuple[np.ndarray, ...]


def plan_slices(
    kind: Kind, places: Places, *, filter_roots: Sequence[str], roots: Mapping[str, Sequence[str]]
) -> SlicePlan:
    """Plan the decoding of all files of one kind.

    Args:
        filter_roots: columns that the source's filter reads.
        roots: field -> columns that its expression reads.
    """
    needed = set(filter_roots)
    columns: list[Column] = []
    for bound in kind.bounds:
        if bound.origin == "column":
            assert bound.column is not None
            needed.add(bound.column)
            columns.append(Column(bound, bound.column, -1, is_native(bound.type, bound.want.number)))
        elif bound.origin == "expression":
            needed.update(roots[bound.want.field])
            columns.append(Column(bound, None, sum(column.name is None for column in columns), False))
    read = tuple(name for name in kind.schema.names if name in needed)
    if not read:  # only defaults and partitions: some column must say how many rows there are
        read = (kind.schema.names[0],)
    direct = not filter_roots and all(column.native for column in columns)
    return _number(kind, places, columns, read, direct)


def _number(kind: Kind, places: Places, columns: list[Column], read: tuple[str, ...], direct: bool) -> SlicePlan:
    at = {(column.bound.want.field, column.bound.want.role): i for i, column in enumerate(columns)}
    if direct:
        at = {key: read.index(columns[i].name or "") for key, i in at.items()}
    rows: list[tuple[Bound, Place, int]] = []
    dense: list[tuple[Bound, Place, int]] = []
    arrays: list[tuple[Bound, int]] = []
    for bound in kind.bounds:
        column = at.get((bound.want.field, bound.want.role), -1)
        if bound.want.role in ("time", "join key"):
            arrays.append((bound, column))
        else:
            place = places.of[bound.want.field]
            (dense if place.kind == "dense" else rows).append((bound, place, column))
    blocks = [np.full(1, bound.value or 0, np.int64 if place.itemsize == 8 else np.float32) for bound, place, _ in rows]
    fallback = [0 if place.is_list else block.ctypes.data for (_, place, _), block in zip(rows, blocks, strict=True)]
    dense_spec = [(place.index, column, POLICY[bound.policy]) for bound, place, column in dense]
    return SlicePlan(
        read=read,
        columns=tuple(columns),
        direct=direct,
        packed=np.array([place.index for _, place, _ in sorted(rows, key=lambda row: -row[1].itemsize)], np.int64),
        spec=np.array([_line(*row) for row in rows], np.int64).reshape(-1, 7),
        spec_fields=tuple(bound.want.field for bound, _, _ in rows),
        defaults=tuple(bound.value or 0 for bound, _, _ in rows),
        fallback=np.array(fallback, np.int64),
        dense_spec=np.array(dense_spec, np.int64).reshape(-1, 3),
        dense_fields=tuple(bound.want.field for bound, _, _ in dense),
        dense_default=np.array([bound.value or 0.0 for bound, _, _ in dense], np.float32),
        arrays=tuple((bound.want, column) for bound, column in arrays),
        constants={bound.want.field: int(bound.value or 0) for bound, column in arrays if column < 0},
        drops_all=any(bound.origin == "partition" and bound.value is None for bound in kind.bounds),
        owners=tuple(blocks),
    )


def _line(bound: Bound, place: Place, column: int) -> tuple[int, ...]:
    tail = (place.itemsize, int(place.itemsize == 4), POLICY[bound.policy])
    if column < 0:
        return (place.index, -1, index.CONSTANT, -1 if place.is_list else 1, *tail)
    if bound.is_list != place.is_list:
        raise SchemaError(
            f"{bound.want.field}: a {'list' if bound.is_list else 'scalar'} in this source and not in another; "
            "all sources of a loader must agree"
        )
    return (place.index, column, *_list_kind(bound.type), *tail)


def _list_kind(kind: pa.DataType | None) -> tuple[int, int]:
    """Kind and width; converting keeps the kind of list, see `fsdata.decode.widen`."""

    assert kind is not None
    kind = plain(kind)
    if not is_list(kind):
        return index.SCALAR, 0
    if pa.types.is_fixed_size_list(kind):
        return index.FIXED, kind.list_size
    return (index.LIST64 if pa.types.is_large_list(kind) else index.LIST32), 0
