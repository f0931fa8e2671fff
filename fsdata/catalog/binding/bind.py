"""Binding: assigns a column, expression or default to each field in each kind of file, and reports misfits."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.arrow_types import (
    encrypted_columns,
    is_list,
    is_null,
    is_text,
    objection,
    plain,
    type_for,
    unit_of,
    with_items,
)
from fsdata.catalog.binding.column_paths import fields_near, names_at, type_at
from fsdata.catalog.binding.key_types import differences as hash_differences
from fsdata.catalog.binding.key_types import folder_columns, hashed_types
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import Partitions
from fsdata.errors import Fault, SchemaError
from fsdata.schema import Field
from fsdata.sources import expressions
from fsdata.sources.source import ParquetSource, Policy

Origin = Literal["column", "partition", "expression", "default"]
_FILES_NAMED = 20
_COLUMNS_NAMED = 60
_MAX_FLOAT32 = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Binding:
    """The origin of one field's values in one kind of file.

    `column` is set for columns and partitions, `value` for partitions and defaults (None: a null). `type` is that of
    the column or of the expression's result; for a missing column it is None, for a missing passthrough that of its
    default.
    """

    field: Field
    origin: Origin
    column: str | None = None
    type: pa.DataType | None = None
    value: float | str | None = None
    policy: Policy = "error"

    @property
    def is_list(self) -> bool | None:
        """Whether the field is a list; None if it has only defaults or nulls and can be either."""
        return None if self.type is None or pa.types.is_null(plain(self.type)) else is_list(plain(self.type))

    @property
    def is_text(self) -> bool:
        """Whether the field is a passthrough of text."""
        if self.type is not None and is_null(self.type):
            return self.field.number == "passthrough" and isinstance(self.value, str)
        return self.field.number == "passthrough" and is_text(plain(self.type))

    @property
    def unit(self) -> str | None:
        """The unit of its integers, see `unit_of`; None if unknown. A default of a time is an integer."""
        if self.type is None:
            return "integers" if self.field.number == "time" and self.origin == "default" else None
        return unit_of(self.field.number, self.type)


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files with one schema and equal values of the partitions that are read.

    Attributes:
        schema: with the types of other files for columns that have only nulls here. stored: without.
        partitions: all partitions of one of the files.
    """

    schema: pa.Schema
    partitions: dict[str, pa.Scalar]
    bindings: tuple[Binding, ...]
    stored: pa.Schema

    @property
    def typed(self) -> tuple[str, ...]:
        """Columns whose type is that of other files."""
        return tuple(each.name for each, own in zip(self.schema, self.stored, strict=True) if each != own)


