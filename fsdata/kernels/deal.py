"""Assigns spans of rows to ranks."""

import numpy as np

from fsranks.libraries import kernel


@kernel(called_with="int64[::1], int64, uint16[::1], int64[::1]")
def to_fewest(rows: np.ndarray, world_size: int, owner: np.ndarray, held: np.ndarray) -> None:
    """Each span goes to the rank with the fewest rows so far; ties go to the lowest rank.

    rows: int64[N] of each span. Writes owner: uint16[N], the rank of each span; held: int64[W], zeros before, the rows
    of each rank.
    """
    ranks = np.arange(world_size)  # a heap by (rows, rank): ranks[0] gets the next span
    for span in range(len(rows)):
        rank = ranks[0]
        owner[span] = rank
        held[rank] += rows[span]
        at, child = 0, 1  # its key has grown: sift it down, and ranks with fewer rows up
        while child < world_size:
            other = child + 1
            if other < world_size and _has_fewer(ranks[other], ranks[child], held):
                child = other
            if not _has_fewer(ranks[child], rank, held):
                break
            ranks[at] = ranks[child]
            at, child = child, 2 * child + 1
        ranks[at] = rank


@kernel
def _has_fewer(a: int, b: int, held: np.ndarray) -> bool:
    return held[a] < held[b] or (held[a] == held[b] and a < b)
