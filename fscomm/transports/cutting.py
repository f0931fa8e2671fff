"""How an operation is cut into chunks that fit, and the order in which a ring sends them. Integers only.

What one rank sends to another is cut into chunks of one size, the same for all pairs of ranks. `copy-engine` sends
them one by one through the slots of a ring; `host-staged` sends chunk k of all pairs at once, as piece k; `nccl-ce` has
slots of the size of the largest, so all of it is chunk 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

Span = tuple[int, int]
"""The first byte, and the one after the last."""


def chunks(nbytes: int, slot_bytes: int) -> list[Span]:
    """Spans of at most `slot_bytes`, as few as possible, none of them empty."""
    return [(start, min(start + slot_bytes, nbytes)) for start in range(0, nbytes, slot_bytes)]


def piece_of(sizes: Sequence[int], slot_bytes: int, k: int) -> list[Span]:
    """By rank, chunk `k` of its bytes in a tensor that has `sizes` bytes of each rank; empty where it has no more."""
    spans, start = [], 0
    for nbytes in sizes:
        spans.append((start + min(k * slot_bytes, nbytes), start + min((k + 1) * slot_bytes, nbytes)))
        start += nbytes
    return spans


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same bytes, with adjacent spans merged and empty ones dropped."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        if stop > start:
            found.append((start, stop))
    return found


def even_slot(largest_bytes: int, row_bytes: int, *, most_bytes: int) -> int:
    """The size of chunks, in whole rows: as few chunks as `most_bytes` allows, of equal length for the pair of ranks
    that sends `largest_bytes`. A row longer than `most_bytes` is one chunk."""
    rows = -(-largest_bytes // row_bytes)
    pieces = -(-rows // max(most_bytes // row_bytes, 1))
    return row_bytes * -(-rows // pieces)


def grown(slot_bytes: int, largest: int, *, most: int | None = None) -> int:
    """The size of slots for `largest` bytes: the next power of two, at most `most`, never smaller than `slot_bytes`."""
    wanted = 1 << max(largest - 1, 0).bit_length()
    return max(slot_bytes, wanted if most is None else min(wanted, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChunk:
    """Bytes start to stop of what is sent to `peer` through a ring (`is_put`), or received from it."""

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
    """The number of slots that the peer must have emptied before chunk `number` (from 0) is put into its slot."""
    return max(number + 1 - slots, 0)
