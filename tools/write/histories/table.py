"""The table on disk: its files are written, opened to be updated, and put into the place of an old table in one step.

All work is done in the hidden folder `.NAME.work` beside the folder NAME: `new` grows into the new folder, `parts`
has temporary files, and `old` is where the old folder waits until the new one is in place. An end at any point
leaves the old folder whole, under its name or, between two renames, in `old`; the next run puts it back. A lock on
the working folder keeps out a second run. The system takes the lock away when its process ends.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.write.histories.events import Layout, Source
from fsdata.catalog.footers import Footer

VERSION = 1
MARK = b"freescale.histories"
HASH = "multiply-xor-multiply"
"""The name of the hash in `parts`; another hash would need another name."""

MOST_BUCKETS = 10_000
_FILE = re.compile(r"histories-\d{5}-of-\d{5}\.parquet")


def file_name(bucket: int, buckets: int) -> str:
    return f"histories-{bucket:05d}-of-{buckets:05d}.parquet"


def write_table(folder: Path, layout: Layout, buckets: int, groups: Iterator[tuple[int, pa.Table]]) -> int:
    """Write the files of a table below `folder`, one after the other. Returns their bytes.

    groups: (bucket, rows of a row group), in order of their buckets; the rows as `table_schema` says. A bucket without
    keys gets its file, too. Keys and times are stored as deltas, as both ascend.
    """
    schema = table_schema(layout, buckets)
    deltas = {layout.by, f"{layout.time}.list.element"}
    options: dict[str, Any] = {
        "compression": "zstd",
        "write_page_checksum": True,
        "version": "2.6",
        "use_dictionary": [f"{name}.list.element" for name in layout.fields],
        "column_encoding": dict.fromkeys(sorted(deltas), "DELTA_BINARY_PACKED"),
    }
    size = 0
    following = next(groups, None)
    for bucket in range(buckets):
        path = folder / file_name(bucket, buckets)
        with pq.ParquetWriter(path, schema, **options) as writer:
            while following is not None and following[0] == bucket:
                writer.write_table(following[1], row_group_size=max(following[1].num_rows, 1))
                following = next(groups, None)
        with open(path, "rb") as handle:
            os.fsync(handle.fileno())
        size += path.stat().st_size
    return size


def table_schema(layout: Layout, buckets: int) -> pa.Schema:
    """The key, and a list of every other column. The metadata is the mark of a table."""
    key, *others = layout.flat
    columns = [key, *(pa.field(one.name, pa.list_(one.type)) for one in others)]
    mark = {"version": VERSION, "by": layout.by, "time": layout.time, "fields": list(layout.fields)}
    mark |= {"buckets": buckets, "hash": HASH}
    return pa.schema(columns, metadata={MARK: json.dumps(mark)})


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


def open_table(folder: Path) -> tuple[Source, int]:
    """Open the table that this command has written into `folder`: its events, and how many buckets it has.

    The events come history after history, each in order of time.

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
    key, *others = footers[first].schema
    layout = Layout(flat=pa.schema([key, *(pa.field(one.name, one.type.value_type) for one in others)]))
    return Source(footers=tuple(footers[name] for name in wanted), layout=layout, lists=True), buckets


def refuse_other_layout(there: Layout, layout: Layout, *, folder: Path, every_column: bool) -> None:
    """Raise UsageError if events of `layout` do not fit a table of layout `there`, whatever the order of their fields.

    every_column: whether `layout` has all columns of the events, so that --fields can leave some out.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Empty folders to work in. `new` takes the place of the target in the end, `parts` is deleted."""

    new: Path
    parts: Path


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Workplace]:
    """Lend a workplace; when the block ends without an error, `new` becomes `target`.

    The target may be missing, or be a folder, which is replaced with all that is in it.

    Raises CommandFailed if another run works on the same target, or if it cannot be told which of two folders an
    interrupted run has left is the right one.
    """
    target = target.resolve()
    work = target.parent / f".{target.name}.work"
    with _locked(work, target):
        _repair(work, target)
        place = Workplace(new=work / "new", parts=work / "parts")
        try:
            for folder in (place.new, place.parts):
                folder.mkdir()
            yield place
            _swap(place.new, target, work / "old")
        finally:
            if target.exists() or not (work / "old").exists():
                shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(work: Path, target: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(work)):
                raise BlockingIOError("the run that made the folder has just removed it")
        except (BlockingIOError, FileNotFoundError) as error:
            raise CommandFailed(f"another run is writing {target}: wait for its end, then run this again") from error
        yield
    finally:
        os.close(lock)


def _repair(work: Path, target: Path) -> None:
    """Clear what an interrupted run has left, after the old folder is in its place again."""
    old, new = work / "old", work / "new"
    if old.exists():
        if not target.exists():
            old.rename(target)
        elif new.exists():
            raise CommandFailed(
                f"an interrupted run has left the table of before in {old}, and there is another folder {target}: "
                f"remove {target} to get the table back, or remove {work} to keep {target}"
            )
    for entry in (new, work / "parts", old):
        if entry.exists():
            shutil.rmtree(entry)


def _swap(new: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
