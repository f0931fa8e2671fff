"""Which rank reads which rows of an epoch, in which order: a pure function of (units, seed, epoch, ranks).

A *unit* is what one thread decodes at once, normally a row group. An epoch is dealt in three moves:

1. The units are put in order: as they come, or permuted by (seed, epoch).
2. They are dealt: the next unit goes to the rank with the fewest rows so far (with equal units: unit u to rank
   u mod W), so that at every step all ranks stand at about the same place of the data. At the end the surplus of some
   ranks is cut off and handed to the others, until every rank has its quota, N // W rows and one more on the first
   N % W ranks.
3. A rank's pieces are grouped into windows; with shuffling the rows of a window are permuted.

Because every rank can compute every stream, a position (rows passed) per rank is the whole state of an epoch, and what
is left of it can be dealt again to another number of ranks.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fsdata.kernels.deal import to_fewest
from fsdata.order.stream import Stream, Window, grouped, in_turn

COMPILED_FROM = 20_000  # spans


class RankShare(NamedTuple):
    """What one rank was dealt: rows [start, stop) of spans, in order. int64[n] each."""

    span: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def permutation(count: int, *key: int) -> np.ndarray:
    """int64 [count], a permutation that depends on the key alone, not on platform or library version.

    Philox's raw output is fixed by its definition; a stable sort of it is a permutation without further choices.
    """
    generator = np.random.Philox(key=np.random.SeedSequence(key).generate_state(2, np.uint64))
    keys = generator.random_raw(count)
    # numpy sorts 16 bits by radix, and what is nearly in order with few comparisons: a third of the time of one sort.
    order = np.argsort((keys >> np.uint64(48)).astype(np.uint16), kind="stable")
    return order[np.argsort(keys[order], kind="stable")]


def window_order(window: Window, *, seed: int, epoch: int) -> np.ndarray:
    """int64 [rows of all pieces]: the order in which a shuffled window yields its rows."""
    first = window.pieces[0]
    return permutation(sum(piece.rows for piece in window.pieces), seed, epoch, 1, first.unit, first.start)


def quotas(rows: int, world_size: int) -> np.ndarray:
    """int64 [W]: rows of each rank; they differ by at most one."""
    return rows // world_size + (np.arange(world_size) < rows % world_size)


def deal(rows: np.ndarray, world_size: int) -> list[RankShare]:
    """Deal spans of so many rows, int64[N], to ranks in order, and even out the rows at the end.

    Spans without rows are left out.
    """
    spans = np.flatnonzero(rows)
    owner, held = np.empty(len(spans), np.uint16), np.zeros(world_size, np.int64)
    (to_fewest if len(spans) >= COMPILED_FROM else _to_fewest)(rows[spans], world_size, owner, held)
    by_rank = spans[np.argsort(owner, kind="stable")]
    of_rank = np.split(by_rank, np.cumsum(np.bincount(owner, minlength=world_size))[:-1])
    missing = quotas(int(held.sum()), world_size) - held
    shares, surplus = [], []
    for mine, over in zip(of_rank, -missing, strict=True):
        kept, cut = _cut(mine, rows[mine], int(over))
        shares.append(kept)
        surplus += cut
    given = _hand_over(np.maximum(missing, 0), surplus)
    return [_with(share, more) for share, more in zip(shares, given, strict=True)]


def _to_fewest(rows: np.ndarray, world_size: int, owner: np.ndarray, held: np.ndarray) -> None:
    """`to_fewest`, without a second of compiling on a new machine."""
    fewest = [(0, rank) for rank in range(world_size)]
    for span, count in enumerate(rows.tolist()):
        so_far, owner[span] = fewest[0]
        heapq.heapreplace(fewest, (so_far + count, fewest[0][1]))
    for so_far, rank in fewest:
        held[rank] = so_far


def _cut(spans: np.ndarray, rows: np.ndarray, over: int) -> tuple[RankShare, list[tuple[int, int, int]]]:
    """What a rank keeps of its spans, and the `over` rows at their end as (span, start, stop)."""
    stop, whole = rows.copy(), len(spans)
    cut = []
    while over > 0:
        last = whole - 1
        taken = min(over, int(rows[last]))
        stop[last] -= taken
        cut.append((int(spans[last]), int(stop[last]), int(rows[last])))
        over -= taken
        whole -= stop[last] == 0
    return RankShare(spans[:whole], np.zeros(whole, np.int64), stop[:whole]), cut[::-1]


def _hand_over(missing: np.ndarray, surplus: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """[W] what each rank gets of the surplus, for as many rows as it is short of."""
    given: list[list[tuple[int, int, int]]] = [[] for _ in missing]
    left, rank = missing.tolist(), 0
    for span, begin, stop in surplus:
        start = begin
        while start < stop:
            while left[rank] == 0:
                rank += 1
            taken = min(left[rank], stop - start)
            given[rank].append((span, start, start + taken))
            left[rank] -= taken
            start += taken
    return given


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
    """Every rank's stream of one epoch, of the units from `first_unit` on.

    shuffle_window: units that are shuffled together; or a share of the epoch: then units keep their order.
    """
    rows = np.asarray(unit_rows, np.int64)
    in_order = not shuffle or isinstance(shuffle_window, float)
    order = np.arange(len(rows)) if in_order else permutation(len(rows), seed, epoch, 0)
    size = window_units(shuffle_window, -(-len(rows) // world_size)) if shuffle else 1
    return [
        grouped(first_unit + order[share.span], share.start, share.stop, size)
        for share in deal(rows[order], world_size)
    ]


def window_units(shuffle_window: int | float, units: int) -> int:
    """How many of the units of a rank are shuffled together."""
    if not isinstance(shuffle_window, float):
        return shuffle_window
    return max(round(shuffle_window * units), 1)


def deal_again(streams: Sequence[Stream], positions: Sequence[int], world_size: int) -> list[Stream]:
    """Deal what is left of an epoch to another number of ranks; every remaining row goes to exactly one of them."""
    whole = in_turn([stream.after(position) for stream, position in zip(streams, positions, strict=True)])
    return [whole.of(*share) for share in deal(whole.last - whole.first, world_size)]
