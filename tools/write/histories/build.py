"""Builds a table: plans parts, splits events into them, sorts part after part, and writes.

Memory holds one part. Events are read once to draw keys, if the keys of a bucket have to be cut into ranges, once
to be split, and once from the files of the parts. With one part there are no such files.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.files import FileSet
from freescale_tools.write.histories.events.checks import checked_layout, refuse_input_in, refuse_nulls
from freescale_tools.write.histories.events.layout import Layout
from freescale_tools.write.histories.events.sources import Source
from freescale_tools.write.histories.existing import (
    MOST_BUCKETS,
    file_name,
    open_table,
    refuse_occupied,
    refuse_other_layout,
)
from freescale_tools.write.histories.folder import Workplace, replacing
from freescale_tools.write.histories.parts.assemble import row_groups, sort_events
from freescale_tools.write.histories.parts.plan import PART_BYTES, Parts, parts_wanted, plan_parts, ranges_wanted
from freescale_tools.write.histories.parts.split import PartFiles, sampled_keys
from freescale_tools.write.histories.statistics import Statistics
from freescale_tools.write.histories.write import TableWriter

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
        layout = before.layout if before is not None else layout
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


def build(
    sources: Sequence[Source], buckets: int, *, place: Workplace, bar: Bar, part_bytes: int = PART_BYTES
) -> tuple[Statistics, int]:
    """Write the table of all events into `place.new`. Returns its statistics, and the bytes of its files.

    sources: of one layout. Events of one key with equal times come in the order of the sources.
    """
    layout = sources[0].layout
    parts = _plan(sources, layout, buckets, part_bytes)
    files = PartFiles(place.parts, parts.count) if parts.count > 1 else None
    events = sum(source.events for source in sources)
    if files is not None:
        with bar("splitting", events) as progress:
            files.fill(sources, layout, parts, lambda rows: progress.advance(rows=rows))
    statistics = Statistics(layout.flat.field(layout.time).type)
    with bar("building", events) as progress, TableWriter(place.new, layout, buckets) as writer:
        for part in range(parts.count):
            flat = _all(sources, layout) if files is None else files.take(part)
            ordered = sort_events(flat, buckets, mixed=parts.mixed)
            del flat
            statistics.add(ordered)
            for bucket, rows in row_groups(ordered, writer.schema):
                writer.write(bucket, rows)
            progress.advance(rows=int(ordered.starts[-1]))
    return statistics, writer.bytes


def _before(out: Path, layout: Layout, settings: Settings) -> tuple[Source | None, int]:
    """(the events of the table that is updated, buckets of the table)."""
    if not settings.update:
        refuse_occupied(out)
        return None, settings.buckets or 1
    table = open_table(out)
    if settings.buckets not in (None, table.buckets):
        raise UsageError(
            f"--buckets {settings.buckets}: the table in {out} has {table.buckets}. Leave the option out, or build a "
            "new table from all events"
        )
    refuse_other_layout(table, layout, folder=out, every_column=settings.fields is None)
    return table.source, table.buckets


def _plan(sources: Sequence[Source], layout: Layout, buckets: int, part_bytes: int) -> Parts:
    width = max(source.event_bytes() for source in sources)
    wanted = parts_wanted(sum(source.events for source in sources), width, part_bytes)
    sample = sampled_keys(sources, layout) if ranges_wanted(wanted, buckets) > 1 else np.empty(0, np.int64)
    return plan_parts(wanted, buckets, sample)


def _all(sources: Sequence[Source], layout: Layout) -> pa.Table:
    batches = [batch for source in sources for batch in source.batches(layout.flat.names)]
    return pa.Table.from_batches(batches, layout.flat)
