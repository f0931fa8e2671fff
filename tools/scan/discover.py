"""Guesses the columns of a history that no option names: its lists, the time of a row, and its key.

The footers have the number of values of each list column; `fsdata.setup.infer_schema` guesses the rest from the first
rows, as for `freescale init`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.columns import Leaf, bind, leaf, paths_of
from freescale_tools.scan.files import FileSet, named
from fsdata.errors import FreeScaleError
from fsdata.setup.infer_schema import Guesses, guess_columns_of, words_of

_CLOSE = 0.9  # lists with at least this share of the values of the longest ones are candidates for the history, too
_KEY_NAME = re.compile(
    "(user|member|customer|account|visitor|viewer|client|buyer|reader|listener|player|household|device|u)(id)?s?"
)
_NAME = "name the history with --sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The roles of the columns of some files.

    Attributes:
        sequences: list columns of the history: that of the items, then those with the same lengths in every row. Fields
            of structs and of lists of structs by their paths.
        time: of a row. key: of the history of a row. None if no column is recognized.
        notes: a sentence about each of them, with the reason and the other candidates.
    """

    sequences: tuple[str, ...]
    time: str | None
    key: str | None
    notes: tuple[str, ...]


def discover(files: FileSet, sequence: str | None = None) -> Discovered:
    """Read the first rows of some files. sequence: the list column of the items, if the user named it.

    Raises UsageError if no column or several can be the history, or if the files cannot be read as one source.
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
        group: [
            guess.column for guess in guesses.columns if guess.group == group and guess.role in ("fields", "floats")
        ]
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
    """The list of the items among aligned lists: by its name, else the first one."""
    return next((name for name in lists if "item" in name.lower()), lists[0])


def _history(files: FileSet, guesses: Guesses, lists: dict[str, list[str]]) -> tuple[str, str]:
    """(the group of aligned lists that is the history, the reason): the longest one; if several are about as long, the
    one with items. An empty group name: the files have one list column, of a type that is not guessed.
    """
    values = {
        group: _values(files, columns[0]) for group, columns in lists.items() if columns and group != "candidates"
    }
    if not values and len(_lists(files)) == 1:
        return "", "the only list column"
    if not values:
        columns = "; ".join(f"{guess.column}: {guess.why}" for guess in guesses.columns)
        raise UsageError(f"no column is the list of a history: {columns}. If one is, {_NAME}")
    close = [group for group in values if values[group] >= _CLOSE * max(values.values())]
    if len(close) == 1:
        return close[0], "the longest lists"
    with_items = [group for group in close if any("item" in name.lower() for name in lists[group])]
    if len(with_items) == 1:
        return with_items[0], "by its name; others are about as long"
    candidates = "; ".join(f"{', '.join(lists[group])}: {guesses.groups[group]}" for group in close)
    raise UsageError(f"{_NAME}: several lists, not aligned with each other, are about as long. {candidates}")


def _lists(files: FileSet) -> tuple[str, ...]:
    """List columns of the first file, of any element type."""
    first = files.footers[0]
    return tuple(path for path in paths_of(first.schema) if isinstance(leaf(first, path, "list"), Leaf))


def _values(files: FileSet, column: str) -> int:
    """Number of values of a list column in all files, from their footers."""
    return sum(
        footer.metadata.row_group(group).column(leaves[column].index).num_values
        for footer, leaves in zip(files.footers, bind(files, [column]).leaves, strict=True)
        if column in leaves
        for group in range(footer.metadata.num_row_groups)
    )


def _time(guesses: Guesses, notes: list[str]) -> str | None:
    time = next((guess for guess in guesses.columns if guess.role == "time"), None)
    if time is None:
        return None
    others = [guess.column for guess in guesses.columns if guess.instead == time.column]
    notes.append(f"time: {time.column}, {time.why}{_also(others)}")
    return time.column


def _key(guesses: Guesses, notes: list[str]) -> str | None:
    """The column of ids or texts with the name of a user, member, device or the like."""
    candidates = [
        guess
        for guess in guesses.columns
        if guess.group is None
        and guess.role in ("context", "passthrough")
        and any(map(_KEY_NAME.fullmatch, words_of(guess.column.rpartition(".")[2])))
    ]
    ids = [guess for guess in candidates if guess.column.lower().endswith("id")] or candidates
    if not ids:
        return None
    others = [guess.column for guess in candidates if guess is not ids[0]]
    notes.append(f"key: {ids[0].column}, by its name; {ids[0].why}{_also(others)}")
    return ids[0].column


def _also(others: Sequence[str]) -> str:
    return f"; others that could be it: {', '.join(others)}" if others else ""
