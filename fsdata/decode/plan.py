"""Plans decoding: which columns of a file are read, and which slot of the layout each of them fills (pure)."""

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
    """Destination of a bound field.

    Attributes:
        number: slot of the layout; for a nested field that of its counts, for a dense field its index among the dense
            fields, and -1 for keys and times, which no layout has.
        column: index in a finished batch, -1 if all rows have one value. A nested field has two columns, counts and
            ids.
    """

    binding: Binding
    number: int
    column: int


class DecodePlan:
    """How rows of one kind of file become `DecodedRows`.

    A *finished batch* is a record batch after filter, expressions and `map`, in types that kernels read.

    Attributes:
        kind, layout, source: the arguments.
        condition: the filter; None keeps all rows. expressions: field -> its expression. map: see `ParquetSource`.
        to_end: decode to the end of a row group, whatever rows are wanted, so that damage is detected independently of
            them.
        read: columns to decode, in the file's order. leaves: their leaf columns in the file.
        rows_only: no field needs a column; `read` has one that only counts rows.
        flat: all of `read` are numbers, one per row.
        columns: fields in the order of the columns of a finished batch, where a nested field has two (counts, ids);
            None if the decoded batch is finished as it is. native: whether kernels read each of them without a
            conversion.
        typed: columns that are null in all rows -> their type in other files.
        scalars: fields with one number per row, dense ones included. lists: fields with lists or texts. keys: join keys
            and times. constant: fields with one value for all rows. constant_dense: the same of dense fields, index
            among them -> value.
        stored: fields of `lists` that are columns of the file, unchanged, which another decoder may decode.
        drops_all: whether a null partition value drops all rows, see `fsdata.decode.nulls`.
    """

    def __init__(self, kind: FileKind, layout: Layout, source: ParquetSource, *, filtered: bool) -> None:
        """filtered: apply the source's filter.

        Raises:
            SchemaError: a field is a list in the files and a scalar in the layout, or the other way round.
        """
        self.kind, self.layout, self.source = kind, layout, source
        self._filtered = filtered
        self._without: dict[frozenset[Field], DecodePlan] = {}  # made once: every row group asks for one of a few
        self.condition = source.condition if filtered else None
        # Times by which rows are merged are those of the files: `map` must not change the order of an epoch.
        order_only = all(each.field.kind == "time" for each in kind.bindings)
        self.map = None if order_only else source.map
        self.to_end = source.on_error == "skip"
        self._plan_batches()
        self._plan_slots()

    def without(self, served: frozenset[Field]) -> "DecodePlan":
        """The plan without the fields that another decoder serves."""
        if served not in self._without:
            rest = replace(self.kind, bindings=tuple(each for each in self.kind.bindings if each.field not in served))
            self._without[served] = DecodePlan(rest, self.layout, self.source, filtered=self._filtered)
        return self._without[served]

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
        self.read = self.read or (_any_column(kind.schema),)
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
        self.constant = tuple(each for each in fields if each.column < 0)
        self.constant_dense = {each.number: float(each.binding.value or 0) for each in dense if each.column < 0}
        self.scalars = ScalarPlan.of(
            [(each.binding, each.column, each.number, layout.fields[each.number].itemsize) for each in scalars],
            [(each.binding, each.column, each.number) for each in dense if each.column >= 0],
        )
        columns_of_file = (each.binding for each in self.lists if each.binding.origin == "column")
        self.stored = tuple(columns_of_file) if self.map is None else ()
        self.drops_all = drops_all([each.binding for each in (*fields, *dense)])

    def _column_of(self) -> dict[Field, int]:
        """Field -> index of its column in a finished batch, of the first one if it has two."""
        if self.columns is None:
            position = {name: number for number, name in enumerate(self.read)}
            return {each.field: position[str(each.column)] for each in self.kind.bindings if each.origin == "column"}
        widths = [2 if binding.field.shape == "nested" else 1 for binding in self.columns]
        first = np.cumsum([0, *widths]).tolist()
        return {binding.field: at for binding, at in zip(self.columns, first, strict=False)}


def _typed(binding: Binding, layout: Layout) -> Binding:
    """The binding with the type that its field needs, if the column is null in all rows of all files."""
    if binding.origin != "column" or binding.type is None or not is_null(binding.type):
        return binding
    name, field = binding.field.name, binding.field
    listed = name in layout.slots and layout.fields[layout.slots[name]].is_list and not binding.is_text
    needed = type_for(field, text=binding.is_text, listed=listed and field.shape == "either")
    return replace(binding, type=with_items(binding.type, needed))


def _any_column(schema: pa.Schema) -> str:
    """A column that can be read without a key, if there is one."""
    encrypted = encrypted_columns(schema)
    return next((name for name in schema.names if name not in encrypted), schema.names[0])


def _check_form(binding: Binding, field: Field) -> None:
    if binding.is_list is not None and field.kind not in ("text", "counts") and binding.is_list != field.is_list:
        raise SchemaError(
            f"{binding.field.name}: a {'list' if binding.is_list else 'scalar'} in this source and not in another; "
            "all sources of a loader must agree"
        )
