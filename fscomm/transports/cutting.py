"""How an operation is cut into what fits, and in which order that travels. Integers only.

Chunks through the slots of a ring (`copy-engine`); parts in slots of one size (`nccl-ce`); pieces on their way through
host memory (`host-staged`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

Stage = Literal["down", "exchange", "up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes start to stop of what goes to `peer` (`is_put`) through a ring, or comes from it."""

    peer: int
    is_put: bool
    start: int
    stop: int


def chunks(nbytes: int, slot_bytes: int) -> list[tuple[int, int]]:
    """Start and stop of the chunks of a ring, as few as there can be; none of no bytes."""
    return [(start, min(start + slot_bytes, nbytes)) for start in range(0, nbytes, slot_bytes)]


def rounds(rank: int, world_size: int) -> list[tuple[int, int]]:
    """The peers to send to and to receive from, in a ring.

    In round i everybody sends i ranks ahead. What a rank waits for in a round only depends on what others do in the
    same round or an earlier one, so waits make no cycle.
    """
    return [((rank + i) % world_size, (rank - i) % world_size) for i in range(1, world_size)]


def in_order(rank: int, sent: Sequence[int], received: Sequence[int], slot_bytes: int) -> Iterator[Chunk]:
    """The chunks of a ring in the order in which this rank issues them.

    sent, received: bytes of the piece to and from each rank; a rank's own are no business of the ring.

    Puts and takes alternate. A device accepts about a thousand operations that cannot run yet, and blocks the host
    that issues more: two ranks that first issued all their puts could fill their queues with puts that wait for each
    other's takes, which neither host would ever come to issue. Here the rank whose host has come least far never waits
    for an operation that was not issued.
    """
    for to, source in rounds(rank, len(sent)):
        puts = (Chunk(peer=to, is_put=True, start=a, stop=b) for a, b in chunks(sent[to], slot_bytes))
        takes = (Chunk(peer=source, is_put=False, start=a, stop=b) for a, b in chunks(received[source], slot_bytes))
        for pair in zip_longest(puts, takes):
            yield from (chunk for chunk in pair if chunk is not None)


def room_for(number: int, slots: int) -> int:
    """How many slots the peer must have emptied before chunk `number` (the first is 0) is put into its slot."""
    return max(number + 1 - slots, 0)


def grown(slot_bytes: int, largest: int, *, most: int | None = None) -> int:
    """Slots for `largest` bytes: the next power of two, at most `most`, and never smaller than now."""
    wanted = 1 << max(largest - 1, 0).bit_length()
    return max(slot_bytes, wanted if most is None else min(wanted, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes start to stop of a tensor, which lie at the start of the slot of `peer`."""

    peer: int
    start: int
    stop: int


def parts(splits: Sequence[int], row_bytes: int) -> list[Part]:
    """What is not empty, in the order of the ranks."""
    found, start = [], 0
    for peer, rows in enumerate(splits):
        stop = start + rows * row_bytes
        if stop > start:
            found.append(Part(peer=peer, start=start, stop=stop))
        start = stop
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How many pieces an operation has on every rank, and how many rows of one pair of ranks a piece has at most."""

    pieces: int
    rows: int


def cut(largest_bytes: int, row_bytes: int, *, world_size: int, chunk_bytes: int) -> Cut:
    """Pieces in which a rank sends and receives at most `chunk_bytes`, or one row per pair where that is more.

    `largest_bytes`: what the largest pair of ranks exchanges; every rank gives the same, so all cut alike.
    """
    if not largest_bytes:
        return Cut(pieces=0, rows=0)
    rows = largest_bytes // row_bytes
    fit = max(chunk_bytes // (row_bytes * world_size), 1)
    pieces = _divide_up(rows, fit)
    return Cut(pieces=pieces, rows=_divide_up(rows, pieces))


class PieceSpans(NamedTuple):
    """Rows of one piece.

    sizes: per rank; spans: the same rows as (first, end) in the tensor, adjacent ones joined, none empty.
    """

    sizes: list[int]
    spans: list[tuple[int, int]]


def spans_of(splits: Sequence[int], piece: int, pieces: int) -> PieceSpans:
    """What belongs to `piece`: an equal share of every rank's rows, so that no piece is much larger than another."""
    sizes: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for rows in splits:
        first, end = start + rows * piece // pieces, start + rows * (piece + 1) // pieces
        sizes.append(end - first)
        if end > first:
            if spans and spans[-1][1] == first:
                first = spans.pop()[0]
            spans.append((first, end))
        start += rows
    return PieceSpans(sizes, spans)


class StageStart(NamedTuple):
    """Begin `stage` of `piece` once the stage and piece of `after` are done."""

    stage: Stage
    piece: int
    after: tuple[Stage, int] | None


class Pipeline:
    """The order of steps over a stream of pieces, which are numbered from 0 across operations (paper, section 3).

    While one piece comes down from the device, the one before it is on the wire and the one before that goes up: three
    engines are busy at once, and a stream of pieces takes as long as the slowest of the three needs.

    A piece holds the buffers number `piece % depth` from its way down until its way up is done, so at most `depth`
    pieces do. One exchange is on the wire at a time; the next piece waits on the host when it ends. With depth 3 no
    stage ever waits for anything but the slowest; less overlaps less, more does nothing for pieces of even cost.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        self._fed = self._down = self._exchanged = self._up = 0  # pieces; the last three: of which the stage was begun

    def feed(self, pieces: int) -> range:
        """Append pieces; their numbers."""
        first = self._fed
        self._fed += pieces
        return range(first, self._fed)

    def next(self) -> StageStart | None:
        """What to begin next; None until more is fed. Every step is taken to be begun when the next is asked for."""
        if self._up < self._exchanged:
            self._up += 1
            return StageStart("up", self._up - 1, ("exchange", self._up - 1))
        waiting = self._down - self._exchanged
        if self._down < self._fed and waiting < min(2, self.depth):
            self._down += 1
            held = self._down - 1 - self.depth
            return StageStart("down", self._down - 1, ("up", held) if held >= 0 else None)
        if waiting:
            self._exchanged += 1
            return StageStart("exchange", self._exchanged - 1, ("down", self._exchanged - 1))
        return None


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)
