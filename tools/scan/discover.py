"""Finds the columns of a history that no option names: its lists, the time of a row, and its key.

Footers say how many values each list column has; `fsdata.setup.infer_schema` guesses the rest from the first rows, as
for `freescale init`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.columns import Leaf, bind, leaf, paths_of
from freescale_tools.scan.files import FileSet, named
from fsdata.errors import FreeScaleError
from fsdata.setup.infer_schema import Guesses, guess_columns_of, words_of

_CLOSE = 0.9  # lists with so large a share of the values of the longest could be the history as well
_WHOSE = re.compile(
    "(user|member|customer|account|visitor|viewer|client|buyer|reader|listener|player|household|device|u)(id)?s?"
)
_NAME = "name the history with --sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """What the columns of some files are.

    Attributes:
        sequences: list columns of the history: the item's, then those whose lists have the same lengths in every row.
            Fields of structs and of lists of structs by their paths.
        time: of a row. key: whose history a row has. None where no column can be told to be that.
        notes: a sentence about each of them, with the reason and other columns that could be it.
    """

    sequences: tuple[str, ...]
    time: str | None
    key: str | None
    notes: tuple[str, ...]


def discover(files: FileSet, sequence: str | None = None) -> Discovered:
    """Read the first rows of some files. sequence: the item's list column, if it is known.

    Raises UsageError if no column or several can be the history, or if the files cannot be read as those of one source.
    """
    try:
        where = named([footer.file.name for footer in files.footers])
        guesses = guess_columns_of([footer.file for footer in files.footers], where=where, hash_text=True)
    except (FreeScaleError, OSError) as error:
        lists_of_any_kind = _lists(files)
        if len(lists_of_any_kind) != 1:
            raise UsageError(f"the history cannot be found: {error}. Or {_NAME}") from error
        note = f"history: {lists_of_any_kind[0]}, the only list column; of others nothing is known: {error}"
        return Discovered(sequences=lists_of_any_kind, time=None, key=None, notes=(note,))
    lists = {
        group: [each.column for each in guesses.columns if each.group == group and each.role in ("fields", "floats")]
        for group in guesses.groups
    }
    if sequence is None:
        group, reason = _history(files, guesses, lists)
        sequence = item_of(lists.get(group) or _lists(files))
    else:
        group, reason = next((name for name, columns in lists.items() if sequence in columns), ""), "as named"
    aligned = [name for name in lists.get(group, ()) if name != sequence]
    notes = [f"history: {sequence}, {reason}"]
    if aligned:
        notes.append(f"aligned with {sequence}: {', '.join(aligned)}, {guesses.groups[group]}")
    if others := [name for other, columns in lists.items() if other != group for name in columns]:
        notes.append(f"other lists, not as long as those of {sequence}: {', '.join(others)}")
    time, key = _time(guesses, notes), _key(guesses, notes)
    return Discovered(sequences=(sequence, *aligned), time=time, key=key, notes=tuple(notes))


def item_of(lists: Sequence[str]) -> str:
    """Of aligned lists, the one that has the items: by its name, else the first."""
    return next((name for name in lists if "item" in name.lower()), lists[0])


def _history(files: FileSet, guesses: Guesses, lists: dict[str, list[str]]) -> tuple[str, str]:
    """(the group of aligned lists that is the history, why): the longest; of several as long, the one of items.

    Without a group: the files have one list column, of a kind that no model reads.
    """
    values = {
        group: _values(files, columns[0]) for group, columns in lists.items() if columns and group != "candidates"
    }
    if not values and len(_lists(files)) == 1:
        return "", "the only list column"
    if not values:
        columns = "; ".join(f"{each.column}: {each.why}" for each in guesses.columns)
        raise UsageError(f"no column is the list of a history: {columns}. If one is, {_NAME}")
    close = [group for group in values if values[group] >= _CLOSE * max(values.values())]
    if len(close) == 1:
        return close[0], "the longest lists"
    of_items = [group for group in close if any("item" in name.lower() for name in lists[group])]
    if len(of_items) == 1:
        return of_items[0], "by its name; others are about as long"
    found = "; ".join(f"{', '.join(lists[group])}: {guesses.groups[group]}" for group in close)
    raise UsageError(f"{_NAME}: several lists, not aligned with each other, are about as long. {found}")


def _lists(files: FileSet) -> tuple[str, ...]:
    """List columns of the first file, of any kind that has a length."""
    first = files.footers[0]
    return tuple(path for path in paths_of(first.schema) if isinstance(leaf(first, path, "list"), Leaf))


def _values(files: FileSet, column: str) -> int:
    """How many a list column has in all files, as their footers say."""
    return sum(
        footer.metadata.row_group(group).column(leaves[column].index).num_values
        for footer, leaves in zip(files.footers, bind(files, [column]).leaves, strict=True)
        if column in leaves
        for group in range(footer.metadata.num_row_groups)
    )


def _time(guesses: Guesses, notes: list[str]) -> str | None:
    time = next((each for each in guesses.columns if each.role == "time"), None)
    if time is None:
        return None
    others = [each.column for each in guesses.columns if each.instead == time.column]
    notes.append(f"time: {time.column}, {time.why}{_also(others)}")
    return time.column


def _key(guesses: Guesses, notes: list[str]) -> str | None:
    """An id or a text whose name says whose row it is."""
    named_so = [
        each
        for each in guesses.columns
        if each.group is None
        and each.role in ("context", "passthrough")
        and any(map(_WHOSE.fullmatch, words_of(each.column.rpartition(".")[2])))
    ]
    ids = [each for each in named_so if each.column.lower().endswith("id")] or named_so
    if not ids:
        return None
    others = [each.column for each in named_so if each is not ids[0]]
    notes.append(f"key: {ids[0].column}, by its name; {ids[0].why}{_also(others)}")
    return ids[0].column


def _also(others: Sequence[str]) -> str:
    return f"; others that could be it: {', '.join(others)}" if others else ""
