"""Rewrites Parquet files for fast loading: reads, writes beside the target, compares, renames.

A file gets its name only when it is complete and equal to its source, value by value. It carries a mark: size
and footer digest of the source, and the settings. By the mark, the next run knows finished files and leaves
them alone. Memory holds one unit of rows.
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.rows import Rows, written
from freescale_tools.write.optimize.compare import Difference, equal_rows, retyped
from freescale_tools.write.optimize.layout import (
    Layout,
    Settings,
    delta_columns,
    note_nulls,
    tightened,
    unit_rows,
    without_nulls,
)
from freescale_tools.write.optimize.layout import Path as ColumnPath
from fsdata.catalog.footers import Footer
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import Retrying
from fsdata.errors import CorruptFileError

VERSION = 1
MARK = b"freescale.optimize"

_WRITER: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "version": "2.6"}


class UnfaithfulError(Exception):
    """The written file differs from its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One file to rewrite. `name`: its path below the output folder; `target`: the full path."""

    footer: Footer
    name: str
    target: Path


def jobs(files: FileSet, out: Path, settings: Settings) -> list[Job]:
    """The files to rewrite and their targets. Everything that can be checked before writing is checked here.

    Raises UsageError if an input would be overwritten or mixed with the output, or if a target exists that this
    command has not written.
    """
    found = []
    for footer in files.footers:
        if footer.file.local and out.resolve() in Path(footer.file.path).resolve().parents:
            raise UsageError(
                f"{footer.file.path} lies in --out {out}: inputs are never overwritten or mixed with what is written. "
                "Give another folder"
            )
        name = _below(footer.file)
        target = out / name
        if target.exists() and _mark_of(target) is None:
            raise UsageError(f"{target} exists and was not written by this command: give another --out, or remove it")
        found.append(Job(footer=footer, name=name, target=target))
        names = footer.schema.names
        if len(set(names)) < len(names):
            raise UsageError(f"{footer.file.path} has two columns of the same name: rename one of them")
    return found


def optimize_all(
    todo: Sequence[Job], settings: Settings, progress: Progress, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rewrite all files and return a document for each. A file that fails is reported and marked `failed`.

    Raises CommandFailed if a target cannot be written.
    """
    done = []
    for job in todo:
        document = _document(job)
        try:
            document |= optimize(job, settings, progress)
        except (CorruptFileError, ConnectionError, UnfaithfulError, pa.ArrowException) as error:
            # Arrow's errors: a type that cannot be written, or wrong statistics.
            what = f"{job.footer.file.path} cannot be rewritten: " if isinstance(error, pa.ArrowException) else ""
            tell(f"{what}{error}")
            document |= {"status": "failed", "reason": str(error)}
        except OSError as error:
            raise CommandFailed(f"{job.target} cannot be written: {error}") from error
        done.append(document)
    return done


def summary(done: Sequence[dict[str, Any]], files: FileSet, *, out: Path, settings: Settings) -> dict[str, Any]:
    """The document of the whole run.

    Totals are over the files now in place, seconds over the files written.
    """
    there = [one for one in done if one["status"] != "failed"]
    timed = [one["decode_s"] for one in done if one["decode_s"] is not None]

    def total(of: str) -> dict[str, int]:
        return {when: sum(one[of][when] for one in there) for when in ("before", "after")}

    seconds = {when: sum(one[when] for one in timed) for when in ("before", "after")} if timed else None
    written = [one for one in done if one["status"] == "written"]
    return {
        **header("optimize"),
        "out": str(out),
        "settings": settings.to_dict(),
        "files": list(done),
        "skipped": [{"file": one.file, "reason": one.reason} for one in files.skipped],
        "totals": {
            "rows": sum(one["rows"] for one in there),
            "row_groups": total("row_groups"),
            "bytes": total("bytes"),
            "decode_s": seconds,
        },
        "layout": {
            "required": sorted({name for one in written for name in one["required"]}),
            "delta": sorted({name for one in written for name in one["delta"]}),
        },
    }


