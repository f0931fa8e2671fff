"""Reads a record of `benchmarks/results`, and prints tables, sentences and sources as Markdown."""

import datetime
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.table import read_record


@dataclass(frozen=True, slots=True)
class Record:
    """`results/<name>.json`."""

    name: str
    document: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.document["rows"]

    @property
    def extra(self) -> dict[str, Any]:
        return self.document["extra"]

    @property
    def command(self) -> str:
        return self.document["command"]

    def where(self, **columns: Any) -> list[dict[str, Any]]:
        """The rows with these values."""
        return [row for row in self.rows if all(row[name] == value for name, value in columns.items())]

    def row(self, **columns: Any) -> dict[str, Any]:
        """The only row with these values. ValueError if there is none, or more than one."""
        (row,) = self.where(**columns)
        return row

    def note(self, pattern: str) -> tuple[str, ...]:
        """The groups of `pattern` in the only note that has it."""
        (found,) = (match for note in self.document["notes"] if (match := re.search(pattern, note)))
        return found.groups()


def record(name: str) -> Record:
    return Record(name, read_record(name))


def short(value: float) -> str:
    """Two significant digits, and all before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *sources: Record) -> None:
    """An empty cell where a value is None. Below the table, one line: where its figures come from."""
    print()
    for cells in (header, ["---"] * len(header), *rows):
        print("|" + "|".join(f" {cell} " if cell not in (None, "") else " " for cell in cells) + "|")
    _from(sources)


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *sources: Record) -> None:
    """A line for each row. columns: header -> text of the cells, which names columns of the row: "{step ms:.0f} ms"."""
    table(list(columns), [[text.format_map(row) for text in columns.values()] for row in rows], *sources)


def say(text: str, *sources: Record) -> None:
    """A paragraph, and where its figures come from."""
    print()
    _wrapped(text)
    _from(sources)


def listed(texts: Sequence[str], *sources: Record) -> None:
    """A list with bullets, and where its figures come from."""
    print()
    for text in texts:
        _wrapped(text, first="- ", others="  ")
    _from(sources)


def _from(records: Sequence[Record]) -> None:
    """Command, commit, date and data; runs that brought several records once."""
    texts = {}
    for each in records:
        head = each.document
        day = datetime.datetime.fromisoformat(head["date"])
        copied = "; copied from an earlier page" if "copied" in head else ""
        texts[f"`{head['command']}`, commit {head['commit']}, {day.day} {day:%B %Y}, {head['data']}{copied}"] = None
    if texts:
        print()
        _wrapped(f"*From {'; '.join(texts)}.*")


def _wrapped(text: str, first: str = "", others: str = "") -> None:
    """In lines of at most 110 columns; code stays in one line."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    options = {"break_long_words": False, "break_on_hyphens": False}
    print(textwrap.fill(text, 110, initial_indent=first, subsequent_indent=others, **options).replace("\0", " "))
