"""Parts of a table that fit into memory one at a time: planned, and split into a file each.

The table is in order of (bucket, key). A part is a consecutive piece of it: whole buckets, or a range of the keys of
one bucket. Parts can therefore be made one after the other and appended. All events of a key are in one part, so a
part can be larger than planned only by its longest histories.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from freescale_tools.write.histories.events import Source, raw_numbers

PART_BYTES = 64 << 20
"""Decoded bytes of the events of a part. Making one takes about six times as much memory."""

MOST_PARTS = 400
"""More events than fit into so many parts make larger parts: every part is an open file while events are split."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_ROWS = 1 << 18
"""Events that are split at once: every part gets a slice of them, and a small slice is mostly overhead."""

_SAMPLES = 1 << 18


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
    def ranges(self) -> int:
        return len(self.bounds) + 1

    @property
    def count(self) -> int:
        return self.groups * self.ranges

    def of(self, keys: np.ndarray) -> np.ndarray:
        """uint16[N], the part of every key."""
        part = np.zeros(len(keys), np.uint16)
        if self.groups > 1:
            bucket = buckets_of(keys, self.buckets)
            part += (bucket.astype(np.uint64) * np.uint64(self.groups) // np.uint64(self.buckets)).astype(np.uint16)
        if self.ranges > 1:
            part = part * np.uint16(self.ranges) + np.searchsorted(self.bounds, keys, side="right").astype(np.uint16)
        return part


def parts_wanted(events: int, event_bytes: float, part_bytes: int = PART_BYTES) -> int:
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
        for batch in source.batches(source.layout.flat.names[:2]):
            keys = raw_numbers(batch.column(0))
            found.append(keys[rng.random(len(keys)) < chance])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def split(sources: Sequence[Source], parts: Parts, folder: Path, advance: Callable[[int], None]) -> list[Path]:
    """Write the events of every part into a file below `folder`, in which they keep their order, source after source.

    The files hold Arrow's stream format without compression: as many bytes as the decoded events. `advance` is told
    how many rows are done.
    """
    flat = sources[0].layout.flat
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
            advance(events.num_rows)
    return paths


def take(path: Path) -> pa.Table:
    """The events of a part, in the order in which they came. Deletes the file."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        events = reader.read_all()
    path.unlink()
    return events


def _joined(sources: Sequence[Source]) -> Iterator[pa.RecordBatch]:
    """All events, `_ROWS` or more at a time."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for source in sources:
        for batch in source.batches(source.layout.flat.names):
            held.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS:
                yield pa.concat_batches(held)
                held, rows = [], 0
    if held:
        yield pa.concat_batches(held)
