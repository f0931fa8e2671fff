"""Plan: the rank of every sample of a global batch, and how evenly the ranks are loaded."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The result of `pack` for N samples and W ranks; the arrays are read-only.

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
    """No plan of these samples (with the method's samples per rank) has a smaller straggler share.

    Above 0 if one sample costs more than a mean rank: only truncating such samples or a larger batch helps."""
    moved: float | None
    """Share of the tokens (of the samples, if no tokens were given) that leave their home rank; None without `home`."""


class OverCapError(ValueError):
    """No plan was found that keeps every rank within `max_tokens`, although every single sample is."""


def straggler_share(load: np.ndarray, speed: np.ndarray | None = None) -> float:
    """1 - mean / max over ranks of load / speed, [W] of any numbers; 0 if all loads are 0.

    The share of several steps is the mean of their shares (the paper, Figures 2 and 8): all steps count equally,
    however long they are.
    """
    if not load.max() > 0:
        return 0.0
    if speed is None and np.issubdtype(load.dtype, np.integer):
        # Python integers: exact, and the product of the largest load and W may be above 2**63.
        return 1.0 - int(load.sum()) / (int(load.max()) * load.size)
    time = load if speed is None else load / speed
    # fsum: numpy may add floats in another order on another CPU. max: rounding must not give a share below 0.
    return max(1.0 - math.fsum(time) / (time.size * float(time.max())), 0.0)


def lowest_straggler(
    cost: np.ndarray, order: np.ndarray, num_ranks: int, least: int, speed: np.ndarray | None
) -> float:
    """A lower bound of the straggler share of all plans in which every rank has at least `least` samples.

    `order` lists the samples by descending cost. Some rank carries at least the mean; some rank carries the most
    expensive sample together with at least the `least` - 1 least expensive ones; and two of the W + 1 most expensive
    samples are on one rank.
    """
    total = int(cost.sum())
    if total == 0:
        return 0.0
    heaviest = int(cost[order[0]])
    if least > 1:
        heaviest += int(cost[order[order.size - least + 1 :]].sum())
    if order.size > num_ranks:
        heaviest = max(heaviest, int(cost[order[num_ranks - 1]]) + int(cost[order[num_ranks]]))
    if speed is None:
        # Rounded up: costs are integers, so some rank carries at least the next integer above the mean.
        return 1.0 - total / (num_ranks * max(heaviest, -(-total // num_ranks)))
    slowest_first = np.sort(speed).tolist()
    longest = max(total / math.fsum(slowest_first), heaviest / slowest_first[-1])
    # For this longest time, the mean time is largest if the slow ranks are busy throughout and the fast ones idle.
    remaining = float(total)
    busy = 0.0
    for rank_speed in slowest_first:
        share = min(remaining, longest * rank_speed)
        busy += share / rank_speed
        remaining -= share
    return max(1.0 - busy / (num_ranks * longest), 0.0)
