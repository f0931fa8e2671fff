"""Ids of global batches whose overlap with the batch before is exactly what was asked for.

The collision rate counts occurrences: the share of ids of global batch n+1 whose row is also in global batch n. Every
rank makes the whole global batch from the seed and keeps its own part, so nothing has to be sent.

Letters: W ranks, N ids per rank and feature, R rows of the table.
"""

from collections.abc import Iterator

import numpy as np


def chain(*, rows: int, ids: int, rate: float, skew: float, seed: int) -> Iterator[np.ndarray]:
    """Global batches for one table without end, int64[ids] each.

    Exactly `round(rate * ids)` ids of a batch are rows of the batch before. Within both parts rows are drawn with
    Zipf weights k ** -skew (0: uniformly), in an order of popularity that is new in every batch, so that skew makes
    duplicates in a batch and leaves the collision rate alone.

    Raises:
        ValueError: the table is too small to find rows that the batch before did not have.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"the collision rate must be 0 to 1, got {rate}")
    if rows < 2 * ids:
        raise ValueError(f"{rows} rows are too few for batches of {ids} ids: at least {2 * ids} are needed")
    random = np.random.default_rng(seed)
    colliding = round(rate * ids)
    batch = _draw(random, random.permutation(rows), ids, skew)
    while True:
        yield batch
        before = np.unique(batch)
        taken = np.zeros(rows, bool)
        taken[before] = True
        again = _draw(random, random.permutation(before), colliding, skew)
        fresh = _draw(random, random.permutation(np.flatnonzero(~taken)), ids - colliding, skew)
        batch = random.permutation(np.concatenate([again, fresh]))


def independent(*, rows: int, ids: int, skew: float, seed: int) -> Iterator[np.ndarray]:
    """Global batches without end, int64[ids] each, every id drawn for itself with Zipf weights k ** -skew."""
    random = np.random.default_rng(seed)
    while True:
        yield _draw(random, np.arange(rows), ids, skew)


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


def _draw(random: np.random.Generator, pool: np.ndarray, count: int, skew: float) -> np.ndarray:
    """`count` of `pool`, the first the most popular."""
    if skew == 0:
        return pool[random.integers(0, len(pool), count)]
    weights = np.arange(1, len(pool) + 1) ** -skew
    cumulative = np.cumsum(weights)
    places = np.searchsorted(cumulative, random.random(count) * cumulative[-1])
    return pool[np.minimum(places, len(pool) - 1)]