def bind(
    source: ParquetSource,
    wanted: Sequence[Field],
    catalog: Catalog,
    label: str,
    before: Sequence[FileKind] = (),
    notes: list[Fault] | None = None,
) -> tuple[list[FileKind], np.ndarray]:
    """The kinds of files of a source, and int32 [files], the kind of every file.

    Args:
        before: kinds of files that were bound earlier; the new ones must be compatible with them.
        notes: if not None, misfits are added to it, and such a field gets a default, as if its files lacked it. A
            filter, key or time that does not fit is raised all the same: without it the rows are unknown.

    Raises:
        SchemaError: one message with all fields that cannot be served, and all files in which they cannot.
    """
    folders = catalog.files.folders
    values = partition_values(source, [folder.partitions for folder in folders])
    read = _names_read(source, wanted)
    schemas = _typed_schemas(catalog.schemas, [kind.schema for kind in before])
    texts = [schema.to_string(show_field_metadata=False, show_schema_metadata=False) for schema in catalog.schemas]
    kinds: list[FileKind] = []
    seen: dict[tuple, int] = {}
    faults: list[list[tuple[str, str]]] = []
    # Files of one schema in one folder are of one kind: bind these pairs, not millions of files.
    pairs, first, pair_of = np.unique(
        catalog.schema_of.astype(np.int64) * len(folders) + catalog.files.folder, return_index=True, return_inverse=True
    )
    kind_of_pair = np.empty(len(pairs), np.int32)
    for pair in np.argsort(first).tolist():  # in the order of files: messages compare with the first one
        number, folder = divmod(int(pairs[pair]), len(folders))
        schema = schemas[number]
        partitions = {name: value for name, value in values[folder].items() if name not in schema.names}
        twice = _in_both(folders[folder].partitions, schema, source)
        used = sorted((name, value.as_py()) for name, value in partitions.items() if name in read)
        key = texts[number], tuple(used), twice
        if key not in seen:
            seen[key] = len(kinds)
            bindings, misfits = _bind_kind(source, wanted, schema, partitions, twice)
            kinds.append(FileKind(schema, partitions, tuple(bindings), catalog.schemas[number]))
            faults.append(misfits)
        kind_of_pair[pair] = seen[key]
    kind_of = kind_of_pair[pair_of]
    misfit: list[tuple[int, tuple[str, str]]] = [(n, fault) for n, of_kind in enumerate(faults) for fault in of_kind]
    earlier = len(before)
    misfit += [(0, fault) for fault in _without_column(source, [*before, *kinds])]
    differences = [*_differences([*before, *kinds]), *_hash_differences(source, [*before, *kinds])]
    misfit += [(n - earlier, fault) for n, fault in differences if n >= earlier]
    if misfit:
        problems: dict[tuple[str, str], set[int]] = defaultdict(set)
        for number, problem in misfit:
            problems[problem].add(number)
        lines = list(_lines(problems, catalog, kind_of))
        if notes is not None:
            notes += [Fault(kind="mismatch", label=label, field=name, what=line) for name, line in lines]
        needed = {"filter", "split", *(field.name for field in wanted if field.only_read)}
        if notes is None or any(name in needed for name, _ in lines):
            raise SchemaError(_message([line for _, line in lines], label, catalog, kinds[0]))
        kinds = [_without(kind, wanted, {name for at, (name, _) in misfit if at == n}) for n, kind in enumerate(kinds)]
    return kinds, kind_of


def bind_rows(source: ParquetSource, wanted: Sequence[Field], schema: pa.Schema, label: str) -> FileKind:
    """The kind for rows that are in no file, such as events of histories.

    Raises:
        SchemaError: one message with all fields that cannot be served.
    """
    bindings, faults = _bind_kind(source, wanted, schema, {}, ())
    if faults:
        columns = ", ".join(f"{column.name}: {column.type}" for column in schema)
        lines = [f"{label} cannot be read as this schema:", *(f"  {name}: {what}" for name, what in faults)]
        raise SchemaError("\n".join([*lines, f"  columns of an event: {columns}"]))
    return FileKind(schema, {}, tuple(bindings), schema)


def _without(kind: FileKind, wanted: Sequence[Field], misfits: Collection[str]) -> FileKind:
    """The kind with defaults for the fields `misfits`."""
    fit = {binding.field: binding for binding in kind.bindings if binding.field.name not in misfits}
    return replace(kind, bindings=tuple(fit.get(field) or _default(field, 0) for field in wanted))


def _default(field: Field, value: float | str | None, policy: Policy = "error") -> Binding:
    """A field that the files lack."""
    arrow_type = None if field.number != "passthrough" else pa.string() if isinstance(value, str) else pa.int64()
    return Binding(field, "default", None, arrow_type, value, policy)


def _names_read(source: ParquetSource, wanted: Sequence[Field]) -> set[str]:
    """Columns and partitions that fields, expressions and the filter read."""
    columns = {column for field in wanted if isinstance(column := source.columns.get(field.name, field.name), str)}
    expressions = [*source.computed.values(), *([] if source.condition is None else [source.condition])]
    return columns.union(*(expression.columns for expression in expressions))


def encrypted_reads(source: ParquetSource, wanted: Sequence[Field], schema: pa.Schema) -> list[str]:
    """The columns of a file that are needed but encrypted."""
    read = {names[0] for name in _names_read(source, wanted) if (names := names_at(schema, name)) is not None}
    return [name for name in encrypted_columns(schema) if name in read]


