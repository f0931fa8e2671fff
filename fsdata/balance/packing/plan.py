"""Plan: which rank takes which sample of a global batch, and how good that is."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The answer of `pack` for N samples and W ranks; the arrays are read-only.

    Times are in units of cost: a rank's time is its load divided by its relative speed.
    """

    rank: np.ndarray = dataclasses.field(repr=False)
    """int32[N], the rank that takes each sample."""
    counts: np.ndarray
    """int64[W], samples per rank."""
    load: np.ndarray
    """int64[W], cost per rank."""
    straggler: float
    """Mean idle share of the ranks while they wait for the slowest: 1 - mean time / largest time, 0 to 1."""
    lower_bound: float
    """The straggler share that no plan of these samples (with the samples per rank the method asks for) gets below.

    Above 0 if one sample alone is dearer than a mean rank: only truncating such samples or a larger batch helps."""
    moved: float | None
    """Share of the tokens (of the samples, if no tokens were given) that leave their home rank; None without `home`."""


class OverCapError(ValueError):
    """No plan was found that keeps every rank within `max_tokens`, although every single sample is."""


def straggler_share(load: np.ndarray, speed: np.ndarray | None = None) -> float:
    """1 - mean / max over ranks of load / speed, [W] of any numbers; 0 where nothing is to be done.

    The share of several steps is the mean of their shares (the paper, Figures 2 and 8): so a step counts as much as
    another, however long it is.
    """
    if not load.max() > 0:
        return 0.0
    if speed is None and np.issubdtype(load.dtype, np.integer):
        return 1.0 - int(load.sum()) / (int(load.max()) * load.size)
    time = load if speed is None else load / speed
    return max(1.0 - math.fsum(time) / (time.size * float(time.max())), 0.0)


def lowest_straggler(
    cost: np.ndarray, order: np.ndarray, num_ranks: int, least: int, speed: np.ndarray | None
) -> float:
    """A bound no plan gets below in which every rank has `least` samples or more.

    `order` lists the samples by descending cost. Some rank carries the mean, some rank carries the dearest sample
    together with at least the `least` - 1 cheapest ones, and two of the W + 1 dearest samples share a rank.
    """
    total = int(cost.sum())
    if total == 0:
        return 0.0
    dearest = int(cost[order[0]])
    if least > 1:
        dearest += int(cost[order[order.size - least + 1 :]].sum())
    if order.size > num_ranks:
        dearest = max(dearest, int(cost[order[num_ranks - 1]]) + int(cost[order[num_ranks]]))
    if speed is None:
        return 1.0 - total / (num_ranks * max(dearest, -(-total // num_ranks)))
    slowest_first = np.sort(speed).tolist()
    longest = max(total / math.fsum(slowest_first), dearest / slowest_first[-1])
    # The mean time is largest, for this longest time, if the slow ranks are busy all of it and the fast ones idle.
    left = float(total)
    busy = 0.0
    for one in slowest_first:
        share = min(left, longest * one)
        busy += share / one
        left -= share
    return max(1.0 - busy / (num_ranks * longest), 0.0)
