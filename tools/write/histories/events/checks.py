"""Finds what is wrong with event files before any work is done: from footers, or from a column if they are silent."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.reading import reading_source
from freescale_tools.write.histories.events.layout import Layout, layout_of, stored_type
from fsdata.catalog.footers import Footer

_NAMED = 8
_HASH_TEXT = "int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'little', signed=True)"


def checked_layout(files: FileSet, *, by: str, time: str, fields: Sequence[str] | None) -> Layout:
    """The layout that all event files have.

    fields: the columns beside key and time; None takes all of them, in the order of the first file.

    Raises UsageError if a file is unreadable, lacks a column, or has a column of a type that does not fit or
    differs from the first file's.
    """
    if files.skipped:
        one = files.skipped[0]
        raise UsageError(
            f"{len(files.skipped)} of the event files cannot be read, first {one.file}: {one.reason}. Its events would "
            "be missing from the table: repair the file, or leave it out"
        )
    first = files.footers[0]
    names = _names(first, by=by, time=time, fields=fields)
    for footer in files.footers:
        _check_names(footer, names)
    _check_types(first, names)
    layout = layout_of(first.schema, names)
    for footer in files.footers[1:]:
        _check_same(footer, first, layout, every_column=fields is None)
    return layout


def refuse_input_in(out: Path, files: FileSet) -> None:
    """Raise UsageError if an event file lies in the folder that is to be written."""
    whole = out.resolve()
    for footer in files.footers:
        if footer.file.local and whole in Path(footer.file.path).resolve().parents:
            raise UsageError(
                f"{footer.file.path} lies in --out {out}: a table is no event log, and the folder is replaced as a "
                "whole. Name the event files only, or give another --out"
            )


def refuse_nulls(files: FileSet, layout: Layout) -> None:
    """Raise UsageError if a key or a time is null. Decodes the column only where footers do not count nulls."""
    for option, name in (("--by", layout.by), ("--time", layout.time)):
        counts = [(footer, _nulls(footer, name)) for footer in files.footers]
        there = [(footer, nulls) for footer, nulls in counts if nulls]
        if there:
            what = "key belongs to no history" if option == "--by" else "time has no place in its history"
            raise UsageError(
                f"{option} {name}: {sum(nulls for _, nulls in there):,} nulls in {len(there):,} of {len(counts):,} "
                f"files, first in {there[0][0].file.path}. An event without a {what}: remove these events, or give "
                "them a value"
            )


def _names(first: Footer, *, by: str, time: str, fields: Sequence[str] | None) -> list[str]:
    if by == time:
        raise UsageError(f"--by and --time are both {by}: the key and the time of an event are two columns")
    if fields is None:
        return [by, time, *(name for name in first.schema.names if name not in (by, time))]
    for name in fields:
        if name in (by, time):
            raise UsageError(f"--fields {name}: it is in the table already, by --by or --time. Leave it out")
    if len(set(fields)) < len(fields):
        raise UsageError(f"--fields {','.join(fields)}: a column is named twice")
    return [by, time, *fields]


def _check_names(footer: Footer, names: Sequence[str]) -> None:
    there = footer.schema.names
    missing = [name for name in names if name not in there]
    if missing:
        raise UsageError(
            f"{footer.file.path} has no column {_some(missing)}; it has {_some(there)}. Give the names of columns that "
            "every event file has"
        )
    twice = [name for name in names if there.count(name) > 1]
    if twice:
        raise UsageError(f"{footer.file.path} has two columns {twice[0]}: rename one of them")


def _check_types(footer: Footer, names: Sequence[str]) -> None:
    where = footer.file.path
    by, time, *fields = names
    kind = stored_type(footer.schema.field(by).type)
    if not pa.types.is_integer(kind):
        text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        todo = f"Hash texts first, for example by {_HASH_TEXT}" if text else "Cast the column first"
        raise UsageError(f"--by {by}: it is {kind} in {where}; keys are integers. {todo}, and write the events again")
    kind = stored_type(footer.schema.field(time).type)
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise UsageError(
            f"--time {time}: it is {kind} in {where}; a time is an integer, a timestamp or a date. Cast the column, "
            "and write the events again"
        )
    for name in fields:
        kind = footer.schema.field(name).type
        if pa.types.is_nested(kind):
            raise UsageError(
                f"column {name} is {kind} in {where}; an event has one value per column. Give one row per event, or "
                "name the columns to keep by --fields"
            )


def _check_same(footer: Footer, first: Footer, layout: Layout, *, every_column: bool) -> None:
    for field in layout.flat:
        kind = stored_type(footer.schema.field(field.name).type)
        if kind != field.type:
            raise UsageError(
                f"column {field.name} is {kind} in {footer.file.path} and {field.type} in {first.file.path}: a list "
                "has one type. Write one of the files again with the type of the other"
            )
    extra = [name for name in footer.schema.names if name not in layout.flat.names]
    if every_column and extra:
        raise UsageError(
            f"{footer.file.path} has a column {_some(extra)} that {first.file.path} has not: name the columns to keep "
            "by --fields"
        )


def _nulls(footer: Footer, name: str) -> int:
    schema = footer.metadata.schema
    leaf = next(index for index in range(len(schema)) if schema.column(index).path == name)
    silent = [group for group, count in enumerate(footer.null_counts[:, leaf].tolist()) if count < 0]
    known = footer.null_counts[:, leaf]
    total = int(known[known > 0].sum())
    if silent:
        with reading_source(footer) as reading:
            total += sum(batch.column(0).null_count for group in silent for batch in reading.group(group, [name]))
    return total


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
