"""Equal counts from unequal homes: which samples have to leave before any balancing."""

import numpy as np


def even_counts(home: np.ndarray, order: np.ndarray, *, num_ranks: int, ranks_per_node: int) -> np.ndarray:
    """A copy of `home` (int32[N]) in which the counts of the W ranks differ by at most one.

    As few samples move as possible: ranks with most samples keep the odd ones, a rank gives away samples evenly spread
    over its costs (`order`: by descending cost), to ranks of its own node first.
    """
    rank = home.copy()
    counts = np.bincount(home, minlength=num_ranks)
    if counts.max() - counts.min() <= 1:
        return rank
    goal = np.full(num_ranks, home.size // num_ranks)
    goal[np.argsort(-counts, kind="stable")[: home.size % num_ranks]] += 1
    surplus: list[tuple[int, int]] = []  # (rank it leaves, sample)
    rows = np.split(order[np.argsort(home[order], kind="stable")], np.cumsum(counts)[:-1])
    for r in np.flatnonzero(counts > goal).tolist():
        extra = int(counts[r] - goal[r])
        surplus += [(r, int(rows[r][(2 * k + 1) * int(counts[r]) // (2 * extra)])) for k in range(extra)]
    places: list[list[int]] = [[] for _ in range(-(-num_ranks // ranks_per_node))]
    for r in np.flatnonzero(counts < goal).tolist():
        places[r // ranks_per_node] += [r] * int(goal[r] - counts[r])
    waiting: list[int] = []
    for r, sample in surplus:
        near = places[r // ranks_per_node]
        if near:
            rank[sample] = near.pop()
        else:
            waiting.append(sample)
    rank[waiting] = [place for node in places for place in node]
    return rank
