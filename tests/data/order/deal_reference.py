"""`fsdata.order.deal` as it was before it worked on arrays: an object for every piece, one move at a time."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from fsdata.order.deal import permutation, quotas
from fsdata.order.stream import Piece, Window

Span = TypeVar("Span", Piece, Window)


def cut(span: Span, rows: int) -> tuple[Span, Span]:
    middle = span.start + rows
    return replace(span, stop=middle), replace(span, start=middle)


Stream = tuple[Window, ...]


def deal(spans: Iterable[Span], world_size: int) -> list[list[Span]]:
    """Deal spans to ranks in order and even out the rows at the end; spans without rows are left out."""
    hands: list[list[Span]] = [[] for _ in range(world_size)]
    fewest = [(0, rank) for rank in range(world_size)]
    total = 0
    for span in spans:
        if span.rows == 0:
            continue
        rows, rank = heapq.heappop(fewest)
        hands[rank].append(span)
        heapq.heappush(fewest, (rows + span.rows, rank))
        total += span.rows
    held = {rank: rows for rows, rank in fewest}
    missing = [int(quota) - held[rank] for rank, quota in enumerate(quotas(total, world_size))]
    _hand_over(hands, missing, _cut_surplus(hands, missing))
    return hands


def _cut_surplus(hands: list[list[Span]], missing: list[int]) -> list[Span]:
    """Take from the end of every hand what is over its quota."""
    surplus: list[Span] = []
    for rank, hand in enumerate(hands):
        taken: list[Span] = []
        while missing[rank] < 0:
            span = hand.pop()
            over = min(-missing[rank], span.rows)
            if over < span.rows:
                kept, span = cut(span, span.rows - over)
                hand.append(kept)
            taken.append(span)
            missing[rank] += over
        surplus += reversed(taken)
    return surplus


def _hand_over(hands: list[list[Span]], missing: list[int], surplus: list[Span]) -> None:
    """Give the surplus to the hands that are short."""
    rank = 0
    for given in surplus:
        span = given
        while span.rows:
            while missing[rank] == 0:
                rank += 1
            rows = min(missing[rank], span.rows)
            part, span = cut(span, rows)
            hands[rank].append(part)
            missing[rank] -= rows


def epoch_streams(
    unit_rows: Sequence[int], *, world_size: int, shuffle: bool, shuffle_window: int, seed: int, epoch: int
) -> list[Stream]:
    """Every rank's stream of one epoch."""
    order: Iterable[int] = range(len(unit_rows))
    if shuffle:
        order = permutation(len(unit_rows), seed, epoch, 0).tolist()
    hands = deal((Piece(unit, 0, unit_rows[unit]) for unit in order), world_size)
    return [_windows(hand, shuffle_window if shuffle else 1) for hand in hands]


def _windows(pieces: list[Piece], size: int) -> Stream:
    groups = [tuple(pieces[at : at + size]) for at in range(0, len(pieces), size)]
    return tuple(Window(group, 0, sum(piece.rows for piece in group)) for group in groups)


def rest(stream: Stream, position: int) -> Stream:
    """The stream after its first `position` rows."""
    windows = []
    for window in stream:
        passed = min(position, window.rows)
        position -= passed
        if passed < window.rows:
            windows.append(cut(window, passed)[1])
    return tuple(windows)


def deal_again(streams: Sequence[Stream], positions: Sequence[int], world_size: int) -> list[Stream]:
    """Deal what is left of an epoch to another number of ranks; every remaining row goes to exactly one of them."""
    left = [rest(stream, position) for stream, position in zip(streams, positions, strict=True)]
    depth = max(len(stream) for stream in left)
    in_turn = (stream[k] for k in range(depth) for stream in left if k < len(stream))
    return [tuple(hand) for hand in deal(in_turn, world_size)]
