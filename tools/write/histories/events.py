"""Events, one per row: which columns they have, what is wrong with their files, and how they are read.

What is wrong is found before any work is done: from footers, or from a column if they are silent.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.rows import Rows
from fsdata.catalog.footers import Footer
from fsdata.errors import CorruptFileError

_NAMED = 8
_HASH_TEXT = "int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'little', signed=True)"
_SAMPLED_FILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of the events, in the order of the table.

    Attributes:
        flat: schema of events: the key, the time, then the other fields.
    """

    flat: pa.Schema

    @property
    def by(self) -> str:
        return str(self.flat.names[0])

    @property
    def time(self) -> str:
        return str(self.flat.names[1])

    @property
    def fields(self) -> tuple[str, ...]:
        """Without key and time."""
        return tuple(self.flat.names[2:])


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that Parquet stores, without what Arrow makes of it: no dictionaries, no variants of text."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, in its order and with its types, which are those of `stored_type`."""
    return pa.RecordBatch.from_arrays([batch.column(field.name).cast(field.type) for field in schema], schema=schema)


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
    layout: Layout
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

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All events in order, one per row, some MiB at a time; the columns `names` of the layout, the time among them.

        Raises CorruptFileError with file and row group if a file is damaged.
        """
        for footer in self.footers:
            yield from self._flat(footer, names)

    def event_bytes(self) -> float:
        """Decoded bytes of an event, measured on the first events of a few files; 0 if there are none."""
        step = max(len(self.footers) // _SAMPLED_FILES, 1)
        size = events = 0
        for footer in self.footers[::step]:
            with contextlib.closing(self._flat(footer, self.layout.flat.names)) as batches:
                batch = next(batches, None)
            size += batch.nbytes if batch is not None else 0
            events += batch.num_rows if batch is not None else 0
        return size / max(events, 1)

    def _flat(self, footer: Footer, names: Sequence[str]) -> Generator[pa.RecordBatch]:
        schema = pa.schema([self.layout.flat.field(name) for name in names])
        with Rows(footer) as reading:
            for batch in reading.batches(list(names)):
                events = _exploded(batch, schema, self.layout) if self.lists else as_stored(batch, schema)
                _refuse_surprising_nulls(events, footer, self.layout)
                yield events


def _refuse_surprising_nulls(events: pa.RecordBatch, footer: Footer, layout: Layout) -> None:
    for name in (layout.by, layout.time):
        if name in events.schema.names and events.column(name).null_count:
            raise CorruptFileError(
                f"{footer.file.path}: column {name} has nulls, and the footer says that it has none: the file was not "
                "written properly. Write it again"
            )


def _exploded(batch: pa.RecordBatch, schema: pa.Schema, layout: Layout) -> pa.RecordBatch:
    """One row per event; every column of a history table but the key is a list, and none is null."""
    row = pc.list_parent_indices(batch.column(layout.time))
    names = schema.names
    columns = [batch.column(name).take(row) if name == layout.by else batch.column(name).flatten() for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    layout = Layout(flat=pa.schema([pa.field(name, stored_type(first.schema.field(name).type)) for name in names]))
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
        with Rows(footer) as reading:
            total += sum(batch.column(0).null_count for group in silent for batch in reading.group(group, [name]))
    return total


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
