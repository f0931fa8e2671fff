"""Locates columns in many files: the leaf of each file that a name refers to, and whether a command can use it.

Names inside structs are dotted. Files may differ: a column may be missing or have another type in some.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from freescale_tools.scan.levels import ListLevels, list_levels
from fsdata.catalog.binding.arrow_types import encrypted_columns, is_list, is_text, leaf_count, plain
from fsdata.catalog.binding.column_paths import leaf_at, names_at, paths_in, type_at
from fsdata.catalog.footers import Skipped

_NAMED = 12


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf column of one file.

    Attributes:
        index: position among the leaf columns of the file.
        path: dotted, as Parquet has it (`item_ids.list.element`).
        kind: the type of its column, which may be a list.
        is_list: whether it has one level of repetition.
        levels: of the list; None if only pyarrow can read its lengths.
    """

    index: int
    path: str
    kind: pa.DataType
    is_list: bool
    levels: ListLevels | None


class Bound(NamedTuple):
    """Columns of a set of files.

    Attributes:
        leaves: one dictionary per footer, column -> its leaf, without columns that the file does not have.
        missing: one entry for every column that a file does not have or has with an unusable type.
    """

    leaves: tuple[dict[str, Leaf], ...]
    missing: tuple[Skipped, ...]


def bind(files: FileSet, columns: Sequence[str], form: str | Mapping[str, str] = "list") -> Bound:
    """Locate columns in all files. Files in which a column is absent or unusable are listed as missing it.

    form: required form of all columns, or column -> its form, see `leaf`. Raises UsageError for a column that is not
    usable in any file.
    """
    forms = dict.fromkeys(columns, form) if isinstance(form, str) else form
    leaves: list[dict[str, Leaf]] = []
    missing = []
    bound: dict[str, Leaf | str] = {}
    before: Footer | None = None
    for footer in files.footers:
        schema = footer.metadata.schema
        # Files of a set mostly have one schema: the leaves of the file before are reused. Names inside lists can differ
        # although Arrow's types are equal, so the paths are compared, too.
        if before is None or not (
            footer.schema.equals(before.schema, check_metadata=True)
            and all(isinstance(old, str) or schema.column(old.index).path == old.path for old in bound.values())
        ):
            bound = {column: leaf(footer, column, forms[column]) for column in columns}
        before = footer
        leaves.append({column: result for column, result in bound.items() if isinstance(result, Leaf)})
        missing += [
            Skipped(file=footer.file.name, row_group=None, rows=footer.metadata.num_rows, reason=reason)
            for reason in bound.values()
            if isinstance(reason, str)
        ]
    for column in columns:
        if not any(column in by_column for by_column in leaves):
            raise UsageError(_why_unusable(files, column, forms[column]))
    return Bound(tuple(leaves), tuple(missing))


def leaf(footer: Footer, column: str, form: str = "any") -> Leaf | str:
    """The leaf of `column` in this file, or the reason why it is unusable, as text.

    form: `any` column of one leaf, without lists in lists; a `list`; `ids`: integers, or lists of them; `texts`: text,
    or lists of it; `time`: an integer, timestamp or date in each row; `times`: that, or lists of it.
    """
    schema = footer.metadata.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    names = names_at(footer.schema, column)
    if names is None:  # a path as Parquet has it, with the groups of lists
        indices = [index for index, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]
    else:
        first = leaf_at(footer.schema, names)
        indices = list(range(first, first + leaf_count(inside_structs(footer.schema, column)[1])))
    if not indices:
        return f"no column {column}"
    if len(indices) > 1:
        inside = [path for path in paths_of(footer.schema) if path.startswith(f"{column}.")]
        examples = ", ".join((inside or [paths[index] for index in indices])[:5])
        return f"{column} has {len(indices)} leaf columns: name one of {examples}"
    stored = schema.column(indices[0])
    if first_name(footer.schema.names, column)[0] in encrypted_columns(footer.schema):
        return f"{column} is encrypted"
    if stored.max_repetition_level > 1:
        return f"{column} holds lists in lists; a sequence is a list of numbers"
    in_list = stored.max_repetition_level == 1
    kind = inside_structs(footer.schema, column)[1]
    item = plain(kind.value_type) if is_list(kind) and form != "time" else kind
    if form == "list" and not in_list:
        return f"{column} is {kind}, one value per row; a sequence is a list column"
    if form == "ids" and not pa.types.is_integer(item):
        return (
            f"{column} is {kind}; collisions are counted on integer ids. Name the column of row numbers that the "
            "embedding table is looked up with, or write one. Of text, `freescale collisions --hash` counts hashes"
        )
    if form == "texts" and not is_text(item):
        what = "leave it out" if pa.types.is_integer(item) else "name a column of text"
        return f"{column} is {kind}; --hash makes ids of text: {what}"
    if form in ("time", "times") and not (pa.types.is_integer(item) or is_calendar(item)):
        return f"{column} is {kind}; a time is an integer, a timestamp or a date"
    return Leaf(indices[0], stored.path, kind, in_list, list_levels(schema, footer.schema, indices[0]))


def is_calendar(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _why_unusable(files: FileSet, column: str, form: str) -> str:
    """Why the column is not usable in any file: the reason of the first file that has the column."""
    for footer in files.footers:
        if leaf(footer, column) != f"no column {column}":
            return f"{footer.file.path}: {leaf(footer, column, form)}"
    names = paths_of(files.footers[0].schema)
    close = difflib.get_close_matches(column, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    first_file = f"{files.footers[0].file.path} has {', '.join(names[:_NAMED])}{more}"
    return f"no file has a column {column!r}; {first_file}.{meant}"


def paths_of(schema: pa.Schema) -> list[str]:
    """The names of all columns; of structs and lists of structs, the paths of their fields."""
    return [path for field in schema for path, _ in paths_in(field.name, field.type)]


def inside_structs(schema: pa.Schema, column: str) -> tuple[tuple[str, ...], pa.DataType]:
    """(names on the path to a column, the top-level column first; its type). A field of a list of structs is a list.

    column: a path of names, or a path as Parquet has it, with two more names for every list.
    """
    names = names_at(schema, column) or _without_lists(schema, column)
    kind = type_at(schema, ".".join(names))
    assert kind is not None
    return names, plain(kind)


def _without_lists(schema: pa.Schema, column: str) -> tuple[str, ...]:
    name, rest = first_name(schema.names, column)
    names: tuple[str, ...] = (name,)
    kind = plain(schema.field(name).type)
    while rest:
        if is_list(kind):
            rest = ".".join(rest.split(".")[2:])
            kind = plain(kind.value_type)
        elif pa.types.is_struct(kind):
            name, rest = first_name([field.name for field in kind], rest)
            names, kind = (*names, name), plain(kind.field(name).type)
        else:
            break
    return names


def holds(footer: Footer, column: str, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type of the elements of a list column passes a test such as `pa.types.is_integer`."""
    return test(plain(inside_structs(footer.schema, column)[1].value_type))


def first_name(names: Sequence[str], column: str) -> tuple[str, str]:
    """(first name of a dotted path, rest of the path). The name of a column may contain dots."""
    if column in names:
        return column, ""
    for name in names:
        if column == name or column.startswith(f"{name}."):
            return name, column[len(name) + 1 :]
    raise AssertionError(f"{column} is not in {names}")
