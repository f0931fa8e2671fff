"""Binding: which column, expression or default serves each field in each kind of file, and what does not fit."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from fsdata.catalog.arrow_types import encrypted_columns, is_list, is_text, objection, plain
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
    """How one field comes out of one kind of file.

    `column` is set for columns and partitions, `value` for partitions and defaults (None: a null). `type` is that of
    the column or the expression's result; None for a missing column, except that a passthrough has that of its value.
    """

    field: Field
    origin: Origin
    column: str | None = None
    type: pa.DataType | None = None
    value: float | str | None = None
    policy: Policy = "error"

    @property
    def is_list(self) -> bool | None:
        """None where the field is made of defaults and can be either."""
        return None if self.type is None else is_list(plain(self.type))

    @property
    def is_text(self) -> bool:
        """Of a passthrough, whether it is text."""
        return self.field.number == "passthrough" and is_text(plain(self.type))


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of one schema and the same values of the partitions that are read. `partitions`: all those of one file."""

    schema: pa.Schema
    partitions: dict[str, pa.Scalar]
    bindings: tuple[Binding, ...]


def bind(
    source: ParquetSource,
    wanted: Sequence[Field],
    catalog: Catalog,
    label: str,
    before: Sequence[FileKind] = (),
    notes: list[Fault] | None = None,
) -> tuple[list[FileKind], np.ndarray]:
    """The kinds of files of a source, and int32 [files], which kind every file is of.

    Args:
        before: kinds of files that were bound earlier; these must not differ from them too much.
        notes: where misfits are noted; such a field is then as one that its files lack and that has a default. A
            filter, key or time that does not fit is noted and raised: without it nobody knows which rows there are.

    Raises:
        SchemaError: all fields that cannot be served, with all files in which they cannot, in one message.
    """
    folders = catalog.files.folders
    values = partition_values([folder.partitions for folder in folders])
    read = _names_read(source, wanted)
    texts = [schema.to_string(show_field_metadata=False, show_schema_metadata=False) for schema in catalog.schemas]
    kinds: list[FileKind] = []
    seen: dict[tuple, int] = {}
    faults: list[list[tuple[str, str]]] = []
    # Files of one schema in one folder are of one kind.
    places, first, place_of = np.unique(
        catalog.schema_of.astype(np.int64) * len(folders) + catalog.files.folder, return_index=True, return_inverse=True
    )
    kind_of_place = np.empty(len(places), np.int32)
    for place in np.argsort(first).tolist():
        number, folder = divmod(int(places[place]), len(folders))
        schema = catalog.schemas[number]
        partitions = {name: value for name, value in values[folder].items() if name not in schema.names}
        twice = _in_both(folders[folder].partitions, schema, source)
        known = sorted((name, value.as_py()) for name, value in partitions.items() if name in read)
        key = texts[number], tuple(known), twice
        if key not in seen:
            seen[key] = len(kinds)
            bindings, misfits = _bind_kind(source, wanted, schema, partitions, twice)
            kinds.append(FileKind(schema, partitions, tuple(bindings)))
            faults.append(misfits)
        kind_of_place[place] = seen[key]
    kind_of = kind_of_place[place_of]
    found: list[tuple[int, tuple[str, str]]] = [(n, fault) for n, of in enumerate(faults) for fault in of]
    earlier = len(before)
    found += [(n - earlier, fault) for n, fault in _differences([*before, *kinds]) if n >= earlier]
    if found:
        problems: dict[tuple[str, str], set[int]] = defaultdict(set)
        for number, problem in found:
            problems[problem].add(number)
        lines = list(_lines(problems, catalog, kind_of))
        if notes is not None:
            notes += [Fault(kind="mismatch", label=label, field=name, what=line) for name, line in lines]
        needed = {"filter", *(field.name for field in wanted if field.only_read)}
        if notes is None or any(name in needed for name, _ in lines):
            raise SchemaError(_message([line for _, line in lines], label, catalog, kinds[0]))
        kinds = [_without(kind, wanted, {name for at, (name, _) in found if at == n}) for n, kind in enumerate(kinds)]
    return kinds, kind_of


def bind_rows(source: ParquetSource, wanted: Sequence[Field], schema: pa.Schema, label: str) -> FileKind:
    """How fields come out of rows that no file holds.

    Raises:
        SchemaError: all fields that cannot be served, in one message.
    """
    bindings, faults = _bind_kind(source, wanted, schema, {}, ())
    if faults:
        columns = ", ".join(f"{column.name}: {column.type}" for column in schema)
        lines = [f"{label} cannot be read as this schema:", *(f"  {name}: {what}" for name, what in faults)]
        raise SchemaError("\n".join([*lines, f"  columns of an event: {columns}"]))
    return FileKind(schema, {}, tuple(bindings))


def _without(kind: FileKind, wanted: Sequence[Field], misfits: Collection[str]) -> FileKind:
    """The kind with a default in place of some fields."""
    fit = {binding.field: binding for binding in kind.bindings if binding.field.name not in misfits}
    return replace(kind, bindings=tuple(fit.get(field) or _default(field, 0) for field in wanted))


