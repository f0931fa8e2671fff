"""How an operation is cut into pieces, and in which order pieces go down, over the wire, and up again.

While one piece comes down from the device, the one before it is on the wire and the one before that goes up: three
engines are busy at once, and a stream of pieces takes as long as the slowest of the three needs (paper, section 3).
Everything here is arithmetic; `stages` waits and copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Stage = Literal["down", "exchange", "up"]


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
    """The order of steps over a stream of pieces, which are numbered from 0 across operations.

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
