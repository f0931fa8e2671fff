"""Ids of global batches whose overlap with the batch before is exactly what was asked for.

The collision rate counts occurrences: the share of ids of global batch n+1 whose row is also in global batch n. Every
rank makes the whole global batch from the seed and keeps its own part, so nothing has to be sent.

Letters: W ranks, N ids per rank and feature, R rows of the table.
"""

from collections.abc import Iterator

import numpy as np

from freescale_tools.write.synth.collisions import draw


def independent(*, rows: int, ids: int, skew: float, seed: int) -> Iterator[np.ndarray]:
    """Global batches without end, int64[ids] each, every id drawn for itself with Zipf weights k ** -skew."""
    random = np.random.default_rng(seed)
    while True:
        yield draw(random, np.arange(rows), ids, skew)


def windows(events: np.ndarray, *, users: int, length: int) -> np.ndarray:
    """The ids of samples, user after user, each of `length` events in a row. events: those of all users."""
    of_users = np.lib.stride_tricks.sliding_window_view(events.reshape(users, -1), length, axis=1)
    return of_users.reshape(-1)


def rates(batch: np.ndarray, following: np.ndarray) -> tuple[float, float]:
    """Collision rate of `following` against `batch`: by occurrence, and by distinct row."""
    distinct = np.unique(following)
    return float(np.isin(following, batch).mean()), float(np.isin(distinct, batch).mean())


def collision_bytes(
    batch: np.ndarray, following: np.ndarray, *, ranks: int, rows: int, row_bytes: int
) -> tuple[float, float]:
    """Bytes on the busiest link if only collisions wait: (gradients back to owners, rows to their users).

    For row-wise sharding in equal blocks. A gradient goes back for every occurrence, a row comes once per rank.
    """
    owners, size = -(-rows // ranks), len(batch) // ranks
    gradients, copies = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for rank in range(ranks):
        mine, next_mine = (ids[rank * size : (rank + 1) * size] for ids in (batch, following))
        back = mine[np.isin(mine, following)]
        needed = np.unique(next_mine[np.isin(next_mine, batch)])
        gradients[rank] = np.bincount(back // owners, minlength=ranks)
        copies[:, rank] = np.bincount(needed // owners, minlength=ranks)
    return tuple(row_bytes * float(_busiest(moved)) for moved in (gradients, copies))  # type: ignore[return-value]


def _busiest(moved: np.ndarray) -> float:
    """Most that one rank sends or receives, of `moved` [from, to]; what stays at home is free."""
    away = moved * (1 - np.eye(len(moved)))
    return max(away.sum(0).max(), away.sum(1).max())
