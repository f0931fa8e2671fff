"""The table that is in a folder already: opens it to update it, or refuses the folder."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.write.histories.events.layout import HASH, MARK, VERSION, Layout
from freescale_tools.write.histories.events.sources import Source
from fsdata.catalog.footers import Footer

MOST_BUCKETS = 10_000
_FILE = re.compile(r"histories-\d{5}-of-\d{5}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTable:
    """A table in a folder. `source` gives its events: history after history, each in order of time."""

    source: Source
    buckets: int


def file_name(bucket: int, buckets: int) -> str:
    return f"histories-{bucket:05d}-of-{buckets:05d}.parquet"


def refuse_occupied(folder: Path) -> None:
    """Raise UsageError if anything is in the folder."""
    names = _names(folder)
    if not names:
        return
    foreign = _foreign(names)
    if foreign:
        raise UsageError(f"--out {folder} is not empty, it holds {foreign[0]}: give another --out, or empty it")
    raise UsageError(
        f"--out {folder} holds a history table, which would be lost: add the events to it by --update, give another "
        "--out, or remove the table"
    )


def open_table(folder: Path) -> HistoryTable:
    """Open the table that this command has written into `folder`.

    Raises UsageError if there is none, if the folder holds anything else, if a file is missing or unreadable, or
    if the files are of different tables.
    """
    names = _names(folder)
    if not names:
        raise UsageError(f"--update: there is no table in {folder}. Leave out --update to build one")
    foreign = _foreign(names)
    if foreign:
        raise UsageError(
            f"--out {folder} holds {foreign[0]}, which is not part of a history table: the folder is replaced as a "
            "whole, so move it away"
        )
    footers = {footer.file.name: footer for footer in open_files([str(folder)]).footers}
    marks = {name: _mark(footer) for name, footer in footers.items()}
    first, mark = next(iter(marks.items()))
    buckets = mark.get("buckets")
    if mark.get("version") != VERSION or mark.get("hash") != HASH or type(buckets) is not int:
        raise UsageError(f"{folder}/{first} was not written by this version of the command: build the table anew")
    wanted = [file_name(bucket, buckets) for bucket in range(min(buckets, MOST_BUCKETS))]
    missing = [name for name in wanted if name not in footers]
    if missing:
        raise UsageError(f"{folder} is not a whole table: {missing[0]} is missing or unreadable. Restore it first")
    for name, footer in footers.items():
        if marks[name] != mark or name not in wanted or footer.schema != footers[first].schema:
            raise UsageError(f"{folder} holds files of different tables, {first} and {name}: remove one of the tables")
    source = Source(footers=tuple(footers[name] for name in wanted), layout=_layout(footers[first]), lists=True)
    return HistoryTable(source=source, buckets=buckets)


def refuse_other_layout(table: HistoryTable, layout: Layout, *, folder: Path, every_column: bool) -> None:
    """Raise UsageError if events of `layout` do not fit the table, whatever the order of their fields.

    every_column: whether `layout` has all columns of the events, so that --fields can leave some out.
    """
    there = table.source.layout
    for option, one, other in (("--by", layout.by, there.by), ("--time", layout.time, there.time)):
        if one != other:
            raise UsageError(f"{option} {one}: the table in {folder} was built with {option} {other}. Give the same")
    missing = sorted(set(there.fields) - set(layout.fields))
    extra = sorted(set(layout.fields) - set(there.fields))
    if missing:
        cause = "the events have no such column" if every_column else "--fields does not name it"
        raise UsageError(f"the table in {folder} has a field {missing[0]}: {cause}. Fields of a table stay the same")
    if extra:
        raise UsageError(
            f"the table in {folder} has no field {extra[0]}: give --fields {','.join(there.fields)} to leave it out, "
            "or build a new table from all events"
        )
    for field in there.flat:
        kind = layout.flat.field(field.name).type
        if kind != field.type:
            raise UsageError(
                f"column {field.name} is {kind} in the events and {field.type} in the table in {folder}: write the "
                "events again with the type of the table"
            )


def _names(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise UsageError(f"--out {folder} is a file: give a folder")
    return sorted(entry.name for entry in folder.iterdir())


def _foreign(names: Sequence[str]) -> list[str]:
    return [name for name in names if not _FILE.fullmatch(name)]


def _mark(footer: Footer) -> dict[str, Any]:
    """What the writer of the file has noted; empty for a file of another program."""
    try:
        found = json.loads((footer.metadata.metadata or {}).get(MARK, b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _layout(footer: Footer) -> Layout:
    key, *others = footer.schema
    return Layout(flat=pa.schema([key, *(pa.field(one.name, one.type.value_type) for one in others)]))
