"""Deals the rows of an epoch to ranks, each in its order: a pure function of (units, seed, epoch, ranks).

A *unit* is decoded by one thread at once; normally it is a row group. An epoch is dealt in three moves:

1. The units are ordered: as in the files, or permuted by (seed, epoch).
2. They are dealt: the next unit goes to the rank with the fewest rows so far (with equal units: unit u to rank
   u mod W), so that at every step all ranks read from about the same part of the data. At the end, ranks with more
   rows than their quota pass the surplus to the others. The quota is N // W rows, and one more on the first N % W
   ranks.
3. The pieces of a rank are grouped into windows; with shuffling the rows of a window are permuted.

Every rank can compute every stream, so one position (rows passed) per rank is the whole state of an epoch, and the
remaining rows can be dealt again to another number of ranks.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fsdata.kernels.deal import to_fewest
from fsdata.order.stream import Stream, Window, grouped, in_turn, one_after_another

# Spans from which the kernel is used: below, the Python heap is fast enough, and a new machine need not compile.
COMPILED_FROM = 20_000


class RankShare(NamedTuple):
    """The rows of one rank: rows [start, stop) of spans, in order. int64[n] each."""

    span: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def permutation(count: int, *key: int) -> np.ndarray:
    """int64 [count], a permutation that depends only on the key, not on the platform or a library's version.

    Saved states rely on that. Raw Philox output is fixed by its definition (numpy may change `Generator.permutation`),
    and a stable sort orders equal numbers the same way everywhere.
    """
    generator = np.random.Philox(key=np.random.SeedSequence(key).generate_state(2, np.uint64))
    keys = generator.random_raw(count)
    # Two stable sorts take a third of the time of one: numpy sorts 16-bit keys by radix (here the top 16 bits), and
    # then needs few comparisons, as the full keys are nearly in order.
    order = np.argsort((keys >> np.uint64(48)).astype(np.uint16), kind="stable")
    return order[np.argsort(keys[order], kind="stable")]


def window_order(window: Window, *, seed: int, epoch: int) -> np.ndarray:
    """int64 [rows of all pieces]: the order in which a shuffled window yields its rows."""
    # The key is the window's first row, not its number: dealing the rest again renumbers windows, but not their rows.
    first = window.pieces[0]
    return permutation(sum(piece.rows for piece in window.pieces), seed, epoch, 1, first.unit, first.start)


def quotas(rows: int, world_size: int) -> np.ndarray:
    """int64 [W]: rows of each rank; they differ by at most one."""
    return rows // world_size + (np.arange(world_size) < rows % world_size)


def deal(rows: np.ndarray, world_size: int) -> list[RankShare]:
    """Deal spans to ranks in order, and even out the rows at the end. rows: int64[N] of each span.

    Spans without rows are dropped.
    """
    spans = np.flatnonzero(rows)
    owner, rank_rows = np.empty(len(spans), np.uint16), np.zeros(world_size, np.int64)
    (to_fewest if len(spans) >= COMPILED_FROM else _to_fewest)(rows[spans], world_size, owner, rank_rows)
    by_rank = spans[np.argsort(owner, kind="stable")]  # stable: the spans of a rank stay in order
    rank_spans = np.split(by_rank, np.cumsum(np.bincount(owner, minlength=world_size))[:-1])
    missing = quotas(int(rank_rows.sum()), world_size) - rank_rows  # negative on ranks above their quota
    shares, surplus = [], []
    for own, excess in zip(rank_spans, -missing, strict=True):
        share, cut = _cut(own, rows[own], int(excess))
        shares.append(share)
        surplus += cut
    received = _hand_over(np.maximum(missing, 0), surplus)
    return [_with(share, more) for share, more in zip(shares, received, strict=True)]


def _to_fewest(rows: np.ndarray, world_size: int, owner: np.ndarray, rank_rows: np.ndarray) -> None:
    """`to_fewest` in Python. The heap is ordered by (rows, rank), so ties go to the lowest rank, as in the kernel."""
    fewest = [(0, rank) for rank in range(world_size)]
    for span, count in enumerate(rows.tolist()):
        so_far, owner[span] = fewest[0]
        heapq.heapreplace(fewest, (so_far + count, fewest[0][1]))
    for so_far, rank in fewest:
        rank_rows[rank] = so_far


def _cut(spans: np.ndarray, rows: np.ndarray, excess: int) -> tuple[RankShare, list[tuple[int, int, int]]]:
    """Cuts the last `excess` rows off the spans of a rank: its share, and the cut rows as (span, start, stop)."""
    stop, whole = rows.copy(), len(spans)
    cut = []
    while excess > 0:
        last = whole - 1
        taken = min(excess, int(rows[last]))
        stop[last] -= taken
        cut.append((int(spans[last]), int(stop[last]), int(rows[last])))
        excess -= taken
        whole -= stop[last] == 0  # a span of which a part stays is not dropped
    return RankShare(spans[:whole], np.zeros(whole, np.int64), stop[:whole]), cut[::-1]


def _hand_over(missing: np.ndarray, surplus: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """[W] the parts (span, start, stop) of the surplus that each rank receives, `missing` rows of it."""
    received: list[list[tuple[int, int, int]]] = [[] for _ in missing]
    lacking, rank = missing.tolist(), 0
    for span, begin, stop in surplus:
        start = begin
        while start < stop:
            while lacking[rank] == 0:  # ends: the surplus has as many rows as all ranks lack
                rank += 1
            taken = min(lacking[rank], stop - start)
            received[rank].append((span, start, start + taken))
            lacking[rank] -= taken
            start += taken
    return received


def _with(share: RankShare, more: list[tuple[int, int, int]]) -> RankShare:
    if not more:
        return share
    return RankShare(*(np.concatenate(both) for both in zip(share, np.array(more, np.int64).T, strict=True)))


def epoch_streams(
    unit_rows: Sequence[int] | np.ndarray,
    *,
    world_size: int,
    shuffle: bool,
    shuffle_window: int | float,
    seed: int,
    epoch: int,
    first_unit: int = 0,
) -> list[Stream]:
    """The streams of all ranks in one epoch. Units are numbered from `first_unit`.

    shuffle_window: an int, the units that are shuffled together; or a float, a share of the epoch.
    """
    rows = np.asarray(unit_rows, np.int64)
    # A share of the epoch means "shuffle, but keep the data roughly in its (time) order": only rows are permuted.
    in_order = not shuffle or isinstance(shuffle_window, float)
    order = np.arange(len(rows)) if in_order else permutation(len(rows), seed, epoch, 0)
    size = window_units(shuffle_window, -(-len(rows) // world_size)) if shuffle else 1
    return [
        grouped(first_unit + order[share.span], share.start, share.stop, size)
        for share in deal(rows[order], world_size)
    ]


def dealt_after(
    rest: Stream, unit_rows: np.ndarray, order: np.ndarray, *, first_unit: int, size: int, world_size: int
) -> list[Stream]:
    """The streams of all ranks over the windows of `rest`, then over further units in `order`.

    unit_rows: int64 [U], of the units from `first_unit` on. size: units of a window.
    """
    left = len(rest)
    # The spans that are dealt: the windows of `rest`, then the units.
    rows = np.concatenate([rest.last - rest.first, unit_rows[order]])
    streams = []
    for share in deal(rows, world_size):
        is_rest = share.span < left
        span, start, stop = (column[~is_rest] for column in share)
        new = grouped(first_unit + order[span - left], start, stop, size)
        streams.append(one_after_another([rest.of(*(column[is_rest] for column in share)), new]))
    return streams


def window_units(shuffle_window: int | float, units: int) -> int:
    """How many units of a rank are shuffled together, of the `units` that it has."""
    if not isinstance(shuffle_window, float):
        return shuffle_window
    return max(round(shuffle_window * units), 1)


def deal_again(streams: Sequence[Stream], positions: Sequence[int], world_size: int) -> list[Stream]:
    """Deal the remaining rows of an epoch to another number of ranks; each row goes to exactly one of them."""
    # Interleaved: the old ranks read side by side, so the rest continues at about the same part of the data.
    rest = in_turn([stream.after(position) for stream, position in zip(streams, positions, strict=True)])
    return [rest.of(*share) for share in deal(rest.last - rest.first, world_size)]