def _default(field: Field, value: float | str | None, policy: Policy = "error") -> Binding:
    """A field that the files lack."""
    arrow_type = None if field.number != "passthrough" else pa.string() if isinstance(value, str) else pa.int64()
    return Binding(field, "default", None, arrow_type, value, policy)


def _names_read(source: ParquetSource, wanted: Sequence[Field]) -> set[str]:
    """Columns and partitions that anything is made of."""
    columns = {column for field in wanted if isinstance(column := source.columns.get(field.name, field.name), str)}
    expressions = [*source.computed.values(), *([] if source.condition is None else [source.condition])]
    return columns.union(*(expression.columns for expression in expressions))


def encrypted_reads(source: ParquetSource, wanted: Sequence[Field], schema: pa.Schema) -> list[str]:
    """The columns of a file that are read, and cannot be, as they are encrypted."""
    read = _names_read(source, wanted)
    return [name for name in encrypted_columns(schema) if name in read]


def partition_values(folders: Sequence[Partitions]) -> list[dict[str, pa.Scalar]]:
    """A partition is a column of int64 if all its values in all folders are, else of strings; nulls have its type.
    Values of tables have the type that the table says."""
    texts: dict[str, list[str]] = defaultdict(list)
    for partitions in folders:
        for name, text in partitions.items():
            if isinstance(text, str):
                texts[name].append(text)
    strings = {name for name, found in texts.items() if not all(_is_int64(text) for text in found)}

    def scalar(name: str, text: str | pa.Scalar | None) -> pa.Scalar:
        if isinstance(text, pa.Scalar):
            return text
        if name in strings:
            return pa.scalar(text, pa.string())
        return pa.scalar(None if text is None else int(text), pa.int64())

    return [{name: scalar(name, text) for name, text in partitions.items()} for partitions in folders]


def _is_int64(text: str) -> bool:
    digits = text[1:] if text[:1] == "-" else text
    return digits.isascii() and digits.isdigit() and -(2**63) <= int(text) < 2**63


def _in_both(partitions: Partitions, schema: pa.Schema, source: ParquetSource) -> tuple[str, ...]:
    """Names that are a column of the file and a `key=value` folder, and that `columns` does not mention. In a table the
    two are the same."""
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
    found = schema.get_all_field_indices(column)
    if len(found) > 1:
        raise SchemaError(f"column {column!r} stands {len(found)} times in the file")
    if found:
        arrow_type = schema.field(found[0]).type
        _check_type(field, arrow_type, f"column {column!r}", default)
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
    raise SchemaError(f"column {column!r} is missing; give {hint}")


def _number(field: Field, value: pa.Scalar) -> float | str | None:
    """A partition value as the field holds it; not finite is null in a float field."""
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
    """Raises SchemaError: not a number that the field can have."""
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


def partition_column(value: pa.Scalar, rows: int) -> pa.Array:
    """A partition value as a column."""
    return pa.repeat(value, rows)


def expression_type(
    expression: expressions.Expression, schema: pa.Schema, partitions: dict[str, pa.Scalar]
) -> pa.DataType:
    """Run an expression on no rows of the columns it names."""
    fields = []
    for name in expression.columns:
        if name in schema.names:
            fields.append(schema.field(name))
        elif name in partitions:
            fields.append(pa.field(name, partitions[name].type))
        else:
            raise SchemaError(f"the expression's column {name!r} is missing")
    return expressions.output_type(expression, pa.schema(fields))


def _differences(kinds: Sequence[FileKind]) -> list[tuple[int, tuple[str, str]]]:
    """(kind, (field, what is wrong)): types that differ between files too much to be converted: a list in some files,
    times in two units."""
    first: dict[Field, Binding] = {}
    found = []
    for number, kind in enumerate(kinds):
        for binding in kind.bindings:
            if binding.type is None:
                continue
            reference = first.setdefault(binding.field, binding)
            reason = difference(binding, reference)
            if reason is not None:
                what = f"is {binding.type} in some files and {reference.type} in the first: {reason}"
                found.append((number, (binding.field.name, what)))
    return found


def difference(one: Binding, other: Binding) -> str | None:
    """Why values of both types cannot stand in one field; None if they can."""
    if one.is_list != other.is_list or one.is_text != other.is_text:
        return "one of both is needed"
    if one.field.number == "id" and _unit(one.type) != _unit(other.type):
        return "units would be mixed"
    return None


def _unit(arrow_type: pa.DataType | None) -> str:
    assert arrow_type is not None
    item = plain(arrow_type)
    item = plain(item.value_type) if is_list(item) else item
    if pa.types.is_date(item):
        return str(item)
    return getattr(item, "unit", "") if pa.types.is_temporal(item) else ""


def _lines(
    problems: dict[tuple[str, str], set[int]], catalog: Catalog, kind_of: np.ndarray
) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it in which files)."""
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
