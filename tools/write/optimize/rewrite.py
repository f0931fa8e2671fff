"""Rewrites Parquet files for fast loading: reads, writes beside the target, compares, renames.

A file gets its name only when it is complete and equal to its source, value by value. It carries a mark: size
and footer digest of the source, and the settings. By the mark, the next run knows finished files and leaves
them alone. Memory holds one unit of rows.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from freescale_tools.scan.rows import Rows, rows_of_file
from freescale_tools.write.optimize.layout import (
    ColumnPath,
    Layout,
    Settings,
    delta_columns,
    list_of,
    note_nulls,
    tightened,
    unit_rows,
    without_nulls,
)
from fsdata.catalog.binding.arrow_types import is_list
from fsdata.catalog.retry import Retrying
from fsdata.errors import CorruptFileError

VERSION = 1
MARK = b"freescale.optimize"

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_WRITER: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "version": "2.6"}


class Difference(Exception):
    """What was written differs from its source; the message names the first value that does."""


def optimize_all(
    files: FileSet, out: Path, settings: Settings, progress: Progress, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Rewrite all files, and return the document of the run. A file that fails is told, and marked `failed`.

    Everything that can be checked before writing is checked first. Totals are over the files now in place, seconds
    over the files written.

    Raises UsageError if an input would be overwritten or mixed with the output, or if a target exists that this
    command has not written; CommandFailed if a target cannot be written.
    """
    names = [_checked_name(footer, out) for footer in files.footers]
    done = []
    for footer, name in zip(files.footers, names, strict=True):
        metadata = footer.metadata
        document = {
            "file": name,
            "out": str(out / name),
            "status": "kept",
            "rows": metadata.num_rows,
            "row_groups": {"before": metadata.num_row_groups, "after": None},
            "bytes": {"before": footer.size, "after": None},
            "decode_s": None,
            "required": [],
            "delta": [],
        }
        try:
            document |= optimize(footer, out / name, settings, progress)
        except (CorruptFileError, ConnectionError, Difference, pa.ArrowException) as error:
            # Arrow's errors: a type that cannot be written, or wrong statistics.
            what = f"{footer.file.path} cannot be rewritten: " if isinstance(error, pa.ArrowException) else ""
            tell(f"{what}{error}")
            document |= {"status": "failed", "reason": str(error)}
        except OSError as error:
            raise CommandFailed(f"{out / name} cannot be written: {error}") from error
        done.append(document)
    there = [one for one in done if one["status"] != "failed"]
    new = [one for one in done if one["status"] == "written"]

    def total(of: str, over: list[dict[str, Any]]) -> dict[str, Any]:
        return {when: sum(one[of][when] for one in over) for when in ("before", "after")}

    return {
        **header("optimize"),
        "out": str(out),
        "settings": asdict(settings),
        "files": done,
        "skipped": [{"file": one.file, "reason": one.reason} for one in files.skipped],
        "totals": {
            "rows": sum(one["rows"] for one in there),
            "row_groups": total("row_groups", there),
            "bytes": total("bytes", there),
            "decode_s": total("decode_s", new) if new else None,
        },
        "layout": {what: sorted({name for one in new for name in one[what]}) for what in ("required", "delta")},
    }


def _checked_name(footer: Footer, out: Path) -> str:
    """The path of the file below `out`: its own below the common folder, with its `key=value` folders."""
    file = footer.file
    if file.local and out.resolve() in Path(file.path).resolve().parents:
        raise UsageError(
            f"{file.path} lies in --out {out}: inputs are never overwritten or mixed with what is written. Give "
            "another folder"
        )
    name = file.name
    if file.partitions:
        parts = file.path.split("/")
        first = next(index for index, part in enumerate(parts) if "=" in part)
        name = max(name, "/".join(parts[first:]), key=len)
    if (out / name).exists() and _mark_of(out / name) is None:
        raise UsageError(f"{out / name} exists and was not written by this command: give another --out, or remove it")
    columns = footer.schema.names
    if len(set(columns)) < len(columns):
        raise UsageError(f"{file.path} has two columns of the same name: rename one of them")
    return name


