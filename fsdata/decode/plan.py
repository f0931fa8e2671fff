"""From bindings to how rows are decoded: which columns are read, and which slot each of them fills (pure)."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.arrow_types import encrypted_columns, is_null, type_for, with_items
from fsdata.catalog.binding.bind import Binding, FileKind
from fsdata.catalog.binding.column_paths import leaves_at, names_at
from fsdata.decode.arrow.scalars import ScalarPlan
from fsdata.decode.arrow.widen import is_native
from fsdata.decode.nulls import drops_all
from fsdata.decode.row_layout import Layout
from fsdata.errors import SchemaError
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the values of a bound field go.

    Attributes:
        number: the slot of the layout, of a nested field that of its counts; of a dense field its place among these;
            -1 of keys and times, which a layout does not have.
        column: of a finished batch, -1 if all rows have one value. A nested field has two, its counts and its ids.
    """

    binding: Binding
    number: int
    column: int


class DecodePlan:
    """How rows of one kind of file become a `Table`.

    Attributes:
        kind, layout, source: what it was made of.
        condition: the filter; None keeps all rows. expressions: field -> the one that makes it. map: see
            `ParquetSource`.
        to_end: decode to the end of a row group, whatever part of it is asked for: so damage is found or not
            independently of the part.
        read: columns to decode, in the file's order. leaves: the leaf columns of the file that these take.
        rows_only: no field is made of `read`: it is a column that says how many rows there are.
        flat: all of `read` hold numbers, one per row.
        columns: the fields that the columns of a finished batch hold, a nested field in two of them (counts, ids); None
            if it is the decoded batch as it is. native: whether kernels read each of them as it is.
        scalars: fields with one number per row, the dense included. lists: those with lists or texts. keys: join keys
            and times. alike: fields that all rows have alike. alike_dense: place -> default, of dense fields that all
            rows have alike.
        stored: of `lists`, columns of the file as they are stored, which another decoder may read.
        drops_all: a partition value is null under the policy `drop`.
    """

    def __init__(self, kind: FileKind, layout: Layout, source: ParquetSource, *, filtered: bool) -> None:
        """filtered: whether rows are left out that the source's filter does not keep.

        Raises:
            SchemaError: a field is a list in the files and a scalar in the layout, or the other way round.
        """
        self.kind, self.layout, self.source = kind, layout, source
        self._filtered = filtered
        self.condition = source.condition if filtered else None
        order_only = all(each.field.kind == "time" for each in kind.bindings)  # the order is that of the files
        self.map = None if order_only else source.map
        self.to_end = source.on_error == "skip"
        self._plan_batches()
        self._plan_slots()

    @functools.cache  # noqa: B019  # a plan is dropped with all of its source
    def without(self, served: frozenset[Field]) -> "DecodePlan":
        """The plan of the other fields."""
        rest = tuple(each for each in self.kind.bindings if each.field not in served)
        return DecodePlan(replace(self.kind, bindings=rest), self.layout, self.source, filtered=self._filtered)

    def _plan_batches(self) -> None:
        kind = self.kind
        columns = tuple(each for each in kind.bindings if each.origin in ("column", "expression"))
        computed = (each.field.name for each in columns if each.origin == "expression")
        self.expressions = {name: self.source.expression_of(name) for name in computed}
        needed = set() if self.condition is None else set(self.condition.columns)
        needed.update(str(each.column) for each in columns if each.origin == "column")
        needed.update(*(expression.columns for expression in self.expressions.values()))
        paths = {names for each in needed if (names := names_at(kind.schema, each)) is not None}
        roots = {names[0] for names in paths}
        self.read = tuple(name for name in kind.schema.names if name in roots)
        self.rows_only = not self.read and self.condition is None and not self.expressions
        self.read = self.read or (_any_column(kind.schema),)  # without a column, the number of rows is not known
        self.leaves = leaves_at(kind.stored, sorted(paths or {(self.read[0],)}))
        self.flat = all(pa.types.is_primitive(each.type) for each in kind.schema if each.name in self.read)
        self.typed = {name: kind.schema.field(name).type for name in kind.typed if name in roots}
        self.native = tuple(each.type is not None and is_native(each.type, each.field.number) for each in columns)
        top_level = all(each.origin == "column" and each.column in roots for each in columns)
        as_they_are = all(self.native) and top_level and self.condition is None and self.map is None
        self.columns = None if as_they_are else tuple(_typed(each, self.layout) for each in columns)

    def _plan_slots(self) -> None:
        layout, column = self.layout, self._column_of()
        dense_places = {name: place for place, name in enumerate(layout.dense)}
        fields, dense, keys = [], [], []
        for binding in self.kind.bindings:
            name, at = binding.field.name, column.get(binding.field, -1)
            if binding.field.only_read:
                keys.append(Slot(binding, -1, at))
            elif binding.field.kind == "dense":
                dense.append(Slot(binding, dense_places[name], at))
            else:
                fields.append(Slot(binding, layout.slots[name], at))
                _check_form(binding, layout.fields[layout.slots[name]])
        read = [each for each in fields if each.column >= 0]
        scalars = [each for each in read if not layout.fields[each.number].is_list]
        self.lists = tuple(each for each in read if layout.fields[each.number].is_list)
        self.keys = tuple(keys)
        self.alike = tuple(each for each in fields if each.column < 0)
        self.alike_dense = {each.number: float(each.binding.value or 0) for each in dense if each.column < 0}
        self.scalars = ScalarPlan.of(
            [(each.binding, each.column, each.number, layout.fields[each.number].itemsize) for each in scalars],
            [(each.binding, each.column, each.number) for each in dense if each.column >= 0],
        )
        columns_of_file = (each.binding for each in self.lists if each.binding.origin == "column")
        self.stored = tuple(columns_of_file) if self.map is None else ()
        self.drops_all = drops_all([each.binding for each in (*fields, *dense)])

    def _column_of(self) -> dict[Field, int]:
        """Field -> its column in a finished batch; the first of two."""
        if self.columns is None:
            position = {name: number for number, name in enumerate(self.read)}
            return {each.field: position[str(each.column)] for each in self.kind.bindings if each.origin == "column"}
        widths = [2 if binding.field.shape == "nested" else 1 for binding in self.columns]
        first = np.cumsum([0, *widths]).tolist()
        return {binding.field: at for binding, at in zip(self.columns, first, strict=False)}


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
