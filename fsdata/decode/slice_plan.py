"""From bindings to what the decode kernels take: which columns to read, and one record per field."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fsdata.catalog.bind import FieldBinding, FileKind
from fsdata.catalog.roles import WantedField, is_list, plain
from fsdata.decode.arrow.record_batches import BatchPlan, Map
from fsdata.decode.arrow.widen import is_native
from fsdata.decode.row_layout import Field, Layout, ids_of
from fsdata.errors import SchemaError
from fsdata.kernels import index
from fsdata.sources.expressions import Expression

POLICY = {"error": index.ERROR, "default": index.DEFAULT, "drop": index.DROP}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """How rows of one kind of file become rows of a table.

    Attributes:
        layout: which fields the table has.
        batches: how the record batches are made.
        fields: FIELD of `fsdata.kernels.index`; packed: the same in order of falling item size.
        nested: NESTED of `fsdata.kernels.index`.
        dense: DENSE_FIELD of `fsdata.kernels.index`.
        bindings, dense_bindings: what `fields` and `dense` were made from; a nested field made two of `fields`.
        arrays: times and keys, each with its column of the batch, -1 if all rows have one value.
        drops_all: a partition value is null under the policy `drop`.
        defaults: memory that `fields` points to.
        without: fields -> the plan of the others.
    """

    layout: Layout
    batches: BatchPlan
    fields: np.ndarray
    packed: np.ndarray
    nested: np.ndarray
    dense: np.ndarray
    bindings: tuple[FieldBinding, ...]
    dense_bindings: tuple[FieldBinding, ...]
    arrays: tuple[tuple[FieldBinding, int], ...]
    drops_all: bool
    defaults: tuple[np.ndarray, ...]
    without: Callable[[frozenset[WantedField]], "SlicePlan"]

    @property
    def stored(self) -> tuple[FieldBinding, ...]:
        """The fields that are columns of the file as they stand there."""
        if self.batches.map is not None:
            return ()
        return tuple(
            dict.fromkeys(
                each
                for each in (*self.bindings, *self.dense_bindings, *(binding for binding, _ in self.arrays))
                if each.origin == "column"
            )
        )


def plan_slices(
    kind: FileKind,
    layout: Layout,
    *,
    condition: Expression | None,
    expressions: Mapping[str, Expression],
    map: Map | None = None,
) -> SlicePlan:
    """Plan the decoding of all files of one kind.

    Args:
        condition: the filter.
        expressions: field -> the expression that makes it.
        map: see `ParquetSource`.

    Raises:
        SchemaError: a field is a list in the files and a scalar in the layout, or the other way round.
    """
    batches = _plan_batches(kind, condition, expressions, map)
    if batches.columns is None:
        position = {name: number for number, name in enumerate(batches.read)}
        column = {each.field: position[each.column] for each in kind.bindings if each.origin == "column"}  # type: ignore[index]
    else:
        widths = [2 if binding.field.shape == "nested" else 1 for binding in batches.columns]
        column = dict(zip((each.field for each in batches.columns), (np.cumsum(widths) - widths).tolist(), strict=True))
    arrays = [each for each in kind.bindings if each.field.only_read]
    dense = [each for each in kind.bindings if each.field.role == "dense"]
    rest = [each for each in kind.bindings if not each.field.only_read and each.field.role != "dense"]
    parts = [part for each in rest for part in _parts(each, column.get(each.field, -1), layout)]
    fields, defaults = _field_records(parts, layout, mapped=map is not None)

    @functools.cache
    def without(served: frozenset[WantedField]) -> SlicePlan:
        rest = tuple(each for each in kind.bindings if each.field not in served)
        return plan_slices(replace(kind, bindings=rest), layout, condition=condition, expressions=expressions, map=map)

    return SlicePlan(
        layout=layout,
        batches=batches,
        fields=fields,
        packed=fields[np.argsort(-fields["itemsize"], kind="stable")],
        nested=_nested_records(parts, layout),
        dense=_dense_records(dense, [column.get(each.field, -1) for each in dense], layout),
        bindings=tuple(part.binding for part in parts),
        dense_bindings=tuple(dense),
        arrays=tuple((each, column.get(each.field, -1)) for each in arrays),
        drops_all=any(each.origin == "partition" and each.value is None for each in (*rest, *dense)),
        defaults=defaults,
        without=without,
    )


def _plan_batches(
    kind: FileKind, condition: Expression | None, expressions: Mapping[str, Expression], map: Map | None
) -> BatchPlan:
    columns = tuple(each for each in kind.bindings if each.origin in ("column", "expression"))
    needed = set() if condition is None else set(condition.columns)
    for binding in columns:
        needed.update([binding.column] if binding.column else expressions[binding.field.name].columns)
    read = tuple(name for name in kind.schema.names if name in needed)
    native = all(each.origin == "column" and is_native(each.type, each.field.number) for each in columns)
    return BatchPlan(
        read=read or (kind.schema.names[0],),  # without a column nobody knows how many rows there are
        needs_none=not read and condition is None and not any(each.origin == "expression" for each in columns),
        condition=condition,
        columns=None if native and condition is None and map is None else columns,
        expressions=expressions,
        partitions=kind.partitions,
        map=map,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one column of a finished batch fills: `slot` of the layout. `column` is -1 without one."""

    binding: FieldBinding
    slot: int
    column: int