def optimize(footer: Footer, target: Path, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Rewrite one file unless it is already done. Returns what its document gains by that.

    Raises CorruptFileError if the source is damaged, Difference if the written file differs from it. An early end
    never leaves half a file.
    """
    before = footer.metadata
    source = {"bytes": footer.size, "digest": footer.digest}
    mark = json.dumps({"version": VERSION, "source": source, "settings": asdict(settings)}, sort_keys=True).encode()
    gained: dict[str, Any] = {}
    if _mark_of(target) == mark:
        progress.advance(rows=before.num_rows, bytes=footer.size)
    else:
        gained = Retrying().call(lambda: _rewrite(footer, target, settings, mark, progress), footer.file)
    after = pq.read_metadata(target).num_row_groups
    return gained | {
        "row_groups": {"before": before.num_row_groups, "after": after},
        "bytes": {"before": footer.size, "after": target.stat().st_size},
    }


def _mark_of(path: Path) -> bytes | None:
    """The mark of a file that this command has written; None for other files, or if there is no file."""
    try:
        found: bytes | None = (pq.read_metadata(path).metadata or {}).get(MARK)
    except (OSError, pa.ArrowException):
        return None
    return found


def _rewrite(footer: Footer, target: Path, settings: Settings, mark: bytes, progress: Progress) -> dict[str, Any]:
    """Rename the new file to `target` if it is whole and equal; delete it otherwise."""
    layout = plan(footer, settings, mark)
    part = target.with_name(f".{target.name}.part")  # readers leave out names that begin with a dot
    try:
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        write(footer, part, layout, progress)
        seconds = verify(footer, part, layout, progress)
        with _writing(target):
            with open(part, "rb") as handle:
                os.fsync(handle.fileno())
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return {"status": "written", "decode_s": seconds, "required": list(layout.required), "delta": list(layout.delta)}


def plan(footer: Footer, settings: Settings, mark: bytes) -> Layout:
    """Plan the layout.

    Reads the first unit of rows, and columns for which the footer does not rule nulls out.
    """
    rows, schema, required = unit_rows(footer.metadata, settings), footer.schema, tuple[str, ...]()
    if footer.metadata.num_rows:
        schema, required = tightened(schema, _nulls(footer))
    carried = {key: value for key, value in (footer.metadata.metadata or {}).items() if key != b"ARROW:schema"}
    schema = schema.with_metadata({**carried, MARK: mark})
    with Rows(footer) as reading:
        sample = pa.Table.from_batches([retyped(batch, schema) for batch in reading.batches(rows=rows)], schema)
    delta, dictionary = delta_columns(sample, _WRITER)
    return Layout(schema=schema, rows=rows, required=required, delta=delta, dictionary=dictionary)


def _nulls(footer: Footer) -> set[ColumnPath]:
    """Paths with nulls."""
    known = without_nulls(footer)
    asked = [name for name in footer.schema.names if name not in known]
    found: set[ColumnPath] = set()
    if asked:
        with Rows(footer) as reading:
            for batch in reading.batches(asked):
                for name in asked:
                    note_nulls(batch.column(name), (name,), found)
    return found


def write(footer: Footer, path: Path, layout: Layout, progress: Progress) -> None:
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
                progress.advance(bytes=_half(footer, unit.num_rows))
            with _writing(path):
                writer.close()
        except BaseException:
            with contextlib.suppress(OSError):  # of a full disk, once more
                writer.close()
            raise


def verify(footer: Footer, path: Path, layout: Layout, progress: Progress) -> dict[str, float]:
    """Compare the file with its source value by value. Returns the decoding seconds `before` and `after`.

    Raises Difference at the first difference.
    """
    with Rows(footer) as before, rows_of_file(path) as after:
        if after.schema != layout.schema:
            raise Difference(f"{path} reads back as\n{after.schema}\nand was written as\n{layout.schema}")
        try:
            for rows in equal_rows(before.batches(), after.batches()):
                progress.advance(rows=rows, bytes=_half(footer, rows))
        except Difference as where:
            what = f"{footer.file.path} was not rewritten faithfully: {where}. The file is not kept"
            raise Difference(what) from where
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


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error in the block is one of writing: it says nothing about the source, and is not tried again."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error}") from error


def _half(footer: Footer, rows: int) -> int:
    """The bytes of so many rows, half of which are reported when rows are written, half when they are compared."""
    return footer.size * rows // (2 * max(footer.metadata.num_rows, 1))


def equal_rows(source: Iterator[pa.RecordBatch], copy: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Compare bit by bit, and yield how many rows were equal. Raises Difference at the first that is not.

    Null equals null, NaN equals NaN, and -0.0 differs from 0.0. The streams have the same columns, whose types may
    differ in nullability. Their batches may differ in size.
    """
    one, other, row = next(source, None), next(copy, None), 0
    while one is not None and other is not None:
        rows = min(one.num_rows, other.num_rows)
        for name, expected, found in zip(other.schema.names, one.columns, other.columns, strict=True):
            at = unequal_row(expected.slice(0, rows), found.slice(0, rows))
            if at is not None:
                values = f"{_text(found[at])} where the source has {_text(expected[at])}"
                raise Difference(f"row {row + at}, column {name}: {values}")
        if rows:
            yield rows
        row += rows
        one = one.slice(rows) if rows < one.num_rows else next(source, None)
        other = other.slice(rows) if rows < other.num_rows else next(copy, None)
    if one is not None or other is not None:
        missing, there = ("the end", "more rows") if other is None else ("more rows", "the end")
        raise Difference(f"row {row}, column (all): {missing} where the source has {there}")


def _text(value: pa.Scalar) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def unequal_row(one: pa.Array, other: pa.Array) -> int | None:
    """The first row in which two arrays of the same length differ, found by bisection.

    Arrow's `equals` is fast and knows every type, but takes floats for numbers. So the buffers of both are looked at
    as other types, in which floats are integers of the same width.
    """
    one, other = _as_bits(one), _as_bits(other)
    if one.equals(other):
        return None
    start, stop = 0, len(one)
    while stop - start > 1:
        middle = (start + stop) // 2
        if one[start:middle].equals(other[start:middle]):
            start = middle
        else:
            stop = middle
    return start


def retyped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same buffers under a schema that differs only in nullability and metadata."""
    return pa.record_batch(_Exported(batch, schema))


class _Exported:
    """An array or a batch that hands out its buffers as another type (the Arrow C data interface)."""

    def __init__(self, data: pa.Array | pa.RecordBatch, kind: pa.DataType | pa.Schema) -> None:
        self._data = data
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._kind.__arrow_c_schema__(), self._data.__arrow_c_array__()[1]


def _as_bits(array: pa.Array) -> pa.Array:
    """Without dictionaries, extensions and floats, and all parts nullable."""
    plain = pa.array(_Exported(array, _rebuilt(array.type, lambda kind: kind)))
    no_dictionaries = _rebuilt(plain.type, lambda kind: kind.value_type if pa.types.is_dictionary(kind) else kind)
    decoded = plain.cast(no_dictionaries)
    no_floats = _rebuilt(decoded.type, lambda kind: _BITS[kind.bit_width] if pa.types.is_floating(kind) else kind)
    return pa.array(_Exported(decoded, no_floats))


def _rebuilt(kind: pa.DataType, leaf: Callable[[Any], Any]) -> Any:
    """`kind` with `leaf` of every type in it that is not nested. Fields are nullable, extensions their storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return _rebuilt(kind.storage_type, leaf)
    if is_list(kind):
        return list_of(kind, _rebuilt(kind.value_type, leaf))
    if pa.types.is_map(kind):
        return pa.map_(_rebuilt(kind.key_type, leaf), _rebuilt(kind.item_type, leaf))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _rebuilt(field.type, leaf)) for field in kind])
    return leaf(kind)
