"""Which bytes go through which slot of a ring, and in which order: integers only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes start to stop of the piece that goes to `peer` (`is_put`) or comes from it."""

    peer: int
    is_put: bool
    start: int
    stop: int


def cut(nbytes: int, slot_bytes: int) -> list[tuple[int, int]]:
    """Start and stop of the chunks, as few as there can be; none of no bytes."""
    return [(start, min(start + slot_bytes, nbytes)) for start in range(0, nbytes, slot_bytes)]


def rounds(rank: int, world_size: int) -> list[tuple[int, int]]:
    """The peers to send to and to receive from.

    In round i everybody sends i ranks ahead. What a rank waits for in a round only depends on what others do in the
    same round or an earlier one, so waits make no cycle.
    """
    return [((rank + i) % world_size, (rank - i) % world_size) for i in range(1, world_size)]


def plan(rank: int, sent: Sequence[int], received: Sequence[int], slot_bytes: int) -> Iterator[Chunk]:
    """The chunks in the order in which this rank issues them.

    sent, received: bytes of the piece to and from each rank; a rank's own are no business of the ring.

    Puts and takes alternate. A device accepts about a thousand operations that cannot run yet, and blocks the host
    that issues more: two ranks that first issued all their puts could fill their queues with puts that wait for each
    other's takes, which neither host would ever come to issue. Here the rank whose host has come least far never waits
    for an operation that was not issued.
    """
    for to, source in rounds(rank, len(sent)):
        puts = (Chunk(peer=to, is_put=True, start=a, stop=b) for a, b in cut(sent[to], slot_bytes))
        takes = (Chunk(peer=source, is_put=False, start=a, stop=b) for a, b in cut(received[source], slot_bytes))
        for pair in zip_longest(puts, takes):
            yield from (chunk for chunk in pair if chunk is not None)


def room_for(number: int, slots: int) -> int:
    """How many slots the peer must have emptied before chunk `number` (the first is 0) is put into its slot."""
    return max(number + 1 - slots, 0)


def grown(slot_bytes: int, largest: int, most: int) -> int:
    """Slots for pieces of `largest` bytes: the next power of two, at most `most`, and never smaller than now."""
    return max(slot_bytes, min(1 << max(largest - 1, 0).bit_length(), most))