def _parts(binding: FieldBinding, column: int, layout: Layout) -> list[_Part]:
    """One part; of a nested field its counts, whose default is 0, and then its ids."""
    name = binding.field.name
    if binding.field.shape != "nested":
        return [_Part(binding, layout.slots[name], column)]
    counts = _Part(replace(binding, value=0), layout.slots[name], column)
    return [counts, _Part(binding, layout.slots[ids_of(name)], column if column < 0 else column + 1)]


def _field_records(
    parts: Sequence[_Part], layout: Layout, *, mapped: bool
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """FIELD [K], and the defaults that it points to."""
    bindings = [part.binding for part in parts]
    fields = [layout.fields[part.slot] for part in parts]
    shapes = [
        _shape(part.binding, field, part.column, mapped=mapped) for part, field in zip(parts, fields, strict=True)
    ]
    defaults = tuple(_default(binding, field) for binding, field in zip(bindings, fields, strict=True))
    records = np.zeros(len(parts), index.FIELD)
    records["slot"] = [part.slot for part in parts]
    records["column"] = [part.column for part in parts]
    records["shape"] = [shape for shape, _ in shapes]
    records["width"] = [width for _, width in shapes]
    records["itemsize"] = [field.itemsize for field in fields]
    records["is_float"] = records["itemsize"] == 4
    records["policy"] = [POLICY[binding.policy] for binding in bindings]
    records["default"] = [
        0 if field.is_list and field.kind != "text" else value.ctypes.data
        for field, value in zip(fields, defaults, strict=True)
    ]
    records["max_length"] = [field.max_length or -1 for field in fields]
    records["keep_last"] = [field.keep_last for field in fields]
    return records, defaults


def _default(binding: FieldBinding, field: Field) -> np.ndarray:
    """One value of the field, all bytes of a text."""
    if field.kind == "text":
        return np.frombuffer(str(binding.value or "").encode(), np.uint8)
    return np.full(1, binding.value or 0, field.dtype)


def _nested_records(parts: Sequence[_Part], layout: Layout) -> np.ndarray:
    """NESTED [n]: of the fields that come from this table."""
    pairs = [
        (part.slot, ids.slot) for part, ids in itertools.pairwise(parts) if layout.fields[part.slot].kind == "counts"
    ]
    records = np.zeros(len(pairs), index.NESTED)
    records["counts"] = [counts for counts, _ in pairs]
    records["ids"] = [ids for _, ids in pairs]
    records["max_length"] = [layout.fields[counts].max_length or -1 for counts, _ in pairs]
    records["keep_last"] = [layout.fields[counts].keep_last for counts, _ in pairs]
    return records


def _dense_records(bindings: Sequence[FieldBinding], columns: Sequence[int], layout: Layout) -> np.ndarray:
    slots = {name: slot for slot, name in enumerate(layout.dense)}
    records = np.zeros(len(bindings), index.DENSE_FIELD)
    records["slot"] = [slots[binding.field.name] for binding in bindings]
    records["column"] = columns
    records["policy"] = [POLICY[binding.policy] for binding in bindings]
    records["default"] = [binding.value or 0.0 for binding in bindings]
    return records


def _shape(binding: FieldBinding, field: Field, column: int, *, mapped: bool) -> tuple[int, int]:
    """Shape and width of a FIELD; converting keeps the kind of list, see `fsdata.decode.arrow.widen`, where nothing
    `mapped` it."""
    if field.kind == "text":
        if column < 0:
            return index.CONSTANT, len(_default(binding, field))
        return (index.LIST32 if pa.types.is_string(plain(binding.type)) and not mapped else index.LIST64), 0
    if column < 0:
        return index.CONSTANT, 0 if field.kind == "nested_ids" else -1 if field.is_list else 1
    if field.kind in ("counts", "nested_ids"):
        return index.LIST64, 0
    if binding.is_list != field.is_list:
        raise SchemaError(
            f"{binding.field.name}: a {'list' if binding.is_list else 'scalar'} in this source and not in another; "
            "all sources of a loader must agree"
        )
    arrow_type = plain(binding.type)
    if not is_list(arrow_type):
        return index.SCALAR, 0
    if mapped:
        return index.LIST64, 0
    if pa.types.is_fixed_size_list(arrow_type):
        return index.FIXED, arrow_type.list_size
    return (index.LIST64 if pa.types.is_large_list(arrow_type) else index.LIST32), 0
