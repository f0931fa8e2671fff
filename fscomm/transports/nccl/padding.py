"""Uneven pieces in slots of one size: integers only."""

from collections.abc import Sequence
from dataclasses import dataclass

_SMALLEST = 4096  # bytes; registering memory costs the same for a page as for a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes start to stop of a tensor, which lie at the start of the slot of `peer`."""

    peer: int
    start: int
    stop: int


def slot_bytes(now: int, largest: int) -> int:
    """Slots for pieces of `largest` bytes: a power of two, and never smaller than now."""
    return max(now, _SMALLEST, 1 << max(largest - 1, 0).bit_length())


def pieces(splits: Sequence[int], row_bytes: int) -> list[Piece]:
    """What is not empty, in the order of the ranks."""
    found, start = [], 0
    for peer, rows in enumerate(splits):
        stop = start + rows * row_bytes
        if stop > start:
            found.append(Piece(peer=peer, start=start, stop=stop))
        start = stop
    return found
