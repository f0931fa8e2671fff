"""Ids of global batches, a given share of which are rows that the batch before has, too.

The collision rate counts occurrences: the share of ids of global batch n+1 whose row is also in global batch n.
"""

from collections.abc import Iterator

import numpy as np


def colliding(*, rows: int, ids: int, rate: float, skew: float = 0.0, seed: int) -> Iterator[np.ndarray]:
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
    collisions = round(rate * ids)
    batch = draw(random, random.permutation(rows), ids, skew)
    while True:
        yield batch
        before = np.unique(batch)
        is_before = np.zeros(rows, bool)
        is_before[before] = True
        again = draw(random, random.permutation(before), collisions, skew)
        fresh = draw(random, random.permutation(np.flatnonzero(~is_before)), ids - collisions, skew)
        batch = random.permutation(np.concatenate([again, fresh]))


def draw(random: np.random.Generator, pool: np.ndarray, count: int, skew: float) -> np.ndarray:
    """`count` of `pool`, with repetition, the first the most popular."""
    if skew == 0:
        return pool[random.integers(0, len(pool), count)]
    weights = np.arange(1, len(pool) + 1) ** -skew
    cumulative = np.cumsum(weights)
    ranks = np.searchsorted(cumulative, random.random(count) * cumulative[-1])
    return pool[np.minimum(ranks, len(pool) - 1)]
