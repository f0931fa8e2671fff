"""Streams of events: from event files, or from a history table whose lists are taken apart again."""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.scan.reading import reading_source
from freescale_tools.write.histories.events.layout import Layout, as_stored, raw_numbers
from fsdata.catalog.footers import Footer
from fsdata.errors import CorruptFileError

_SAMPLED_FILES = 4


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
        """All events in order, one per row, some MiB at a time; the columns `names` of the layout.

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
        read = [*names, self.layout.time] if self.lists and list(names) == [self.layout.by] else list(names)
        with reading_source(footer) as reading:
            for batch in reading.batches(read):
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
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if field.name == layout.by:
            lengths = raw_numbers(pc.list_value_length(batch.column(layout.time)))
            columns.append(column.take(pa.array(np.repeat(np.arange(len(column)), lengths))))
        else:
            columns.append(column.flatten())
    return pa.RecordBatch.from_arrays(columns, schema=schema)
