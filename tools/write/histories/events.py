"""Events, one per row: which columns they have, what is wrong with their files, and how they are read.

What is wrong is found before any work is done: from footers, or from a column if they are silent.

`flat` is everywhere the schema of events in the order of the table: the key, the time, then the other fields.
"""

import contextlib
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from freescale_tools.scan.rows import Rows
from fsdata.errors import CorruptFileError
from fsdata.sources.hash_split import text_ids

_NAMED = 8
_SAMPLED_FILES = 4


def raw_numbers(array: pa.Array) -> np.ndarray:
    """The numbers of an integer or time array without nulls, as they are stored, without a copy."""
    unsigned = pa.types.is_unsigned_integer(array.type)
    # Not `to_numpy`, whose first call imports pandas.
    stored = np.frombuffer(array.buffers()[1] or b"", f"{'u' if unsigned else 'i'}{array.type.bit_width // 8}")
    return stored[array.offset : array.offset + len(array)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files whose events are read in order.

    Attributes:
        lists: whether the files are a history table, with a list of events per row.
    """

    footers: tuple[Footer, ...]
    flat: pa.Schema
    lists: bool = False

    @property
    def events(self) -> int:
        if not self.lists:
            return sum(footer.metadata.num_rows for footer in self.footers)
        return sum(  # the second leaf has the times; no history is empty
            footer.metadata.row_group(group).column(1).num_values
            for footer in self.footers
            for group in range(footer.metadata.num_row_groups)
        )

    def batches(self, names: Sequence[str]) -> Generator[pa.RecordBatch]:
        """All events in order, one per row, some MiB at a time. names: columns, key and time among them.

        Raises CorruptFileError with file and row group if a file is damaged.
        """
        by, time = self.flat.names[:2]
        schema = pa.schema([self.flat.field(name) for name in names])
        for footer in self.footers:
            with Rows(footer) as reading:
                for batch in reading.batches(list(names)):
                    if self.lists:  # every column but the key, and none of the lists is null
                        row = pc.list_parent_indices(batch.column(time))
                        found = [batch[name].take(row) if name == by else batch[name].flatten() for name in names]
                    else:
                        found = [_stored(batch[field.name], field.type) for field in schema]
                    events = pa.RecordBatch.from_arrays(found, schema=schema)
                    for name in (by, time):
                        if events[name].null_count:
                            raise CorruptFileError(
                                f"{footer.file.path}: column {name} has nulls, and the footer says that it has none: "
                                "the file was not written properly. Write it again"
                            )
                    yield events

    def event_bytes(self) -> float:
        """Decoded bytes of an event, measured on the first events of a few files; 0 if there are none."""
        size = events = 0
        for footer in self.footers[:: max(len(self.footers) // _SAMPLED_FILES, 1)]:
            with contextlib.closing(replace(self, footers=(footer,)).batches(self.flat.names)) as batches:
                for batch in itertools.islice(batches, 1):
                    size += batch.nbytes
                    events += batch.num_rows
        return size / max(events, 1)


def checked_events(files: FileSet, out: Path, *, by: str, time: str, fields: Sequence[str] | None) -> Source:
    """The events of the files, which all have the same columns; their nulls are not looked for yet.

    fields: the columns beside key and time; None takes all of them, in the order of the first file.

    Raises UsageError if a file lies in `out`, is unreadable, lacks a column, or has a column of a type that does not
    fit or differs from the first file's.
    """
    whole = out.resolve()
    for footer in files.footers:
        if footer.file.local and whole in Path(footer.file.path).resolve().parents:
            raise UsageError(
                f"{footer.file.path} lies in --out {out}: a table is no event log, and the folder is replaced as a "
                "whole. Name the event files only, or give another --out"
            )
    if files.skipped:
        one = files.skipped[0]
        raise UsageError(
            f"{len(files.skipped)} of the event files cannot be read, first {one.file}: {one.reason}. Its events would "
            "be missing from the table: repair the file, or leave it out"
        )
    if by == time:
        raise UsageError(f"--by and --time are both {by}: the key and the time of an event are two columns")
    for name in fields or ():
        if name in (by, time):
            raise UsageError(f"--fields {name}: it is in the table already, by --by or --time. Leave it out")
    if fields is not None and len(set(fields)) < len(fields):
        raise UsageError(f"--fields {','.join(fields)}: a column is named twice")
    first = files.footers[0]
    others = [name for name in first.schema.names if name not in (by, time)] if fields is None else fields
    names = [by, time, *others]
    for footer in files.footers:
        there = footer.schema.names
        if missing := [name for name in names if name not in there]:
            raise UsageError(
                f"{footer.file.path} has no column {_some(missing)}; it has {_some(there)}. Give the names of columns "
                "that every event file has"
            )
        if twice := [name for name in names if there.count(name) > 1]:
            raise UsageError(f"{footer.file.path} has two columns {twice[0]}: rename one of them")
    flat = _common_types(files.footers, names)
    for footer in files.footers[1:]:
        extra = [name for name in footer.schema.names if name not in names]
        if fields is None and extra:
            raise UsageError(
                f"{footer.file.path} has a column {_some(extra)} that {first.file.path} has not: name the columns to "
                "keep by --fields"
            )
    return Source(footers=files.footers, flat=flat)


def _common_types(footers: Sequence[Footer], names: Sequence[str]) -> pa.Schema:
    """The schema of the events. Raises UsageError for types that do not fit, or that differ between files."""
    first, where = footers[0].schema, footers[0].file.path
    flat = pa.schema([pa.field(name, _stored_type(first.field(name).type)) for name in names])
    by, time, *fields = flat
    if not pa.types.is_integer(by.type) and not pa.types.is_string(by.type):
        raise UsageError(
            f"--by {by.name}: it is {by.type} in {where}; keys are integers or texts. Cast the column, and write the "
            "events again"
        )
    if not (pa.types.is_integer(time.type) or pa.types.is_timestamp(time.type) or pa.types.is_date(time.type)):
        raise UsageError(
            f"--time {time.name}: it is {time.type} in {where}; a time is an integer, a timestamp or a date. Cast the "
            "column, and write the events again"
        )
    for field in fields:
        kind = first.field(field.name).type
        if pa.types.is_nested(kind):
            raise UsageError(
                f"column {field.name} is {kind} in {where}; an event has one value per column. Give one row per event, "
                "or name the columns to keep by --fields"
            )
    for footer in footers[1:]:
        for field in flat:
            kind = _stored_type(footer.schema.field(field.name).type)
            if kind != field.type:
                raise UsageError(
                    f"column {field.name} is {kind} in {footer.file.path} and {field.type} in {where}: a list has one "
                    "type. Write one of the files again with the type of the other"
                )
    return flat.set(0, by.with_type(pa.int64())) if pa.types.is_string(by.type) else flat


def _stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a column as the table stores them; texts that are keys as `fsdata.text_key` makes ids of them."""
    if pa.types.is_string(_stored_type(array.type)) and pa.types.is_integer(kind):
        return text_ids(array.cast(pa.string()), 2**63)
    return array.cast(kind)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that Parquet stores, without what Arrow makes of it: no dictionaries, no variants of text."""
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def refuse_nulls(source: Source) -> None:
    """Raise UsageError if a key or a time is null. Decodes the column only where footers do not count nulls."""
    for option, name in zip(("--by", "--time"), source.flat.names[:2], strict=True):
        counts = [_nulls(footer, name) for footer in source.footers]
        if any(counts):
            first = source.footers[np.flatnonzero(counts)[0]].file.path
            what = "key belongs to no history" if option == "--by" else "time has no place in its history"
            raise UsageError(
                f"{option} {name}: {sum(counts):,} nulls in {np.count_nonzero(counts):,} of {len(counts):,} files, "
                f"first in {first}. An event without a {what}: remove these events, or give them a value"
            )


def _nulls(footer: Footer, name: str) -> int:
    schema = footer.metadata.schema
    leaf = next(index for index in range(len(schema)) if schema.column(index).path == name)
    counts = footer.null_counts[:, leaf]
    total = int(counts[counts > 0].sum())
    silent = np.flatnonzero(counts < 0).tolist()
    if silent:
        with Rows(footer) as reading:
            total += sum(batch.column(0).null_count for group in silent for batch in reading.group(group, [name]))
    return total


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
