"""`fsdata.order.deal` in plain Python, row by row.

A span is (what is read, first row, stop). Of a unit it is a piece; of a tuple of pieces, whose rows are shuffled
together, it is a window. A stream is a list of windows.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from fsdata.order.deal import permutation, quotas

Span = tuple[Any, int, int]


def deal(spans: Iterable[Span], world_size: int) -> list[list[Span]]:
    """Spans go to the rank with the fewest rows; what is above a quota then goes to the ranks below theirs, in order.
    Spans without rows are left out."""
    spans = list(spans)
    hands: list[list[tuple[int, int]]] = [[] for _ in range(world_size)]  # (number of the span, row)
    for number, (_, start, stop) in enumerate(spans):
        min(hands, key=len).extend((number, row) for row in range(start, stop))
    quota = quotas(sum(map(len, hands)), world_size).tolist()
    surplus = [row for hand, count in zip(hands, quota, strict=True) for row in hand[count:]]
    for hand, count in zip(hands, quota, strict=True):
        missing = count - len(hand)
        if missing > 0:
            hand += surplus[:missing]
            del surplus[:missing]
        del hand[count:]
    return [[_span(spans, list(rows)) for _, rows in groupby(hand, key=lambda row: row[0])] for hand in hands]


def _span(spans: list[Span], rows: list[tuple[int, int]]) -> Span:
    return spans[rows[0][0]][0], rows[0][1], rows[-1][1] + 1


def epoch_streams(
    unit_rows: list[int], *, world_size: int, shuffle: bool, shuffle_window: int, seed: int, epoch: int
) -> list[list[Span]]:
    order = permutation(len(unit_rows), seed, epoch, 0).tolist() if shuffle else range(len(unit_rows))
    hands = deal(((unit, 0, unit_rows[unit]) for unit in order), world_size)
    size = shuffle_window if shuffle else 1
    groups = [[tuple(pieces[at : at + size]) for at in range(0, len(pieces), size)] for pieces in hands]
    return [[(of, 0, sum(stop - start for _, start, stop in of)) for of in hand] for hand in groups]


def rest(stream: list[Span], position: int) -> list[Span]:
    """The stream after its first `position` rows."""
    left = []
    for pieces, start, stop in stream:
        passed = min(position, stop - start)
        position -= passed
        if start + passed < stop:
            left.append((pieces, start + passed, stop))
    return left


def deal_again(streams: list[list[Span]], positions: list[int], world_size: int) -> list[list[Span]]:
    """Deal what is left of an epoch to another number of ranks: the next window of each stream in turn."""
    left = [rest(stream, position) for stream, position in zip(streams, positions, strict=True)]
    depth = max(map(len, left))
    return deal([stream[k] for k in range(depth) for stream in left if k < len(stream)], world_size)
