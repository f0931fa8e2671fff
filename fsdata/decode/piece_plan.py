"""From bindings to how a piece is decoded: which columns are read, and which field each of them fills."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.arrow_types import encrypted_columns, is_null, type_for, with_items
from fsdata.catalog.binding.bind import Binding, FileKind
from fsdata.catalog.binding.column_paths import names_at
from fsdata.decode.arrow.record_batches import ArrowPlan, Map
from fsdata.decode.arrow.scalars import ScalarPlan
from fsdata.decode.arrow.widen import is_native
from fsdata.decode.block import Column, run
from fsdata.decode.row_layout import Layout, ids_of
from fsdata.errors import SchemaError
from fsdata.schema import Field
from fsdata.sources.expressions import Expression


@dataclass(frozen=True, slots=True)
class PlannedField:
    """What a field is made of: `column` of a finished batch, -1 if all rows have one value; a nested field has two, its
    counts and its ids.

    slot: of the layout, for a nested field that of its counts; of a dense field its place among these.
    """

    binding: Binding
    slot: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PiecePlan:
    """How rows of one kind of file become those of a piece.

    Attributes:
        layout: which fields the piece has.
        batches: how the record batches are made.
        scalars: fields with one number per row, the dense included. lists: those with lists or texts.
        alike: fields that all rows have alike, and dense fields that are (the default of each place).
        arrays: times and keys.
        stored: lists that are columns of the file as they stand there.
        drops_all: a partition value is null under the policy `drop`.
        without: fields -> the plan of the others.
    """

    layout: Layout
    batches: ArrowPlan
    scalars: ScalarPlan
    lists: tuple[PlannedField, ...]
    alike: tuple[PlannedField, ...]
    alike_dense: Mapping[int, float]
    arrays: tuple[PlannedField, ...]
    stored: tuple[Binding, ...]
    drops_all: bool
    without: Callable[[frozenset[Field]], "PiecePlan"]


def plan_pieces(
    kind: FileKind,
    layout: Layout,
    *,
    condition: Expression | None,
    expressions: Mapping[str, Expression],
    map: Map | None = None,
) -> PiecePlan:
    """Plan the decoding of all files of one kind.

    Args:
        condition: the filter.
        expressions: field -> the expression that makes it.
        map: see `ParquetSource`.

    Raises:
        SchemaError: a field is a list in the files and a scalar in the layout, or the other way round.
    """
    batches = _plan_batches(kind, layout, condition, expressions, map)
    if batches.columns is None:
        position = {name: number for number, name in enumerate(batches.read)}
        column = {each.field: position[each.column] for each in kind.bindings if each.origin == "column"}  # type: ignore[index]
    else:
        widths = [2 if binding.field.shape == "nested" else 1 for binding in batches.columns]
        column = dict(zip((each.field for each in batches.columns), (np.cumsum(widths) - widths).tolist(), strict=True))
    dense_slots = {name: slot for slot, name in enumerate(layout.dense)}
    fields, dense, arrays = [], [], []
    for binding in kind.bindings:
        name, at = binding.field.name, column.get(binding.field, -1)
        if binding.field.only_read:
            arrays.append(PlannedField(binding, -1, at))
        elif binding.field.kind == "dense":
            dense.append(PlannedField(binding, dense_slots[name], at))
        else:
            fields.append(PlannedField(binding, layout.slots[name], at))
            _check_form(binding, layout.fields[layout.slots[name]])

    @functools.cache
    def without(served: frozenset[Field]) -> PiecePlan:
        rest = tuple(each for each in kind.bindings if each.field not in served)
        return plan_pieces(replace(kind, bindings=rest), layout, condition=condition, expressions=expressions, map=map)

    read = [each for each in fields if each.column >= 0]
    scalars = [each for each in read if not layout.fields[each.slot].is_list]
    lists = tuple(each for each in read if layout.fields[each.slot].is_list)
    stored = (each.binding for each in lists if each.binding.origin == "column" and map is None)
    return PiecePlan(
        layout=layout,
        batches=batches,
        scalars=ScalarPlan.of(
            [(each.binding, each.column, each.slot, layout.fields[each.slot].itemsize) for each in scalars],
            [(each.binding, each.column, each.slot) for each in dense if each.column >= 0],
        ),
        lists=lists,
        alike=tuple(each for each in fields if each.column < 0),
        alike_dense={each.slot: float(each.binding.value or 0) for each in dense if each.column < 0},
        arrays=tuple(arrays),
        stored=tuple(stored),
        drops_all=any(each.binding.origin == "partition" and each.binding.value is None for each in (*fields, *dense)),
        without=without,
    )


def constant(part: PlannedField, layout: Layout, rows: int) -> dict[int, Column]:
    """Slot -> the values of a field that all rows have alike: partitions and defaults. Lists are null."""
    binding, field = part.binding, layout.fields[part.slot]
    null = Column(run(0, 0), length=np.full(rows, -1), step=0)
    if binding.field.shape == "nested":
        return {part.slot: null, layout.slots[ids_of(binding.field.name)]: Column(run(0, 0), step=0, width=0)}
    if field.kind == "text":
        return {part.slot: Column.constant(np.frombuffer(str(binding.value or "").encode(), np.uint8))}
    if field.is_list:
        return {part.slot: null}
    return {part.slot: Column.constant(np.full(1, binding.value or 0, field.dtype))}


def _plan_batches(
    kind: FileKind,
    layout: Layout,
    condition: Expression | None,
    expressions: Mapping[str, Expression],
    map: Map | None,
) -> ArrowPlan:
    columns = tuple(each for each in kind.bindings if each.origin in ("column", "expression"))
    needed = set() if condition is None else set(condition.columns)
    for binding in columns:
        needed.update(expressions[binding.field.name].columns if binding.column is None else [binding.column])
    paths = {names for each in needed if (names := names_at(kind.schema, each)) is not None}
    roots = {names[0] for names in paths}
    read = tuple(name for name in kind.schema.names if name in roots)
    native = tuple(each.type is not None and is_native(each.type, each.field.number) for each in columns)
    as_they_are = all(native) and all(each.origin == "column" and each.column in roots for each in columns)
    made = any(each.origin == "expression" for each in columns)
    needs_none = not read and condition is None and not made
    read = read or (_any_column(kind.schema),)  # without a column, the number of rows is not known
    return ArrowPlan(
        read=read,
        paths=tuple(sorted(paths or {(read[0],)})),
        needs_none=needs_none,
        flat=all(pa.types.is_primitive(each.type) for each in kind.schema if each.name in read),
        condition=condition,
        columns=None
        if as_they_are and condition is None and map is None
        else tuple(_typed(each, layout) for each in columns),
        native=native,
        typed={name: kind.schema.field(name).type for name in kind.typed if name in roots},
        expressions=expressions,
        partitions=kind.partitions,
        map=map,
    )


def _typed(binding: Binding, layout: Layout) -> Binding:
    """With the type that the field needs, where the column holds nothing but nulls in all files."""
    if binding.origin != "column" or binding.type is None or not is_null(binding.type):
        return binding
    name, field = binding.field.name, binding.field
    listed = name in layout.slots and layout.fields[layout.slots[name]].is_list and not binding.is_text
    needed = type_for(field, text=binding.is_text, listed=listed and field.shape == "either")
    return replace(binding, type=with_items(binding.type, needed))


def _any_column(schema: pa.Schema) -> str:
    """One that can be read, if there is one."""
    encrypted = encrypted_columns(schema)
    return next((name for name in schema.names if name not in encrypted), schema.names[0])


def _check_form(binding: Binding, field: Field) -> None:
    if binding.is_list is not None and field.kind not in ("text", "counts") and binding.is_list != field.is_list:
        raise SchemaError(
            f"{binding.field.name}: a {'list' if binding.is_list else 'scalar'} in this source and not in another; "
            "all sources of a loader must agree"
        )
