"""Builds a table: splits events into parts that fit into memory, sorts part after part, and cuts them into lists.

The table is in order of (bucket, key). A part is a consecutive piece of it: whole buckets, or a range of the keys of
one bucket. Parts can therefore be made one after the other and appended. All events of a key are in one part, so a
part can be larger than planned only by its longest histories.

Events are read once to draw keys, if the keys of a bucket have to be cut into ranges, once to be split, and once from
the files of the parts.

The bucket of a key is integer arithmetic that any program can repeat. With unsigned integers of 64 bits, where
products wrap around, and a key taken as int64 if its type has a sign:

    h = key * M
    h = (h xor (h >> 32)) * M
    bucket = (h >> 32) mod buckets        with M = 0x9E3779B97F4A7C15

M is 2^64 divided by the golden ratio, made odd. One multiplication alone leaves the upper bits of a key out of
the lower bits of the product, so keys that are all multiples of a power of two would share buckets.

Sorting all events with a library was measured in place of parts, on 24 million events of 28 bytes. With parts the
whole table takes 14 s of CPU and 0.6 GB. DuckDB 2.0 (memory_limit 256 MB) takes 18 s and 0.5 GB for the sort alone,
and would be one more package to install; polars 2.1 takes 18 s and 1.7 GB, as its streaming sort holds all events.
"""

import contextlib
import datetime
import time as clock
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress, Terminal
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.write.histories.events import Source, checked_events, raw_numbers, refuse_nulls
from freescale_tools.write.histories.table import (
    file_names,
    open_table,
    refuse_occupied,
    refuse_other_columns,
    replacing,
    table_schema,
    write_table,
)

PART_BYTES = 64 << 20
"""Decoded bytes of the events of a part. Making one takes about six times as much memory."""

MOST_PARTS = 400
"""More events than fit into so many parts make larger parts: every part is an open file while events are split."""

