"""Finds columns in many files: which leaf of each file a name stands for, and whether it is of use.

Names inside structs are dotted. Files may differ: in one a column may be missing, or be of another kind.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.levels import ListLevels, list_levels
from fsdata.catalog.arrow_types import is_list, plain
from fsdata.catalog.footers import Footer, Skipped

_NAMED = 12


class UnusableColumn(Exception):
    """A column cannot be used in one file. Other files may have it in a usable form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf column of one file.

    Attributes:
        index: position among the leaf columns of the file.
        path: dotted, as Parquet has it (`item_ids.list.element`).
        is_list: whether it has one level of repetition.
        levels: of the list; None if only pyarrow can say its lengths.
    """

    index: int
    path: str
    is_list: bool
    levels: ListLevels | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Columns of a set of files.

    Attributes:
        leaves: one dictionary per footer, column -> its leaf there, without those that the file lacks.
        missing: one entry per file and column that the file lacks or has as another kind.
    """

    leaves: tuple[dict[str, Leaf], ...]
    missing: tuple[Skipped, ...]


Check = Callable[[str, Leaf, pa.DataType], None]
"""Called with a column, its leaf, and the type of the column in the file: raises UnusableColumn."""


def any_column(column: str, place: Leaf, kind: pa.DataType) -> None:
    """A column of any kind."""


def a_list(column: str, place: Leaf, kind: pa.DataType) -> None:
    """A column of lists."""
    if not place.is_list:
        raise UnusableColumn(f"{column} is {kind}, one value per row; a sequence is a list column")


def ids(column: str, place: Leaf, kind: pa.DataType) -> None:
    """A column of integers, or of lists of them."""
    if not pa.types.is_integer(_item(kind)):
        raise UnusableColumn(
            f"{column} is {kind}; collisions are counted on integer ids. Name the column of row numbers that the "
            "embedding table is looked up with, or write one (strings: hash them, for example with polars' "
            "pl.col(...).hash() % 2**40)"
        )


def times(column: str, place: Leaf, kind: pa.DataType) -> None:
    """A column of integers, timestamps or dates, or of lists of them."""
    _check_time(column, kind, _item(kind))


def one_time(column: str, place: Leaf, kind: pa.DataType) -> None:
    """A column of integers, timestamps or dates."""
    _check_time(column, kind, kind)


def _check_time(column: str, kind: pa.DataType, item: pa.DataType) -> None:
    if not (pa.types.is_integer(item) or is_calendar(item)):
        raise UnusableColumn(f"{column} is {kind}; a time is an integer, a timestamp or a date")


def is_calendar(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _item(kind: pa.DataType) -> pa.DataType:
    return plain(kind.value_type) if is_list(kind) else kind


def bind(files: FileSet, columns: Sequence[str], check: Check = a_list) -> Bound:
    """Find columns in all files. Files in which a column is absent or unusable are listed as missing it.

    Raises UsageError for a column that no file has usable.
    """
    leaves: list[dict[str, Leaf]] = []
    missing = []
    found: dict[str, Leaf | UnusableColumn] = {}
    before: Footer | None = None
    for footer in files.footers:
        if before is None or not _same_leaves(footer, before, found.values()):
            found = {column: _find(footer, column, check) for column in columns}
        before = footer
        leaves.append({column: place for column, place in found.items() if isinstance(place, Leaf)})
        missing += [
            Skipped(file=footer.file.name, row_group=None, rows=footer.metadata.num_rows, reason=str(place))
            for place in found.values()
            if isinstance(place, UnusableColumn)
        ]
    for column in columns:
        if not any(column in one for one in leaves):
            raise UsageError(_of_no_use(files, column, check))
    return Bound(leaves=tuple(leaves), missing=tuple(missing))


def leaf(footer: Footer, column: str) -> Leaf | None:
    """The leaf of `column` in this file; None if the file lacks it.

    Raises UnusableColumn for a column with several leaves (a struct, a list of structs) or with lists in
    lists.
    """
    schema = footer.metadata.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    found = [index for index, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]
    if not found:
        return None
    if len(found) > 1:
        some = ", ".join(paths[index] for index in found[:5])
        raise UnusableColumn(f"{column} has {len(found)} leaf columns: name one of {some}")
    one = schema.column(found[0])
    if one.max_repetition_level > 1:
        raise UnusableColumn(f"{column} holds lists in lists; a sequence is a list of numbers")
    levels = list_levels(schema, footer.schema, found[0])
    return Leaf(index=found[0], path=one.path, is_list=one.max_repetition_level == 1, levels=levels)


def _find(footer: Footer, column: str, check: Check) -> Leaf | UnusableColumn:
    try:
        place = leaf(footer, column)
        if place is None:
            return UnusableColumn(f"no column {column}")
        check(column, place, type_of(footer.schema, column))
    except UnusableColumn as misfit:
        return misfit
    return place


def _of_no_use(files: FileSet, column: str, check: Check) -> str:
    """Why no file has the column usable: the reason of the first file that has the column at all."""
    for footer in files.footers:
        found = _find(footer, column, check)
        if str(found) != f"no column {column}":
            return f"{footer.file.path}: {found}"
    names = files.footers[0].schema.names
    close = difflib.get_close_matches(column, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    there = f"{files.footers[0].file.path} has {', '.join(names[:_NAMED])}{more}"
    return f"no file has a column {column!r}; {there}.{meant}"


def only_list(files: FileSet) -> str:
    """The list column of the files, where the first has one alone. Raises UsageError, which names them, otherwise."""
    if not files.footers:
        raise UsageError("no file can be read: which list column holds the history cannot be found")
    footer = files.footers[0]
    lists = [field.name for field in footer.schema if isinstance(_find(footer, field.name, a_list), Leaf)]
    if len(lists) == 1:
        return lists[0]
    if not lists:
        raise UsageError(f"{footer.file.path} has no list column: a history is a list of events")
    raise UsageError(f"name the history with --sequence: {footer.file.path} has the list columns {', '.join(lists)}")


def _same_leaves(footer: Footer, before: Footer, found: Iterable[Leaf | UnusableColumn]) -> bool:
    """Whether two files have the same leaves.

    Names inside lists can differ although Arrow's types are equal.
    """
    schema = footer.metadata.schema
    return footer.schema.equals(before.schema) and all(
        isinstance(place, UnusableColumn) or schema.column(place.index).path == place.path for place in found
    )


def type_of(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column. A dotted name is followed into structs, but not into lists."""
    return inside_structs(schema, column)[1]


def inside_structs(schema: pa.Schema, column: str) -> tuple[tuple[str, ...], pa.DataType]:
    """(names that lead to a column, the first that of the file's; its type), into structs, but not into lists."""
    name, rest = first_name(schema.names, column)
    names, kind = [name], plain(schema.field(name).type)
    while rest and pa.types.is_struct(kind):
        name, rest = first_name([kind.field(index).name for index in range(kind.num_fields)], rest)
        names.append(name)
        kind = plain(kind.field(name).type)
    return tuple(names), kind


def holds(footer: Footer, column: str, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type of the elements of a list column passes a test such as `pa.types.is_integer`."""
    return test(plain(type_of(footer.schema, column).value_type))


def first_name(names: Sequence[str], column: str) -> tuple[str, str]:
    """(first name of a dotted path, rest of the path)."""
    for name in names:
        if column == name or column.startswith(f"{name}."):
            return name, column[len(name) + 1 :]
    raise AssertionError(f"{column} is not in {names}")
