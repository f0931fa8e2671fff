"""The six packing methods: from a checked problem to the rank of every sample.

Each method makes a first plan. All but the two of the paper (`fbs`, `vbs-contiguous`) then improve it by exchanges. A
plan above the token cap is first brought under it by exchanges that consider only tokens.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fsdata.balance.kernels import packing as kernels
from fsdata.balance.packing.plan import OverCapError


def even_counts(home: np.ndarray, order: np.ndarray, *, num_ranks: int, ranks_per_node: int) -> np.ndarray:
    """A copy of `home` (int32[N]) in which the counts of the W ranks differ by at most one.

    As few samples move as possible: the ranks with most samples keep one more if N is not a multiple of W. A rank gives
    away samples evenly spread over its costs (`order`: by descending cost), to ranks of its own node first.
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
        # The middles of `extra` equal parts of the sorted row: its mix of long and short samples stays about the same.
        surplus += [(r, int(rows[r][(2 * k + 1) * int(counts[r]) // (2 * extra)])) for k in range(extra)]
    vacancies: list[list[int]] = [[] for _ in range(-(-num_ranks // ranks_per_node))]  # by node: ranks that lack one
    for r in np.flatnonzero(counts < goal).tolist():
        vacancies[r // ranks_per_node] += [r] * int(goal[r] - counts[r])
    leaving_node: list[int] = []
    for r, sample in surplus:
        near = vacancies[r // ranks_per_node]
        if near:
            rank[sample] = near.pop()
        else:
            leaving_node.append(sample)
    rank[leaving_node] = [r for node in vacancies for r in node]
    return rank


UNLIMITED = np.iinfo(np.int64).max
_TIGHT = 1e-5  # a rank this close above its target is not improved further: 0.001 % is below any cost model's error
_WELL = 1.001  # largest time over mean time from which a plan needs no second attempt
_ROUNDS = 24  # a bound: a few rounds usually suffice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The input of a method: N samples for W ranks, checked and in one type each."""

    cost: np.ndarray
    """int64[N], sums below 2**62."""
    order: np.ndarray
    """int32[N], samples by descending cost, ties by position."""
    tokens: np.ndarray
    """int64[N]; ones if the caller passed none."""
    target: np.ndarray
    """float64[W], the load that each rank should carry: the sum of all costs, divided in proportion to speed."""
    max_tokens: int
    min_count: int
    max_count: int
    home: np.ndarray | None
    """int32[N]."""
    ranks_per_node: int
    tolerance: float

    @property
    def num_ranks(self) -> int:
        return self.target.size


def fbs(problem: Problem) -> np.ndarray:
    """The paper's fixed batch size: sort, then deal in zig-zag."""
    return kernels.zigzag(problem.order, problem.num_ranks)


def fbs_swap(problem: Problem) -> np.ndarray:
    """Zig-zag, then swaps; every rank keeps its count."""
    rank = fbs(problem)
    _under_cap(problem, rank, problem.num_ranks)
    _exchange(problem, rank, problem.target, limit=1.0 + _TIGHT)
    return rank


def vbs(problem: Problem) -> np.ndarray:
    """Variable counts within the caps: a first plan, then swaps and moves.

    The first plan is the zig-zag, which is fast. Where it is above the cap or ends unbalanced (few or very different
    samples), a second plan assigns the samples by descending cost, each to the least loaded rank; the better one of
    both is returned.
    """
    plans = []
    rank = fbs(problem)
    if kernels.sums(rank, problem.tokens, problem.num_ranks).max() <= problem.max_tokens:
        _exchange(problem, rank, problem.target, limit=1.0 + _TIGHT, moves=True)
        if _longest(problem, rank) <= _WELL:
            return rank
        plans.append(rank)
    rank, done = _lightest_first(problem, problem.order, problem.cost, problem.target)
    if done < rank.size:
        # Assigning the longest samples first leaves the most room; the exchanges then balance the costs.
        by_length = kernels.descending(problem.tokens)
        rank, done = _lightest_first(problem, by_length, problem.tokens, np.ones(problem.num_ranks))
        if done < rank.size and not plans:
            raise OverCapError(_does_not_fit(problem, int(problem.tokens[by_length[done]])))
    if done == rank.size:
        _exchange(problem, rank, problem.target, limit=1.0 + _TIGHT, moves=True)
        plans.append(rank)
    return min(plans, key=lambda plan: _longest(problem, plan))


def vbs_contiguous(problem: Problem) -> np.ndarray:
    """The paper's variable batch size: cut the samples, in the order given, into W parts of equal cost."""
    return kernels.contiguous(problem.cost, problem.target, min(1, problem.cost.size // problem.num_ranks))


def repair(problem: Problem) -> np.ndarray:
    """Leave the samples on their home ranks, and swap only until the tolerance is reached, preferring few tokens."""
    assert problem.home is not None
    rank = even_counts(problem.home, problem.order, num_ranks=problem.num_ranks, ranks_per_node=1)
    _under_cap(problem, rank, problem.num_ranks)
    _exchange(problem, rank, problem.target, limit=1.0 / (1.0 - problem.tolerance))
    return rank


def hierarchical(problem: Problem) -> np.ndarray:
    """Swap between nodes until the nodes are even, then between the ranks of each node.

    Even nodes can have few and very different samples that their ranks cannot share evenly: if the result is worse than
    the start, the start is returned.
    """
    assert problem.home is not None
    span = problem.ranks_per_node
    rank = even_counts(problem.home, problem.order, num_ranks=problem.num_ranks, ranks_per_node=span)
    before = rank.copy()
    # Nodes may use half of the tolerance, which leaves the other half to the ranks inside the fullest node.
    # fsum: numpy may add floats in another order on another CPU.
    node_target = np.array([math.fsum(node) for node in problem.target.reshape(-1, span).tolist()])
    _exchange(problem, rank, node_target, limit=1.0 / (1.0 - problem.tolerance / 2))
    _under_cap(problem, rank, span)
    # Inside a node the target is its present load, divided among its ranks; the ceiling is at least the job's own, as
    # a better balance inside one node does not make a step shorter.
    node_load = kernels.sums(rank // np.int32(span), problem.cost, node_target.size)
    target = problem.target * np.repeat(np.maximum(node_load, 1) / node_target, span)
    ceiling = np.maximum(problem.target / (1.0 - problem.tolerance), target * (1.0 + _TIGHT))
    _exchange(problem, rank, target, ceiling=ceiling, span=span)
    fits = kernels.sums(before, problem.tokens, problem.num_ranks).max(initial=0) <= problem.max_tokens
    return before if fits and _longest(problem, before) < _longest(problem, rank) else rank


METHODS: dict[str, tuple[Callable[[Problem], np.ndarray], frozenset[str]]] = {
    "fbs": (fbs, frozenset()),
    "fbs+swap": (fbs_swap, frozenset({"max_tokens", "speed"})),
    "vbs": (vbs, frozenset({"max_tokens", "min_count", "max_count", "speed"})),
    "vbs-contiguous": (vbs_contiguous, frozenset({"speed"})),
    "repair": (repair, frozenset({"max_tokens", "speed"})),
    "hierarchical": (hierarchical, frozenset({"max_tokens", "speed", "ranks_per_node"})),
}
"""Method name -> the method and the options that it takes besides `home`, `tokens` and `tolerance`."""

EQUAL_COUNTS = frozenset({"fbs", "fbs+swap", "repair", "hierarchical"})
NEED_HOME = frozenset({"repair", "hierarchical"})


def _exchange(
    problem: Problem,
    rank: np.ndarray,
    target: np.ndarray,
    *,
    limit: float = 1.0,
    ceiling: np.ndarray | None = None,
    moves: bool = False,
    span: int | None = None,
) -> None:
    """Improve `rank` in place until no group is above its ceiling (by default `limit` times its target).

    The groups are ranks, or nodes of neighbouring ranks if `target` float64[G] has fewer entries; they exchange within
    spans of `span` groups (default: all with all).
    """
    size = problem.num_ranks // target.size  # ranks of a group
    rows = kernels.fill_rows(problem.order, rank // np.int32(size), problem.cost, problem.tokens, target.size)
    rules = kernels.Rules(
        target * limit if ceiling is None else ceiling,
        target,
        UNLIMITED if problem.max_tokens == UNLIMITED else problem.max_tokens * size,
        problem.min_count,
        problem.max_count if moves else 0,
        _ROUNDS,
    )
    kernels.improve(rows, rules, rank, problem.tokens, span or target.size)


def _longest(problem: Problem, rank: np.ndarray) -> float:
    """The largest time of a rank, divided by the time of all ranks in a perfect plan."""
    return float((kernels.sums(rank, problem.cost, problem.num_ranks) / problem.target).max())


def _under_cap(problem: Problem, rank: np.ndarray, span: int) -> None:
    """Swap samples by their tokens until every rank is within `max_tokens`; OverCapError if that fails.

    Tries swaps inside spans of `span` ranks first: their links are faster.
    """
    cap = problem.max_tokens
    used = kernels.sums(rank, problem.tokens, problem.num_ranks)
    if used.max(initial=0) <= cap:
        return
    by_length = kernels.descending(problem.tokens)
    for among in (span, problem.num_ranks):
        rows = kernels.fill_rows(by_length, rank, problem.tokens, problem.tokens, problem.num_ranks)
        # The same exchanges with tokens as the cost: the cap is the ceiling of a group.
        ceiling = np.full(problem.num_ranks, float(cap))
        target = np.full(problem.num_ranks, problem.tokens.sum() / problem.num_ranks)
        rules = kernels.Rules(ceiling, target, UNLIMITED, problem.min_count, 0, _ROUNDS)
        kernels.improve(rows, rules, rank, problem.tokens, among)
        if rows.used.max() <= cap:
            return
    raise OverCapError(_does_not_fit(problem, int(problem.tokens[by_length[0]]), int(rows.used.max())))


def _lightest_first(
    problem: Problem, order: np.ndarray, amount: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, int]:
    return kernels.lightest_first(
        order, amount, problem.tokens, target, problem.max_tokens, problem.min_count, problem.max_count
    )


def _does_not_fit(problem: Problem, longest: int, reached: int | None = None) -> str:
    mean = problem.tokens.sum() / problem.num_ranks
    reason = f"a sample of {longest} tokens finds no rank with room" if reached is None else f"the best is {reached}"
    remedy = "use method='vbs' (variable counts) or raise max_tokens" if problem.max_count == 0 else "raise max_tokens"
    return (
        f"no plan found that keeps every rank within max_tokens={problem.max_tokens}: {reason}, at {mean:.0f} tokens "
        f"per rank on average and a longest sample of {int(problem.tokens.max())}; {remedy}, or shorten histories "
        "(max_length)"
    )