def partition_values(source: ParquetSource, folders: Sequence[Partitions]) -> list[dict[str, pa.Scalar]]:
    """The values of `key=value` folders, in the types of `folder_columns`; nulls have these types, too.

    Raises:
        SchemaError: a value that does not have the declared type.
    """
    types = folder_columns(source, folders)

    def scalar(name: str, text: str | pa.Scalar | None) -> pa.Scalar:
        kind = source.declared.get(name) if isinstance(text, pa.Scalar) else types[name]
        try:
            value = text if isinstance(text, pa.Scalar) else pa.scalar(text, pa.string())
            return value if kind is None else value.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            declared = f"types={{{name!r}: '{kind}'}}"
            raise SchemaError(
                f"the folder {name}={text} is not of the type that {declared} declares: {error}"
            ) from error

    return [{name: scalar(name, text) for name, text in partitions.items()} for partitions in folders]


def _in_both(partitions: Partitions, schema: pa.Schema, source: ParquetSource) -> tuple[str, ...]:
    """Names that are both a column of the file and a `key=value` folder, unless `columns` mentions them."""
    # Values of a Delta or Iceberg table (scalars) do not count: there the column has the same values.
    partitions = {name: value for name, value in partitions.items() if not isinstance(value, pa.Scalar)}
    mentioned = {column for column in source.columns.values() if isinstance(column, str)}
    mentioned.update(name for expression in source.computed.values() for name in expression.columns)
    return tuple(sorted(set(partitions) & set(schema.names) - mentioned))


def _check_both(field: str, name: str, twice: Sequence[str]) -> None:
    if name in twice:
        raise SchemaError(
            f"{name!r} is a column of the file and the folder {name}=... that the file is in: give "
            f"columns={{{field!r}: {name!r}}} for the file's column, or rename one of both"
        )


def _bind_kind(
    source: ParquetSource,
    wanted: Sequence[Field],
    schema: pa.Schema,
    partitions: dict[str, pa.Scalar],
    twice: Sequence[str],
) -> tuple[list[Binding], list[tuple[str, str]]]:
    bindings = []
    faults = []
    for field in wanted:
        try:
            if field.name not in source.columns:
                _check_both(field.name, field.name, twice)
            bindings.append(_bind_one(source, field, schema, partitions))
        except SchemaError as error:
            faults.append((field.name, str(error)))
    if source.condition is not None:
        try:
            for name in source.condition.columns:
                _check_both(name, name, twice)
            arrow_type = expression_type(source.condition, schema, partitions)
            if not pa.types.is_boolean(arrow_type):
                faults.append(("filter", f"gives {arrow_type} where true or false is needed"))
        except SchemaError as error:
            faults.append(("filter", str(error)))
    return bindings, faults


def _bind_one(source: ParquetSource, field: Field, schema: pa.Schema, partitions: dict[str, pa.Scalar]) -> Binding:
    column = source.columns.get(field.name, field.name)
    policy = source.policy(field.name)
    default = source.defaults.get(field.name)
    if default is not None:
        check_default(field, default)
    if not isinstance(column, str):
        arrow_type = expression_type(source.computed[field.name], schema, partitions)
        _check_type(field, arrow_type, "the expression's result", default)
        return Binding(field, "expression", None, arrow_type, default, policy)
    indices = schema.get_all_field_indices(column)
    if len(indices) > 1:
        raise SchemaError(f"the file has {len(indices)} columns named {column!r}")
    arrow_type = None if column in partitions else type_at(schema, column)
    if arrow_type is not None:
        if column in source.declared and expressions.is_cast(arrow_type, source.declared[column]):
            declared = expression_type(source.expression_of(field.name), schema, partitions)
            _check_type(field, declared, f"column {column!r}, of the type declared by types={{...}},", default)
            return Binding(field, "expression", None, declared, default, policy)
        used = with_items(arrow_type, type_for(field, text=isinstance(default, str)))
        _check_type(field, used, f"column {column!r}", default)
        return Binding(field, "column", column, arrow_type, default, policy)
    if column in partitions:
        arrow_type = partitions[column].type
        _check_type(field, arrow_type, f"partition {column!r}", default)
        value = _number(field, partitions[column])
        if value is None and not field.only_read:
            if policy == "error":
                raise SchemaError(f"partition {column!r} is null; give nulls or defaults for {field.name!r}")
            value = default if policy == "default" else None
        return Binding(field, "partition", column, arrow_type, value, policy)
    if field.name in source.defaults:
        return _default(field, default, policy)
    hint = f"columns={{{field.name!r}: ...}}" + (
        "" if field.number == "time" else f" or defaults={{{field.name!r}: ...}}"
    )
    close = difflib.get_close_matches(column, schema.names, n=1, cutoff=0.75)
    near = f", did you mean {close[0]!r}?" if close else fields_near(schema, column)
    raise SchemaError(f"column {column!r} is missing{near}; give {hint}")


