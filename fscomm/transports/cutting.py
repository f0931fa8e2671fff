"""How an operation is cut into what fits, and in which order that travels. Integers only.

What a rank sends to a rank goes in chunks of one size, which all pairs of ranks share: through the slots of a ring one
by one (`copy-engine`); chunk k of all pairs at once as piece k (`host-staged`); all of it as chunk 0 of a slot that is
as large as the largest (`nccl-ce`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

Span = tuple[int, int]
"""The first byte, and the one after the last."""


def chunks(nbytes: int, slot_bytes: int) -> list[Span]:
    """As few as there can be, and none of no bytes."""
    return [(start, min(start + slot_bytes, nbytes)) for start in range(0, nbytes, slot_bytes)]


def piece_of(sizes: Sequence[int], slot_bytes: int, k: int) -> list[Span]:
    """Chunk `k` of what goes to, or comes from, each rank, in a tensor of `sizes` bytes by rank; maybe empty."""
    spans, start = [], 0
    for nbytes in sizes:
        spans.append((start + min(k * slot_bytes, nbytes), start + min((k + 1) * slot_bytes, nbytes)))
        start += nbytes
    return spans


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same bytes: spans that follow each other as one, and none empty."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        if stop > start:
            found.append((start, stop))
    return found


def even_slot(largest_bytes: int, row_bytes: int, *, most_bytes: int) -> int:
    """The size of chunks, in whole rows: as few of them as `most_bytes` allows, and of the largest pair of ranks all
    as long. A row that is longer is a chunk."""
    rows = -(-largest_bytes // row_bytes)
    pieces = -(-rows // max(most_bytes // row_bytes, 1))
    return row_bytes * -(-rows // pieces)


def grown(slot_bytes: int, largest: int, *, most: int | None = None) -> int:
    """Slots for `largest` bytes: the next power of two, at most `most`, and never smaller than now."""
    wanted = 1 << max(largest - 1, 0).bit_length()
    return max(slot_bytes, wanted if most is None else min(wanted, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChunk:
    """Bytes start to stop of what goes to `peer` (`is_put`) through a ring, or comes from it."""

    peer: int
    is_put: bool
    start: int
    stop: int


def in_order(rank: int, sent: Sequence[int], received: Sequence[int], slot_bytes: int) -> Iterator[RingChunk]:
    """The chunks of a ring in the order in which this rank issues them.

    sent, received: bytes of the piece to and from each rank; a rank's own do not go through the ring.

    In round i every rank sends i ranks ahead. What a rank waits for in a round depends only on what others do in the
    same round or an earlier one, so waits make no cycle.

    Puts and takes alternate. A device accepts about a thousand operations that cannot run yet, and blocks the host
    that issues more: two ranks that first issued all their puts could fill their queues with puts that wait for each
    other's takes, which neither host would ever issue. Here the rank whose host is least far never waits for an
    operation that was not issued.
    """
    for i in range(1, len(sent)):
        to, source = (rank + i) % len(sent), (rank - i) % len(sent)
        puts = (RingChunk(peer=to, is_put=True, start=a, stop=b) for a, b in chunks(sent[to], slot_bytes))
        takes = (RingChunk(peer=source, is_put=False, start=a, stop=b) for a, b in chunks(received[source], slot_bytes))
        for pair in zip_longest(puts, takes):
            yield from (chunk for chunk in pair if chunk is not None)


def room_for(number: int, slots: int) -> int:
    """How many slots the peer must have emptied before chunk `number` (the first is 0) is put into its slot."""
    return max(number + 1 - slots, 0)