def optimize(job: Job, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Rewrite one file unless it is already done. Returns what its document gains by that.

    Raises CorruptFileError if the source is damaged, UnfaithfulError if the written file differs from it. An
    early end never leaves half a file.
    """
    footer, before = job.footer, job.footer.metadata
    mark = _mark(footer, settings)
    gained: dict[str, Any] = {}
    if _mark_of(job.target) == mark:
        progress.advance(rows=before.num_rows, bytes=footer.size)
    else:
        gained = Retrying().call(lambda: _rewrite(job, settings, mark, progress), footer.file)
    after = pq.read_metadata(job.target).num_row_groups
    return gained | {
        "row_groups": {"before": before.num_row_groups, "after": after},
        "bytes": {"before": footer.size, "after": job.target.stat().st_size},
    }


def _document(job: Job) -> dict[str, Any]:
    metadata = job.footer.metadata
    return {
        "file": job.name,
        "out": str(job.target),
        "status": "kept",
        "rows": metadata.num_rows,
        "row_groups": {"before": metadata.num_row_groups, "after": None},
        "bytes": {"before": job.footer.size, "after": None},
        "decode_s": None,
        "required": [],
        "delta": [],
    }


def _rewrite(job: Job, settings: Settings, mark: bytes, progress: Progress) -> dict[str, Any]:
    footer = job.footer
    layout = plan(footer, settings, mark)
    tell = functools.partial(_tell, progress, footer)
    part = job.target.with_name(f".{job.target.name}.part")  # readers leave out names that begin with a dot
    with _all_or_nothing(part, job.target):
        write(footer, part, layout, functools.partial(tell, compared=False))
        seconds = verify(footer, part, layout, functools.partial(tell, compared=True))
    return {"status": "written", "decode_s": seconds, "required": list(layout.required), "delta": list(layout.delta)}


def plan(footer: Footer, settings: Settings, mark: bytes) -> Layout:
    """Plan the layout.

    Reads the first unit of rows, and columns for which the footer does not count nulls.
    """
    rows = unit_rows(footer.metadata, settings)
    schema, required = footer.schema, tuple[str, ...]()
    if footer.metadata.num_rows:
        schema, required = tightened(footer.schema, _nulls(footer))
    carried = {key: value for key, value in (footer.metadata.metadata or {}).items() if key != b"ARROW:schema"}
    schema = schema.with_metadata({**carried, MARK: mark})
    delta, dictionary = delta_columns(_sample(footer, schema, rows), _WRITER)
    return Layout(schema=schema, rows=rows, required=required, delta=delta, dictionary=dictionary)


def write(footer: Footer, path: Path, layout: Layout, tell: Callable[[int], None]) -> None:
    """Write all rows to `path`, in units of `layout.rows`."""
    options = {
        **_WRITER,
        "use_dictionary": list(layout.dictionary),
        "column_encoding": dict.fromkeys(layout.delta, "DELTA_BINARY_PACKED"),
    }
    with Rows(footer) as reading:
        with _writing(path):
            writer = pq.ParquetWriter(path, layout.schema, **options)
        try:
            for unit in _units(reading.batches(), layout):
                with _writing(path):
                    writer.write_table(unit, row_group_size=layout.rows)
                tell(unit.num_rows)
            with _writing(path):
                writer.close()
        except BaseException:
            with contextlib.suppress(OSError):  # of a full disk, once more
                writer.close()
            raise


def verify(footer: Footer, path: Path, layout: Layout, tell: Callable[[int], None]) -> dict[str, float]:
    """Compare the file with its source value by value. Returns the decoding seconds `before` and `after`.

    Raises UnfaithfulError at the first difference.
    """
    with Rows(footer) as before, written(path) as after:
        if after.schema != layout.schema:
            raise UnfaithfulError(f"{path} reads back as\n{after.schema}\nand was written as\n{layout.schema}")
        try:
            for rows in equal_rows(before.batches(), after.batches()):
                tell(rows)
        except Difference as where:
            raise UnfaithfulError(
                f"{footer.file.path} was not rewritten faithfully: {where}. The file is not kept"
            ) from where
        return {"before": before.seconds, "after": after.seconds}


def _units(batches: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[pa.Table]:
    """Tables of `layout.rows` rows each, the last one smaller."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        batch = retyped(batch, layout.schema)
        while rows + batch.num_rows >= layout.rows:
            fits = layout.rows - rows
            yield pa.Table.from_batches([*held, batch.slice(0, fits)])
            held, rows, batch = [], 0, batch.slice(fits)
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _nulls(footer: Footer) -> set[ColumnPath]:
    """Paths with nulls. Decodes only columns for which the footer does not rule nulls out."""
    known = without_nulls(footer)
    asked = [field.name for field in footer.schema if field.name not in known]
    found: set[ColumnPath] = set()
    if asked:
        with Rows(footer) as reading:
            for batch in reading.batches(asked):
                for name in asked:
                    note_nulls(batch.column(name), (name,), found)
    return found


def _sample(footer: Footer, schema: pa.Schema, rows: int) -> pa.Table:
    with Rows(footer) as reading:
        return pa.Table.from_batches([retyped(batch, schema) for batch in reading.batches(rows=rows)], schema)


@contextlib.contextmanager
def _all_or_nothing(part: Path, target: Path) -> Iterator[None]:
    """Rename `part` to `target` if the block succeeds; delete it otherwise."""
    try:
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        yield
        with _writing(target):
            with open(part, "rb") as handle:
                os.fsync(handle.fileno())
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error in the block is one of writing: it says nothing about the source, and is not tried again."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error}") from error


def _mark(footer: Footer, settings: Settings) -> bytes:
    source = {"bytes": footer.size, "digest": footer.digest}
    return json.dumps({"version": VERSION, "source": source, "settings": settings.to_dict()}, sort_keys=True).encode()


def _mark_of(path: Path) -> bytes | None:
    """The mark of a file that this command has written; None for other files, or if there is no file."""
    try:
        found: bytes | None = (pq.read_metadata(path).metadata or {}).get(MARK)
    except (OSError, pa.ArrowException):
        return None
    return found


def _tell(progress: Progress, footer: Footer, rows: int, *, compared: bool) -> None:
    """Report half of the file's bytes when its rows are written, and half when they are compared."""
    share = footer.size * rows // (2 * max(footer.metadata.num_rows, 1))
    progress.advance(rows=rows if compared else 0, bytes=share)


def _below(file: FileRef) -> str:
    """The path of the file below the common folder, with its `key=value` folders."""
    if file.partitions:
        parts = file.path.split("/")
        first = next(index for index, part in enumerate(parts) if "=" in part)
        longer = "/".join(parts[first:])
        return longer if len(longer) > len(file.name) else file.name
    return file.name
