"""Makes histories of the events of one part: sorts them, and cuts them into lists.

The order is stable: events with the same key and time keep the order in which they came.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.console.errors import CommandFailed
from freescale_tools.write.histories.events.layout import raw_numbers
from freescale_tools.write.histories.parts.keys import buckets_of

GROUP_EVENTS = 1 << 20
GROUP_USERS = 65_536
_BUCKET = "bucket"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SortedEvents:
    """The events of a part in order of (bucket, key, time).

    Attributes:
        columns: key, time, fields: one array of N events each.
        starts: int64[U + 1], the first event of every history, and N.
        buckets: uint32[U], the bucket of every history.
    """

    columns: tuple[pa.Array, ...]
    starts: np.ndarray
    buckets: np.ndarray


def sort_events(events: pa.Table, buckets: int, *, mixed: bool) -> SortedEvents:
    """Sort events by (bucket, key, time).

    events: key and time are the first two columns.
    mixed: whether the events may be of several buckets.
    """
    keys, times = _in_one_piece(events, 0), _in_one_piece(events, 1)
    by = {"key": keys, "time": times}
    if mixed:
        by = {_BUCKET: pa.array(buckets_of(raw_numbers(keys), buckets)), **by}
    batch = pa.RecordBatch.from_arrays(list(by.values()), list(by))
    order = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in by])
    del batch, by
    columns = [keys.take(order), times.take(order)]
    del keys, times
    for place in range(2, events.num_columns):
        columns.append(_in_one_piece(events, place).take(order))
    sorted_keys = raw_numbers(columns[0])
    firsts = np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1
    starts = np.concatenate([[0], firsts, [len(sorted_keys)]]) if len(sorted_keys) else np.zeros(1, np.int64)
    of = buckets_of(sorted_keys[starts[:-1]], buckets)
    return SortedEvents(columns=tuple(columns), starts=starts, buckets=of)


def row_groups(events: SortedEvents, schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """(bucket, rows of one row group of its file), in order.

    A row group has one bucket. It ends before it has more than GROUP_EVENTS events or GROUP_USERS histories, unless
    one history alone is longer.
    """
    starts = events.starts
    ends = np.append(np.flatnonzero(np.diff(events.buckets)) + 1, len(starts) - 1)
    first = 0
    for end in ends.tolist():
        while first < end:
            full = int(np.searchsorted(starts, starts[first] + GROUP_EVENTS, side="right")) - 1
            last = min(max(full, first + 1), first + GROUP_USERS, end)
            yield int(events.buckets[first]), _lists(events, first, last, schema)
            first = last


def _lists(events: SortedEvents, first: int, last: int, schema: pa.Schema) -> pa.Table:
    """The histories from `first` to before `last`, one per row."""
    starts = events.starts[first : last + 1]
    begin, count = int(starts[0]), int(starts[-1] - starts[0])
    offsets = pa.array((starts - begin).astype(np.int32))
    key, *others = events.columns
    columns = [key.take(pa.array(starts[:-1]))]
    for field, column in zip(list(schema)[1:], others, strict=True):
        columns.append(pa.ListArray.from_arrays(offsets, column.slice(begin, count), type=field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _in_one_piece(events: pa.Table, place: int) -> pa.Array:
    column = events.column(place).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        raise CommandFailed(
            f"column {events.schema.names[place]}: the texts of one key, or of a few, have more than 2 GiB, which is "
            "more than one array of them can hold. Leave the key or the column out"
        )
    return column
