"""Recommends settings: where to cut histories, how to balance, what memory a rank needs.

`max_length` is the longest cut at which no history outweighs what a mean rank holds (lower bound under 1 %).
With a longer cut, ranks wait for the rank of the longest sample, whatever the plan. A shorter cut loses
events for nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from freescale_tools.profile.loader_code import LoaderFiles, code
from freescale_tools.profile.stragglers import UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CostModel, Polynomial
from fsdata.balance.packing import Method, pack

_BOUND = 0.01  # largest accepted lower bound: about the error of a cost model
_HEADROOM = 1.25  # memory limit over the fullest rank of the simulated steps
_WORTH = 0.01  # smallest gain in straggler share for which variable counts are proposed
_COARSE = 10  # a length is rounded down to tens


def recommend(
    histogram: LengthHistogram,
    grid: Mapping[str, Any],
    *,
    files: LoaderFiles,
    candidates: LengthHistogram | None = None,
    cost: CostModel | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Settings for the default ranks and batch size of a `straggler_grid`, the reasons, and code to paste.

    `files`: what the code reads. `cost`: the Polynomial or Power of the grid.
    Raises UsageError if the histogram has no events.
    """
    model = cost or Polynomial()
    samples = Samples(histogram=histogram, candidates=candidates, seed=seed)
    default = grid["default"]
    uncut = Setting(max_length=histogram.longest, ranks=default["ranks"], batch_size=default["batch_size"], cost=model)
    chosen = dataclasses.replace(uncut, max_length=longest_balanced(samples, uncut))
    at_uncut = simulate_setting(samples, uncut, methods=("fbs+swap",))
    at_chosen = simulate_setting(samples, chosen, methods=("fbs+swap", "vbs", "hierarchical"))
    method = _method(at_chosen["straggler"])
    peak, longest = fullest_rank(samples, chosen, method)
    max_tokens = max(_three_digits(peak * _HEADROOM), longest)
    cut = 1.0 - histogram.kept_share(chosen.max_length)
    return {
        "max_length": chosen.max_length,
        "method": method,
        "cost_model": repr(model),
        "max_tokens": max_tokens,
        "events_cut": cut,
        "straggler": at_chosen["straggler"][method],
        "straggler_none": at_chosen["straggler"][UNPACKED],
        "lower_bound": at_chosen["lower_bound"],
        "why": [
            *_why_length(histogram, chosen, at_uncut, at_chosen, cut),
            *_why_method(chosen, at_chosen, method),
            f"max_tokens: the fullest rank of {chosen.steps} simulated steps holds {peak:,} events; {max_tokens:,} "
            "leaves a quarter more. Rows of a step that needs more come in the next step.",
        ],
        "code": code(files, chosen, method=method, max_tokens=max_tokens),
    }


def recommended_length(
    histogram: LengthHistogram, *, candidates: LengthHistogram | None, ranks: int, batch_size: int
) -> int:
    """The max_length that `recommend` would give, from the lengths alone, with the default cost model."""
    samples = Samples(histogram=histogram, candidates=candidates)
    uncut = Setting(max_length=histogram.longest, ranks=ranks, batch_size=batch_size, cost=Polynomial())
    return longest_balanced(samples, uncut)


def longest_balanced(samples: Samples, uncut: Setting) -> int:
    """The longest max_length at which a plan with equal counts can stay under a straggler share of 1 %.

    The result is `uncut.max_length` if no cut is needed. Found by bisection on the same drawn batches.
    """
    batches = [samples.lengths(uncut, step) for step in range(uncut.steps)]

    def bound(length: int) -> float:
        cut = ({name: np.minimum(values, length) for name, values in batch.items()} for batch in batches)
        return float(np.mean([pack(uncut.cost(batch), uncut.ranks, method="fbs").lower_bound for batch in cut]))

    low, high = 1, uncut.max_length
    if bound(high) < _BOUND:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle) < _BOUND else (low, middle)
    return low - low % _COARSE if low >= 10 * _COARSE else low


def fullest_rank(samples: Samples, setting: Setting, method: Method) -> tuple[int, int]:
    """(most events of a rank in a simulated step, most events of a sample), over sequences and candidates.

    Plans as `fsdata.Balance` does: the counts of `vbs` have no limit.
    """
    peak = longest = 0
    for step in range(setting.steps):
        lengths = samples.lengths(setting, step)
        tokens = np.sum(list(lengths.values()), axis=0)
        plan = pack(setting.cost(lengths), setting.ranks, method=method, tokens=tokens)
        held = np.zeros(setting.ranks, np.int64)
        np.add.at(held, plan.rank, tokens)
        peak, longest = max(peak, int(held.max())), max(longest, int(tokens.max()))
    return peak, longest


def _method(straggler: Mapping[str, float]) -> Method:
    """Equal counts, unless variable counts gain enough: they change the weight of a sample in means."""
    return "vbs" if straggler["vbs"] < straggler["fbs+swap"] - _WORTH else "fbs+swap"


def _why_length(
    histogram: LengthHistogram,
    chosen: Setting,
    at_uncut: Mapping[str, Any],
    at_chosen: Mapping[str, Any],
    cut: float,
) -> list[str]:
    where = f"on {chosen.ranks} ranks of {chosen.batch_size} samples"
    if chosen.max_length == histogram.longest:
        return [
            f"max_length: the longest history, {histogram.longest:,} events. Nothing is cut off: {where} no single "
            f"sample outweighs a mean rank (lower bound {at_uncut['lower_bound']:.2%})."
        ]
    return [
        f"max_length: uncut, one history of {histogram.longest:,} events outweighs what a mean rank holds {where}: "
        f"{at_uncut['lower_bound']:.0%} of the time would be lost whatever the plan.",
        f"{chosen.max_length:,} is the longest cut at which a plan can get under {_BOUND:.0%} "
        f"(lower bound {at_chosen['lower_bound']:.2%}); it leaves out {cut:.1%} of the events, the oldest of the "
        "longest histories. A larger batch_size or fewer ranks allow longer ones.",
    ]


def _why_method(chosen: Setting, at_chosen: Mapping[str, Any], method: str) -> list[str]:
    straggler = at_chosen["straggler"]
    sentences = [
        f"method: {method} leaves {straggler[method]:.2%} of the time to waiting where unbalanced ranks wait "
        f"{straggler[UNPACKED]:.1%}"
        + (
            "; every rank keeps its number of samples."
            if method != "vbs"
            else f"; equal numbers of samples would leave {straggler['fbs+swap']:.2%}. Use global_mean for the loss."
        )
    ]
    if method != "vbs" and chosen.ranks > chosen.node > 1:
        sentences.append(
            f"On slow links between nodes try method='hierarchical' (ranks_per_node={chosen.node}): "
            f"{straggler['hierarchical']:.2%}, and few samples leave their node."
        )
    sentences.append(
        "cost: a sample costs " + repr(chosen.cost) + "; `freescale calibrate` fits it to your model's step times."
    )
    return sentences


def _three_digits(value: float) -> int:
    """Rounded up."""
    unit = max(10 ** (len(str(int(value))) - 3), 1)
    return int(-(-value // unit)) * unit