_SAMPLES = 1 << 18
_SPLIT_ROWS = 1 << 18  # events that are split at once: every part gets a slice, and a small slice is mostly overhead
_GROUP_EVENTS = 1 << 20
_GROUP_USERS = 65_536
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_TICKS = {"days": 1 / 86_400, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second
_EPOCH_FROM, _EPOCH_TO = 10**8, 10**10  # seconds: from 1973 to 2286, so that no number fits two units


def make_table(
    files: FileSet,
    out: Path,
    *,
    by: str,
    time: str,
    fields: Sequence[str] | None,
    buckets: int | None,
    update: bool,
    terminal: Terminal,
    part_bytes: int = PART_BYTES,
) -> dict[str, Any]:
    """Build or update the table in `out` and return a document about it. An early end leaves `out` as it was.

    Args:
        by, time: columns of the events: key and time.
        fields: the columns beside them; None takes all.
        buckets: files of the table; None has 1, or as many as the table that is updated.
        part_bytes: decoded bytes of the events that are sorted at once.

    Raises UsageError if events, folder and options do not fit together, CommandFailed if another run writes the
    table, CorruptFileError if a file is damaged, OSError or pa.ArrowException if files cannot be read or written.
    """
    started = clock.perf_counter()
    new = checked_events(files, out, by=by, time=time, fields=fields)
    with replacing(out) as (folder, folder_of_parts):
        if update:
            table, there = open_table(out)
            if buckets not in (None, there):
                raise UsageError(
                    f"--buckets {buckets}: the table in {out} has {there}. Leave the option out, or build a new table "
                    "from all events"
                )
            refuse_other_columns(new.flat, table.flat, folder=out, every_column=fields is None)
            new = replace(new, flat=table.flat)
            sources, count = [table, new], there
        else:
            refuse_occupied(out)
            sources, count = [new], buckets or 1
        refuse_nulls(new)
        statistics, size = build(sources, count, folder, folder_of_parts, terminal, part_bytes)
    return {
        **header("histories"),
        "out": str(out),
        "by": by,
        "time_column": time,
        "fields": new.flat.names[2:],
        "new_events": new.events if update else None,
        **statistics.document(),
        "files": file_names(count),
        "bytes": size,
        "seconds": clock.perf_counter() - started,
    }


def build(
    sources: Sequence[Source], buckets: int, folder: Path, folder_of_parts: Path, terminal: Terminal, part_bytes: int
) -> tuple["Statistics", int]:
    """Write the table of all events into `folder`. Returns its statistics, and the bytes of its files.

    sources: with the same columns. Events of one key with equal times come in the order of the sources.
    """
    flat = sources[0].flat
    events = sum(source.events for source in sources)
    wanted = parts_wanted(events, max(source.event_bytes() for source in sources), part_bytes)
    parts = plan_parts(wanted, buckets, sampled_keys(sources) if wanted > buckets else np.empty(0, np.int64))
    with terminal.progress("splitting", rows=events) as progress:
        paths = split(sources, parts, folder_of_parts, progress)
    statistics = Statistics(flat.field(1).type)
    schema = table_schema(flat, buckets)

    def groups(progress: Progress) -> Iterator[tuple[int, pa.Table]]:
        for path in paths:
            columns, starts = sorted_part(path, buckets)
            statistics.add(raw_numbers(columns[1]), starts)
            yield from row_groups(columns, starts, buckets, schema)
            progress.advance(rows=int(starts[-1]))

    with terminal.progress("building", rows=events) as progress:
        return statistics, write_table(folder, schema, buckets, groups(progress))


def buckets_of(keys: np.ndarray, buckets: int) -> np.ndarray:
    """uint32[N], the bucket of every key, from 0 to `buckets` - 1. Keys are integers of any width."""
    wide = keys if keys.dtype.kind == "u" else keys.astype(np.int64, copy=False)
    mixed = wide.astype(np.uint64) * _MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _MULTIPLIER
    return ((mixed >> _HALF) % np.uint64(buckets)).astype(np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which part an event belongs to.

    Attributes:
        buckets: of the table.
        groups: consecutive buckets are joined to so many groups; at most `buckets`.
        bounds: ascending keys [R - 1]. A group has R parts: range r of its keys begins with bounds[r - 1]. Empty
            if `groups` is less than `buckets`.
    """

    buckets: int
    groups: int
    bounds: np.ndarray

    @property
    def count(self) -> int:
        return self.groups * (len(self.bounds) + 1)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """uint16[N], the part of every key."""
        part = np.zeros(len(keys), np.uint16)
        if self.groups > 1:
            bucket = buckets_of(keys, self.buckets)
            part += (bucket.astype(np.uint64) * np.uint64(self.groups) // np.uint64(self.buckets)).astype(np.uint16)
        if len(self.bounds):
            part *= np.uint16(len(self.bounds) + 1)
            part += np.searchsorted(self.bounds, keys, side="right").astype(np.uint16)
        return part


def parts_wanted(events: int, event_bytes: float, part_bytes: int) -> int:
    """How many parts so many events make."""
    return min(max(-(-int(events * event_bytes) // part_bytes), 1), MOST_PARTS)


def plan_parts(wanted: int, buckets: int, sample: np.ndarray) -> Parts:
    """The parts of a table; fewer than wanted if there are few keys.

    sample: the keys of some events, drawn evenly. Needed only if more parts are wanted than there are buckets.
    """
    ranges = -(-wanted // buckets)
    ordered = np.sort(sample)
    places = np.arange(1, ranges) * len(ordered) // ranges
    bounds = np.unique(ordered[places]) if len(ordered) else ordered[:0]
    return Parts(buckets=buckets, groups=min(buckets, wanted), bounds=bounds)


def sampled_keys(sources: Sequence[Source]) -> np.ndarray:
    """Keys of about 2^18 events, each event drawn with the same chance. Reads keys and times of all events."""
    chance = _SAMPLES / max(sum(source.events for source in sources), 1)
    rng = np.random.default_rng(0)
    found = []
    for source in sources:
        for batch in source.batches(source.flat.names[:2]):
            keys = raw_numbers(batch.column(0))
            found.append(keys[rng.random(len(keys)) < chance])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def split(sources: Sequence[Source], parts: Parts, folder: Path, progress: Progress) -> list[Path]:
    """Write the events of every part into a file below `folder`, in which they keep their order, source after source.

    The files hold Arrow's stream format without compression: as many bytes as the decoded events.
    """
    flat = sources[0].flat
    paths = [folder / f"part-{part:05d}.arrows" for part in range(parts.count)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(path), flat)) for path in paths]
        for events in _joined(sources):
            part = parts.of(raw_numbers(events.column(0)))
            events = events.take(pa.array(np.argsort(part, kind="stable")))
            ends = np.cumsum(np.bincount(part, minlength=parts.count)).tolist()
            for writer, start, end in zip(writers, [0, *ends], ends, strict=False):
                if end > start:
                    writer.write_batch(events.slice(start, end - start))
            progress.advance(rows=events.num_rows)
    return paths


def _joined(sources: Sequence[Source]) -> Iterator[pa.RecordBatch]:
    """All events, `_SPLIT_ROWS` or more at a time."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for source in sources:
        for batch in source.batches(source.flat.names):
            held.append(batch)
            rows += batch.num_rows
            if rows >= _SPLIT_ROWS:
                yield pa.concat_batches(held)
                held, rows = [], 0
    if held:
        yield pa.concat_batches(held)


def sorted_part(path: Path, buckets: int) -> tuple[list[pa.Array], np.ndarray]:
    """Sort the N events of a part by (bucket, key, time). Equal ones keep their order. Deletes the file.

    Returns (the columns, one array of N each; int64[U + 1]: the first event of every history, and N).
    """
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        events = reader.read_all()
    path.unlink()
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


def _in_one_piece(events: pa.Table, place: int) -> pa.Array:
    column = events.column(place).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        raise CommandFailed(
            f"column {events.schema.names[place]}: the texts of one key, or of a few, have more than 2 GiB, which is "
            "more than one array of them can hold. Leave the key or the column out"
        )
    return column


def row_groups(
    columns: Sequence[pa.Array], starts: np.ndarray, buckets: int, schema: pa.Schema
) -> Iterator[tuple[int, pa.Table]]:
    """(bucket, rows of one row group of its file), in order, of what `sorted_part` gives.

    A row group has one bucket. It ends before it has more than _GROUP_EVENTS events or _GROUP_USERS histories, unless
    one history alone is longer.
    """
    keys = columns[0].take(pa.array(starts[:-1]))
    of = buckets_of(raw_numbers(keys), buckets)
    ends = np.append(np.flatnonzero(np.diff(of)) + 1, len(keys))
    first = 0
    for end in ends.tolist():
        while first < end:
            full = int(np.searchsorted(starts, starts[first] + _GROUP_EVENTS, side="right")) - 1
            last = min(max(full, first + 1), first + _GROUP_USERS, end)
            begin, count = int(starts[first]), int(starts[last] - starts[first])
            offsets = pa.array((starts[first : last + 1] - begin).astype(np.int32))
            lists = [
                pa.ListArray.from_arrays(offsets, column.slice(begin, count), type=field.type)
                for field, column in zip(list(schema)[1:], columns[1:], strict=True)
            ]
            yield int(of[first]), pa.Table.from_arrays([keys[first:last], *lists], schema=schema)
            first = last


class Statistics:
    """Counts what is in a table, part by part. Events later than the time of its construction lie in the future.

    kind: the type of the times.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = str(kind)
        self._now_s = clock.time()
        unit = getattr(kind, "unit", None) or {pa.date32(): "days", pa.date64(): "ms"}.get(kind)
        self._units = [unit] if unit else ["s", "ms", "us", "ns"]
        self._lengths: list[LengthHistogram] = []
        self._ends: list[int] = []  # the first and the last time of every part
        self._ties = 0
        self._fits: Counter[str] = Counter()
        self._later: Counter[str] = Counter()

    def add(self, times: np.ndarray, starts: np.ndarray) -> None:
        """Count the events of one part.

        times: of its N events, history after history, as they are stored. starts: int64[U + 1], the first event of
        every history, and N.
        """
        self._lengths.append(LengthHistogram.from_lengths(np.diff(starts)))
        if len(times) == 0:
            return
        first, last = int(times.min()), int(times.max())
        self._ends += [first, last]
        same = times[1:] == times[:-1]
        same[starts[1:-1] - 1] = False  # the last event of a history, against the first of the next
        self._ties += int(np.count_nonzero(same))
        for unit in self._units:
            start, stop, now = (int(limit * _TICKS[unit]) for limit in (_EPOCH_FROM, _EPOCH_TO, self._now_s))
            if last >= start and first < stop:  # else the times need not be looked at
                self._fits[unit] += int(np.count_nonzero((times >= start) & (times < stop)))
            if last > now:
                self._later[unit] += int(np.count_nonzero(times > now))

    def document(self) -> dict[str, Any]:
        """What was counted.

        Keys:
            lengths: `mean`, `p50`, `p99`, `max`.
            time: `first`, `last` as stored, and as ISO texts in UTC if a `unit` is known.
            ties: events whose time is that of the event before them in their history.
            future: events later than now; None if the unit of the time is not known.
        """
        lengths = LengthHistogram.merged(self._lengths)
        # Of integers the unit in which most times are an epoch of our days.
        unit = max(self._units, key=lambda one: self._fits[one])
        known = len(self._units) == 1 or self._fits[unit] > lengths.events / 2
        first, last = min(self._ends, default=None), max(self._ends, default=None)
        return {
            "events": lengths.events,
            "users": lengths.rows,
            "lengths": {
                "mean": lengths.mean,
                "p50": lengths.quantile(0.5),
                "p99": lengths.quantile(0.99),
                "max": lengths.longest,
            },
            "time": {
                "type": self._kind,
                "unit": unit if known else None,
                "first": first,
                "last": last,
                "first_utc": _iso(first, unit) if known else None,
                "last_utc": _iso(last, unit) if known else None,
            },
            "ties": {"events": self._ties, "share": self._ties / max(lengths.events, 1)},
            "future": self._later[unit] if known else None,
        }


def _iso(value: int | None, unit: str) -> str | None:
    if value is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(value / _TICKS[unit], datetime.UTC)
    except (ValueError, OverflowError, OSError):  # before the year 1 or after 9999
        return None
    return at.isoformat(timespec="seconds")
