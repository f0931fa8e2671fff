"""Builds a table: splits events into parts that fit into memory, sorts part after part, and cuts them into lists.

Events are read once to draw keys, if the keys of a bucket have to be cut into ranges, once to be split, and once from
the files of the parts.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.files import FileSet
from freescale_tools.write.histories.events import (
    Layout,
    Source,
    checked_layout,
    raw_numbers,
    refuse_input_in,
    refuse_nulls,
)
from freescale_tools.write.histories.parts import (
    PART_BYTES,
    buckets_of,
    parts_wanted,
    plan_parts,
    sampled_keys,
    split,
    take,
)
from freescale_tools.write.histories.statistics import Statistics
from freescale_tools.write.histories.table import (
    MOST_BUCKETS,
    Workplace,
    file_name,
    open_table,
    refuse_occupied,
    refuse_other_layout,
    replacing,
    table_schema,
    write_table,
)

GROUP_EVENTS = 1 << 20
GROUP_USERS = 65_536

Bar = Callable[[str, int], contextlib.AbstractContextManager[Progress]]
"""Opens a bar: what is done, and how many rows there are to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose.

    Attributes:
        by, time: columns of the events: key and time.
        fields: the columns beside them; None takes all.
        buckets: files of the table; None has 1, or as many as the table that is updated.
        part_bytes: decoded bytes of the events that are sorted at once.
    """

    by: str
    time: str
    fields: tuple[str, ...] | None = None
    buckets: int | None = None
    update: bool = False
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        if self.buckets is not None and not 1 <= self.buckets <= MOST_BUCKETS:
            raise ValueError(f"buckets must be 1 to {MOST_BUCKETS:,}, got {self.buckets}")


def make_table(files: FileSet, out: Path, settings: Settings, bar: Bar) -> dict[str, Any]:
    """Build or update the table in `out` and return a document about it. An early end leaves `out` as it was.

    Raises UsageError if events, folder and settings do not fit together, CommandFailed if another run writes the
    table, CorruptFileError if a file is damaged, OSError or pa.ArrowException if files cannot be read or written.
    """
    started = time.perf_counter()
    refuse_input_in(out, files)
    layout = checked_layout(files, by=settings.by, time=settings.time, fields=settings.fields)
    with replacing(out) as place:
        before, buckets = _before(out, layout, settings)
        layout = layout if before is None else before.layout
        refuse_nulls(files, layout)
        new = Source(footers=files.footers, layout=layout)
        sources = [new] if before is None else [before, new]
        statistics, size = build(sources, buckets, place=place, bar=bar, part_bytes=settings.part_bytes)
    return {
        **header("histories"),
        "out": str(out),
        "by": layout.by,
        "time_column": layout.time,
        "fields": list(layout.fields),
        "new_events": None if before is None else new.events,
        **statistics.document(),
        "files": [file_name(bucket, buckets) for bucket in range(buckets)],
        "bytes": size,
        "seconds": time.perf_counter() - started,
    }


def _before(out: Path, layout: Layout, settings: Settings) -> tuple[Source | None, int]:
    """(the events of the table that is updated, buckets of the table)."""
    if not settings.update:
        refuse_occupied(out)
        return None, settings.buckets or 1
    table, buckets = open_table(out)
    if settings.buckets not in (None, buckets):
        raise UsageError(
            f"--buckets {settings.buckets}: the table in {out} has {buckets}. Leave the option out, or build a "
            "new table from all events"
        )
    refuse_other_layout(table.layout, layout, folder=out, every_column=settings.fields is None)
    return table, buckets


def build(
    sources: Sequence[Source], buckets: int, *, place: Workplace, bar: Bar, part_bytes: int = PART_BYTES
) -> tuple[Statistics, int]:
    """Write the table of all events into `place.new`. Returns its statistics, and the bytes of its files.

    sources: of one layout. Events of one key with equal times come in the order of the sources.
    """
    layout = sources[0].layout
    events = sum(source.events for source in sources)
    wanted = parts_wanted(events, max(source.event_bytes() for source in sources), part_bytes)
    parts = plan_parts(wanted, buckets, sampled_keys(sources) if wanted > buckets else np.empty(0, np.int64))
    with bar("splitting", events) as progress:
        files = split(sources, parts, place.parts, lambda rows: progress.advance(rows=rows))
    statistics = Statistics(layout.flat.field(layout.time).type)
    schema = table_schema(layout, buckets)

    def groups(progress: Progress) -> Iterator[tuple[int, pa.Table]]:
        for file in files:
            columns, starts = sort_events(take(file), buckets)
            statistics.add(raw_numbers(columns[1]), starts)
            yield from row_groups(columns, starts, buckets, schema)
            progress.advance(rows=int(starts[-1]))

    with bar("building", events) as progress:
        return statistics, write_table(place.new, layout, buckets, groups(progress))


def sort_events(events: pa.Table, buckets: int) -> tuple[list[pa.Array], np.ndarray]:
    """Sort the events of a part by (bucket, key, time). Equal ones keep the order in which they came.

    events: N events; key and time are the first two columns.

    Returns (the columns, one array of N each; int64[U + 1]: the first event of every history, and N).
    """
    keys = _in_one_piece(events, 0)
    by = {"key": keys, "time": _in_one_piece(events, 1)}
    if buckets > 1:
        by = {"bucket": pa.array(buckets_of(raw_numbers(keys), buckets)), **by}
    batch = pa.RecordBatch.from_arrays(list(by.values()), list(by))
    order = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in by])
    del batch, by, keys  # memory is for the columns, of which one at a time is there twice
    columns = [_in_one_piece(events, place).take(order) for place in range(events.num_columns)]
    ordered = raw_numbers(columns[0])
    firsts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts = np.concatenate([[0], firsts, [len(ordered)]]) if len(ordered) else np.zeros(1, np.int64)
    return columns, starts


def row_groups(
    columns: Sequence[pa.Array], starts: np.ndarray, buckets: int, schema: pa.Schema
) -> Iterator[tuple[int, pa.Table]]:
    """(bucket, rows of one row group of its file), in order, of what `sort_events` gives.

    A row group has one bucket. It ends before it has more than GROUP_EVENTS events or GROUP_USERS histories, unless
    one history alone is longer.
    """
    keys = columns[0].take(pa.array(starts[:-1]))
    of = buckets_of(raw_numbers(keys), buckets)
    ends = np.append(np.flatnonzero(np.diff(of)) + 1, len(keys))
    first = 0
    for end in ends.tolist():
        while first < end:
            full = int(np.searchsorted(starts, starts[first] + GROUP_EVENTS, side="right")) - 1
            last = min(max(full, first + 1), first + GROUP_USERS, end)
            begin, count = int(starts[first]), int(starts[last] - starts[first])
            offsets = pa.array((starts[first : last + 1] - begin).astype(np.int32))
            lists = [
                pa.ListArray.from_arrays(offsets, column.slice(begin, count), type=field.type)
                for field, column in zip(list(schema)[1:], columns[1:], strict=True)
            ]
            yield int(of[first]), pa.Table.from_arrays([keys[first:last], *lists], schema=schema)
            first = last


def _in_one_piece(events: pa.Table, place: int) -> pa.Array:
    column = events.column(place).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        raise CommandFailed(
            f"column {events.schema.names[place]}: the texts of one key, or of a few, have more than 2 GiB, which is "
            "more than one array of them can hold. Leave the key or the column out"
        )
    return column
