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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.scan.footers import Footer
from freescale_tools.write.histories.events import Source

VERSION = 1
MARK = b"freescale.histories"
HASH = "multiply-xor-multiply"
"""The name of the hash in `build`; another hash would need another name."""

MOST_BUCKETS = 10_000
_FILE = re.compile(r"histories-\d{5}-of-\d{5}\.parquet")


def file_names(buckets: int) -> list[str]:
    return [f"histories-{bucket:05d}-of-{buckets:05d}.parquet" for bucket in range(buckets)]


def table_schema(flat: pa.Schema, buckets: int) -> pa.Schema:
    """The key, and a list of every other column. The metadata is the mark of a table."""
    key, *others = flat
    columns = [key, *(pa.field(one.name, pa.list_(one.type)) for one in others)]
    by, time, *fields = flat.names
    mark = {"version": VERSION, "by": by, "time": time, "fields": fields, "buckets": buckets, "hash": HASH}
    return pa.schema(columns, metadata={MARK: json.dumps(mark)})


def write_table(folder: Path, schema: pa.Schema, buckets: int, groups: Iterator[tuple[int, pa.Table]]) -> int:
    """Write the files of a table below `folder`, one after the other. Returns their bytes.

    groups: (bucket, rows of a row group), in order of their buckets; the rows as `table_schema` says. A bucket without
    keys gets its file, too. Keys and times are stored as deltas, as both ascend.
    """
    by, time, *fields = schema.names
    options: dict[str, Any] = {
        "compression": "zstd",
        "write_page_checksum": True,
        "version": "2.6",
        "use_dictionary": [f"{name}.list.element" for name in fields],
        "column_encoding": dict.fromkeys(sorted([by, f"{time}.list.element"]), "DELTA_BINARY_PACKED"),
    }
    size = 0
    following = next(groups, None)
    for bucket, name in enumerate(file_names(buckets)):
        path = folder / name
        with pq.ParquetWriter(path, schema, **options) as writer:
            while following is not None and following[0] == bucket:
                writer.write_table(following[1], row_group_size=max(following[1].num_rows, 1))
                following = next(groups, None)
        with open(path, "rb") as handle:
            os.fsync(handle.fileno())
        size += path.stat().st_size
    return size


def _contents(folder: Path) -> tuple[list[str], str | None]:
    """(names of all that is in the folder, the first that is no file of a table)."""
    if not folder.exists():
        return [], None
    if not folder.is_dir():
        raise UsageError(f"--out {folder} is a file: give a folder")
    names = sorted(entry.name for entry in folder.iterdir())
    return names, next((name for name in names if not _FILE.fullmatch(name)), None)


def refuse_occupied(folder: Path) -> None:
    """Raise UsageError if anything is in the folder."""
    names, foreign = _contents(folder)
    if foreign:
        raise UsageError(f"--out {folder} is not empty, it holds {foreign}: give another --out, or empty it")
    if names:
        raise UsageError(
            f"--out {folder} holds a history table, which would be lost: add the events to it by --update, give "
            "another --out, or remove the table"
        )


def open_table(folder: Path) -> tuple[Source, int]:
    """Open the table that this command has written into `folder`: its events, and how many buckets it has.

    The events come history after history, each in order of time.

    Raises UsageError if there is none, if the folder holds anything else, if a file is missing or unreadable, or
    if the files are of different tables.
    """
    names, foreign = _contents(folder)
    if not names:
        raise UsageError(f"--update: there is no table in {folder}. Leave out --update to build one")
    if foreign:
        raise UsageError(
            f"--out {folder} holds {foreign}, which is not part of a history table: the folder is replaced as a "
            "whole, so move it away"
        )
    footers = {footer.file.name: footer for footer in open_files([str(folder)]).footers}
    marks = {name: _mark(footer) for name, footer in footers.items()}
    first, mark = next(iter(marks.items()))
    buckets = mark.get("buckets")
    known = mark.get("version") == VERSION and mark.get("hash") == HASH
    if not known or type(buckets) is not int or not 1 <= buckets <= MOST_BUCKETS:
        raise UsageError(f"{folder}/{first} was not written by this version of the command: build the table anew")
    wanted = file_names(buckets)
    missing = [name for name in wanted if name not in footers]
    if missing:
        raise UsageError(f"{folder} is not a whole table: {missing[0]} is missing or unreadable. Restore it first")
    for name, footer in footers.items():
        if marks[name] != mark or name not in wanted or footer.schema != footers[first].schema:
            raise UsageError(f"{folder} holds files of different tables, {first} and {name}: remove one of the tables")
    key, *others = footers[first].schema
    flat = pa.schema([key, *(pa.field(one.name, one.type.value_type) for one in others)])
    return Source(footers=tuple(footers[name] for name in wanted), flat=flat, lists=True), buckets


def _mark(footer: Footer) -> dict[str, Any]:
    """What the writer of the file has noted; empty for a file of another program."""
    try:
        found = json.loads((footer.metadata.metadata or {}).get(MARK, b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def refuse_other_columns(flat: pa.Schema, of_table: pa.Schema, *, folder: Path, every_column: bool) -> None:
    """Raise UsageError if events do not fit the table in `folder`, whatever the order of their fields.

    every_column: whether `flat` has all columns of the events, so that --fields can leave some out.
    """
    for option, one, other in zip(("--by", "--time"), flat.names, of_table.names, strict=False):
        if one != other:
            raise UsageError(f"{option} {one}: the table in {folder} was built with {option} {other}. Give the same")
    missing = sorted(set(of_table.names) - set(flat.names))
    extra = sorted(set(flat.names) - set(of_table.names))
    if missing:
        cause = "the events have no such column" if every_column else "--fields does not name it"
        raise UsageError(f"the table in {folder} has a field {missing[0]}: {cause}. Fields of a table stay the same")
    if extra:
        raise UsageError(
            f"the table in {folder} has no field {extra[0]}: give --fields {','.join(of_table.names[2:])} to leave it "
            "out, or build a new table from all events"
        )
    for field in of_table:
        kind = flat.field(field.name).type
        if kind != field.type:
            raise UsageError(
                f"column {field.name} is {kind} in the events and {field.type} in the table in {folder}: write the "
                "events again with the type of the table"
            )


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[tuple[Path, Path]]:
    """Lend the empty folders `new` and `parts`; when the block ends without an error, `new` becomes `target`.

    The target may be missing, or be a folder, which is replaced with all that is in it. `parts` is deleted.

    Raises CommandFailed if another run works on the same target, or if it cannot be told which of two folders an
    interrupted run has left is the right one.
    """
    target = target.resolve()
    work = target.parent / f".{target.name}.work"
    new, parts, old = work / "new", work / "parts", work / "old"
    work.mkdir(parents=True, exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(work)):
                raise BlockingIOError("the run that made the folder has just removed it")
        except (BlockingIOError, FileNotFoundError) as error:
            raise CommandFailed(f"another run is writing {target}: wait for its end, then run this again") from error
        if old.exists() and not target.exists():
            old.rename(target)  # the end came between two renames
        elif old.exists() and new.exists():
            raise CommandFailed(
                f"an interrupted run has left the table of before in {old}, and there is another folder {target}: "
                f"remove {target} to get the table back, or remove {work} to keep {target}"
            )
        for entry in (new, parts, old):
            if entry.exists():
                shutil.rmtree(entry)
        try:
            new.mkdir()
            parts.mkdir()
            yield new, parts
            _swap(new, target, old)
        finally:
            if target.exists() or not old.exists():
                shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)


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