def _number(field: Field, value: pa.Scalar) -> float | str | None:
    """A partition value as a number of the field; in a float field, numbers that are not finite become null."""
    kind = value.type
    if pa.types.is_temporal(kind):
        if field.number == "time":
            value = value.cast(pa.timestamp("ns", getattr(kind, "tz", None)))
        value = value.cast(pa.int32() if pa.types.is_date32(kind) and field.number != "time" else pa.int64())
    number = value.as_py()
    if number is None or field.number != "value":
        return number
    return float(number) if abs(number) <= _MAX_FLOAT32 else None


def check_default(field: Field, default: float | str) -> None:
    """Raises SchemaError if the field cannot have this default."""
    if isinstance(default, str):
        if field.number != "passthrough":
            raise SchemaError(f"the default {default!r} is text, which only passthrough fields take: give a number")
        return
    if field.number in ("id", "passthrough") and (default != int(default) or not -(2**63) <= default < 2**63):
        raise SchemaError(f"the default {default!r} is not an integer within int64, as ids are")
    if field.number == "value" and abs(default) > _MAX_FLOAT32:
        raise SchemaError(f"the default {default!r} is too large for float32")


def _check_type(field: Field, arrow_type: pa.DataType, what: str, default: float | str | None) -> None:
    reason = objection(field, arrow_type)
    text = field.number == "passthrough" and is_text(plain(arrow_type))
    if reason is None and default is not None and text != isinstance(default, str):
        reason = f"is {arrow_type}, and the default {default!r} is not: both are integers, or both are text"
    if reason is not None:
        raise SchemaError(f"{what} {reason}")


def expression_type(
    expression: expressions.Expression, schema: pa.Schema, partitions: dict[str, pa.Scalar]
) -> pa.DataType:
    """The type of an expression's result, found by evaluating it on empty columns."""
    fields = []
    for name in expression.columns:
        kind = partitions[name].type if name in partitions else type_at(schema, name)
        if kind is None:
            raise SchemaError(f"the expression's column {name!r} is missing")
        fields.append(pa.field(name, kind))
    return expressions.output_type(expression, pa.schema(fields))


def _differences(kinds: Sequence[FileKind]) -> list[tuple[int, tuple[str, str]]]:
    """(kind, (field, message)) for types that cannot be mixed: lists in some files only, or times in two units."""
    first: dict[Field, Binding] = {}
    misfits = []
    for number, kind in enumerate(kinds):
        for binding in kind.bindings:
            if binding.type is None and binding.unit is None:
                continue
            reference = first.setdefault(binding.field, binding)
            reason = difference(binding, reference)
            if reason is not None:
                one, other = ("a default" if item.type is None else item.type for item in (binding, reference))
                what = f"is {one} in some files and {other} in the first: {reason}"
                what += (
                    ""
                    if binding.unit == reference.unit
                    else same_unit(binding.field.name, binding.unit, reference.unit)
                )
                misfits.append((number, (binding.field.name, what)))
            elif reference.type is not None and is_null(reference.type):
                first[binding.field] = binding  # a column of nulls fits anything: compare with one that has a type
    return misfits


