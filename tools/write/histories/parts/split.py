"""Splits a stream of events into one file per part, in which events keep their order.

The files hold Arrow's stream format without compression: as many bytes as the decoded events, for as long as a
part waits for its turn.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from freescale_tools.write.histories.events.layout import Layout, raw_numbers
from freescale_tools.write.histories.events.sources import Source
from freescale_tools.write.histories.parts.plan import Parts

_ROWS = 1 << 18
"""Events that are split at once: every part gets a slice of them, and a small slice is mostly overhead."""

_SAMPLES = 1 << 18


def sampled_keys(sources: Sequence[Source], layout: Layout) -> np.ndarray:
    """Keys of about 2^18 events, each event drawn with the same chance. Reads the key column of all events."""
    chance = _SAMPLES / max(sum(source.events for source in sources), 1)
    rng = np.random.default_rng(0)
    found = []
    for source in sources:
        for batch in source.batches([layout.by]):
            keys = raw_numbers(batch.column(0))
            found.append(keys[rng.random(len(keys)) < chance])
    return np.concatenate(found) if found else np.empty(0, np.int64)


class PartFiles:
    """The events of every part in a file of its own, below `folder`."""

    def __init__(self, folder: Path, parts: int) -> None:
        self._paths = [folder / f"part-{part:05d}.arrows" for part in range(parts)]

    def fill(self, sources: Sequence[Source], layout: Layout, parts: Parts, advance: Callable[[int], None]) -> None:
        """Write the events of all sources, source after source. `advance` is told how many rows are done."""
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(path), layout.flat)) for path in self._paths]
            for events in _joined(sources, layout):
                part = parts.of(raw_numbers(events.column(0)))
                events = events.take(pa.array(np.argsort(part, kind="stable")))
                ends = np.cumsum(np.bincount(part, minlength=parts.count)).tolist()
                for writer, start, end in zip(writers, [0, *ends], ends, strict=False):
                    if end > start:
                        writer.write_batch(events.slice(start, end - start))
                advance(events.num_rows)

    def take(self, part: int) -> pa.Table:
        """The events of a part, in the order in which they came. Deletes the file."""
        path = self._paths[part]
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            events = reader.read_all()
        path.unlink()
        return events


def _joined(sources: Sequence[Source], layout: Layout) -> Iterator[pa.RecordBatch]:
    """All events, `_ROWS` or more at a time."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for source in sources:
        for batch in source.batches(layout.flat.names):
            held.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS:
                yield pa.concat_batches(held)
                held, rows = [], 0
    if held:
        yield pa.concat_batches(held)
