"""Finds columns in many files: which leaf of each file a name stands for, and whether it is of use.

Names inside structs are dotted. Files may differ: in one a column may be missing, or be of another kind.
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
        levels: of the list; None if only pyarrow can say its lengths.
    """

    index: int
    path: str
    kind: pa.DataType
    is_list: bool
    levels: ListLevels | None


class Bound(NamedTuple):
    """Columns of a set of files.

    Attributes:
        leaves: one dictionary per footer, column -> its leaf there, without those that the file lacks.
        missing: one entry per file and column that the file lacks or has as another kind.
    """

    leaves: tuple[dict[str, Leaf], ...]
    missing: tuple[Skipped, ...]


def bind(files: FileSet, columns: Sequence[str], form: str | Mapping[str, str] = "list") -> Bound:
    """Find columns in all files. Files in which a column is absent or unusable are listed as missing it.

    form: what all columns must be, or each, see `leaf`. Raises UsageError for a column that no file has usable.
    """
    forms = dict.fromkeys(columns, form) if isinstance(form, str) else form
    leaves: list[dict[str, Leaf]] = []
    missing = []
    found: dict[str, Leaf | str] = {}
    before: Footer | None = None
    for footer in files.footers:
        schema = footer.metadata.schema
        # Names inside lists can differ although Arrow's types are equal.
        if before is None or not (
            footer.schema.equals(before.schema, check_metadata=True)
            and all(isinstance(one, str) or schema.column(one.index).path == one.path for one in found.values())
        ):
            found = {column: leaf(footer, column, forms[column]) for column in columns}
        before = footer
        leaves.append({column: place for column, place in found.items() if isinstance(place, Leaf)})
        missing += [
            Skipped(file=footer.file.name, row_group=None, rows=footer.metadata.num_rows, reason=place)
            for place in found.values()
            if isinstance(place, str)
        ]
    for column in columns:
        if not any(column in one for one in leaves):
            raise UsageError(_of_no_use(files, column, forms[column]))
    return Bound(tuple(leaves), tuple(missing))


def leaf(footer: Footer, column: str, form: str = "any") -> Leaf | str:
    """The leaf of `column` in this file; or why it is of no use, in words.

    form: what it has to be: `any` column of one leaf, without lists in lists; a `list`; `ids`: integers, or lists of
    them; `texts`: text, or lists of it; `time`: an integer, timestamp or date in each row; `times`: that, or lists of
    it.
    """
    schema = footer.metadata.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    names = names_at(footer.schema, column)
    if names is None:  # a path as Parquet has it, with the groups of lists
        found = [index for index, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]
    else:
        first = leaf_at(footer.schema, names)
        found = list(range(first, first + leaf_count(inside_structs(footer.schema, column)[1])))
    if not found:
        return f"no column {column}"
    if len(found) > 1:
        inside = [path for path in paths_of(footer.schema) if path.startswith(f"{column}.")]
        some = ", ".join((inside or [paths[index] for index in found])[:5])
        return f"{column} has {len(found)} leaf columns: name one of {some}"
    one = schema.column(found[0])
    if first_name(footer.schema.names, column)[0] in encrypted_columns(footer.schema):
        return f"{column} is encrypted"
    if one.max_repetition_level > 1:
        return f"{column} holds lists in lists; a sequence is a list of numbers"
    in_list = one.max_repetition_level == 1
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
    return Leaf(found[0], one.path, kind, in_list, list_levels(schema, footer.schema, found[0]))


def is_calendar(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _of_no_use(files: FileSet, column: str, form: str) -> str:
    """Why no file has the column usable: the reason of the first file that has the column at all."""
    for footer in files.footers:
        if leaf(footer, column) != f"no column {column}":
            return f"{footer.file.path}: {leaf(footer, column, form)}"
    names = paths_of(files.footers[0].schema)
    close = difflib.get_close_matches(column, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    there = f"{files.footers[0].file.path} has {', '.join(names[:_NAMED])}{more}"
    return f"no file has a column {column!r}; {there}.{meant}"


def paths_of(schema: pa.Schema) -> list[str]:
    """The names of all columns, of structs and lists of structs the paths of their fields."""
    return [path for field in schema for path, _ in paths_in(field.name, field.type)]


def inside_structs(schema: pa.Schema, column: str) -> tuple[tuple[str, ...], pa.DataType]:
    """(names that lead to a column, the first that of the file's; its type). A field of a list of structs is a list.

    column: a path of names, or one as Parquet has it, in which two more names stand for every list.
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
    """(first name of a dotted path, rest of the path). A column may have dots in its own name."""
    if column in names:
        return column, ""
    for name in names:
        if column == name or column.startswith(f"{name}."):
            return name, column[len(name) + 1 :]
    raise AssertionError(f"{column} is not in {names}")