def _without_column(source: ParquetSource, kinds: Sequence[FileKind]) -> list[tuple[str, str]]:
    """("types", message) for declared types of columns that no file has: probably a misspelt name."""
    return [
        ("types", f"no file and no folder has the column {name!r}, whose type types={{...}} declares")
        for name in source.declared
        if all(column_type(kind, name) is None for kind in kinds)
    ]


def _hash_differences(source: ParquetSource, kinds: Sequence[FileKind]) -> list[tuple[int, tuple[str, str]]]:
    """(kind, (use, message)) for hashed columns that have two types."""
    first: dict[tuple[str, str], str] = {}
    misfits = []
    for number, kind in enumerate(kinds):
        types = hashed_types(source, partial(column_type, kind))
        misfits += [(number, misfit) for misfit in hash_differences(types, first)]
        first = {**types, **first}
    return misfits


def column_type(kind: FileKind, name: str) -> pa.DataType | None:
    """The type of a column in files of this kind, or of the key of a folder; None if it is missing."""
    return kind.partitions[name].type if name in kind.partitions else type_at(kind.schema, name)


def difference(one: Binding, other: Binding) -> str | None:
    """The reason for which values of both types cannot be in one field; None if they can."""
    shapes = {one.is_list, other.is_list} - {None}
    if len(shapes) > 1 or (None not in (one.type, other.type) and one.is_text != other.is_text):
        return "one of both is needed"
    if None not in (one.unit, other.unit) and one.unit != other.unit:
        return f"{other.unit} and {one.unit} would be mixed"
    return None


def same_unit(name: str, *units: str | None) -> str:
    """The remedy for a field with integers of these units; for the end of a message."""
    cast = 'cast(pl.Datetime("us"))'
    if "integers" in units:
        cast = 'dt.epoch("us")'
    elif len({str(unit).startswith("UTC") for unit in units}) > 1:
        cast = 'dt.replace_time_zone("UTC")'
    return f". Bring one to the other with an expression, such as columns={{{name!r}: pl.col({name!r}).{cast}}}"


def _typed_schemas(schemas: Sequence[pa.Schema], before: Sequence[pa.Schema]) -> list[pa.Schema]:
    """The schemas, in which a column of nulls gets the type of the first file that has values: writers give such a
    column the null type. Schemas of `before` come first."""
    if not any(is_null(column.type) for schema in schemas for column in schema):
        return list(schemas)
    first: dict[str, pa.DataType] = {}
    for schema in (*before, *schemas):
        for column in schema:
            if not is_null(column.type):
                first.setdefault(column.name, column.type)
    return [
        pa.schema(
            column.with_type(with_items(column.type, first[column.name]))
            if is_null(column.type) and column.name in first
            else column
            for column in schema
        )
        for schema in schemas
    ]


def _lines(
    problems: dict[tuple[str, str], set[int]], catalog: Catalog, kind_of: np.ndarray
) -> Iterator[tuple[str, str]]:
    """(field, message with the problem and its files)."""
    total = len(catalog)
    for (field, what), kinds in problems.items():
        files = [catalog.files.name(file) for file in np.flatnonzero(np.isin(kind_of, list(kinds))).tolist()]
        where = "all files" if len(files) == total else f"{len(files)} of {total} files: {_names(files)}"
        yield field, f"{field}: {what} [{files[0] if total == 1 else where}]"


def _message(problems: Sequence[str], label: str, catalog: Catalog, first: FileKind) -> str:
    lines = [f"{label} cannot be read as this schema:", *(f"  {problem}" for problem in problems)]
    columns = [*(f"{column.name}: {column.type}" for column in first.schema), *first.partitions]
    more = f" and {len(columns) - _COLUMNS_NAMED} more" if len(columns) > _COLUMNS_NAMED else ""
    lines.append(f"  columns of {catalog.files.name(0)}: {', '.join(columns[:_COLUMNS_NAMED])}{more}")
    return "\n".join(lines)


def _names(files: Sequence[str]) -> str:
    named = ", ".join(files[:_FILES_NAMED])
    return named if len(files) <= _FILES_NAMED else f"{named} and {len(files) - _FILES_NAMED} more"
