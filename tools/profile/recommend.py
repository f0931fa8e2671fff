"""Recommends settings: where to cut histories, how to balance, what memory a rank needs, and code to paste.

What is quoted is what the code does: the plans are simulated with the options that the code gives to `fsdata.Balance`.

Where one history outweighs what a mean rank holds, all others wait for its rank, whatever the plan. The *even cut* is
the longest max_length at which that costs less than 1 % of a step (lower bound of plans with equal counts). A shorter
cut would lose events for nothing. Events are what a model learns from, so they are not given away for time by default:
the even cut is recommended only if it loses at most 5 % of the events, and less of the events than of the time that
ranks would wait without it. Else nothing is cut, and what a cut would bring and lose stands beside the recommendation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.model.batches import UNPACKED, Samples, Setting, balance_options, simulate_setting
from freescale_tools.profile.loader_code import LoaderFiles, code
from freescale_tools.report.numbers import percent_within
from fsdata.balance.cost import CANDIDATES
from fsdata.balance.packing import pack

_METHODS = ("fbs+swap", "vbs", "hierarchical")  # that are recommended or named beside it
_HEADROOM = 1.25  # memory limit over the fullest rank of the simulated steps
_WORTH = 0.01  # smallest gain in straggler share for which variable counts are proposed
TABLE = "trade-off table"
_BOUND = 0.01  # largest lower bound of an even plan: about the error of a cost model
_LOST = 0.05  # most events that a recommended cut loses
_COARSE = 10  # a length is rounded down to tens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvenCut:
    """The longest max_length at which plans can be even.

    Attributes:
        uncut: the settings with whole histories.
        max_length: that of `uncut` if no cut is needed.
        lost: share of the events that it cuts off.
        bound: lower bound without a cut: share of a step that ranks wait, whatever the plan.
    """

    uncut: Setting
    max_length: int
    lost: float
    bound: float

    @property
    def needed(self) -> bool:
        return self.max_length < self.uncut.max_length

    @property
    def recommended(self) -> int:
        """The recommended max_length: that of the cut, or of no cut."""
        return self.max_length if self.lost <= min(_LOST, self.bound) else self.uncut.max_length


def even_cut(samples: Samples, uncut: Setting) -> EvenCut:
    """The even cut of `samples`, by bisection on the batches that are drawn for `uncut`."""
    drawn = [samples.lengths(uncut, step) for step in range(uncut.steps)]

    def bound(length: int) -> float:
        cut = (
            {name: of if name == CANDIDATES else np.minimum(of, length) for name, of in one.items()} for one in drawn
        )
        return float(np.mean([pack(uncut.cost(one), uncut.ranks, method="fbs").lower_bound for one in cut]))

    low, high = 1, uncut.max_length
    without = bound(high)
    if without < _BOUND:
        return EvenCut(uncut=uncut, max_length=high, lost=0.0, bound=without)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle) < _BOUND else (low, middle)
    length = low - low % _COARSE if low >= 10 * _COARSE else low
    return EvenCut(uncut=uncut, max_length=length, lost=1.0 - samples.histogram.kept_share(length), bound=without)


def recommend(samples: Samples, cut: EvenCut, *, files: LoaderFiles) -> dict[str, Any]:
    """Settings for the ranks, batch size and cost model of `cut.uncut`, the reasons, and code to paste.

    `files`: what the code reads. `even_cut` of the document: what the cut at which plans can be even would lose and
    bring, whether it is recommended or not; None if nothing has to be cut for it.
    """
    chosen = dataclasses.replace(cut.uncut, max_length=cut.recommended)
    caps = _max_tokens(samples, chosen)
    found = simulate_setting(samples, chosen, methods=_METHODS, max_tokens=caps)
    method = _method(found["straggler"])
    price = _price(samples, cut, chosen, found, method)
    said = _price_said(price, chosen)
    return {
        "max_length": chosen.max_length,
        "method": method,
        "cost_model": repr(chosen.cost),
        "max_tokens": caps[method],
        "events_cut": cut.lost if chosen.max_length < cut.uncut.max_length else 0.0,
        "straggler": found["straggler"][method],
        "straggler_error": found["straggler_error"][method],
        "straggler_none": found["straggler"][UNPACKED],
        "straggler_none_error": found["straggler_error"][UNPACKED],
        "lower_bound": found["lower_bound"],
        "even_cut": price,
        "why": [
            *(said or [_why_uncut(chosen, found)]),
            *_why_method(chosen, found, method, caps),
            f"max_tokens: {caps[method]:,} is room for the longest sample, and for a quarter more than the "
            f"{found['fullest'][method]:,} events of the fullest rank in {chosen.steps} simulated steps. Rows of a "
            "step that needs more come in the next step.",
        ],
        "code": code(files, chosen, options=balance_options(method, chosen, caps[method]), comments=said),
    }


def share_text(share: float, error: float | None = None) -> str:
    """A share as percent, without digits below its standard error."""
    return percent_within(share, error).replace("\u00a0", " ")


def _max_tokens(samples: Samples, setting: Setting) -> dict[str, int]:
    """Method -> what memory its ranks need: a quarter more than the simulated steps, and room for every sample."""
    fullest = simulate_setting(samples, setting, methods=_METHODS)["fullest"]
    longest = _longest_sample(samples, setting)
    return {method: max(_three_digits(fullest[method] * _HEADROOM), longest) for method in _METHODS}


def _longest_sample(samples: Samples, setting: Setting) -> int:
    """Tokens that one sample may have: a loader refuses one above max_tokens."""
    candidates = samples.candidates.longest if samples.candidates else 0
    return min(samples.histogram.longest, setting.max_length) + candidates


def _method(straggler: Mapping[str, float]) -> str:
    """Equal counts, unless variable counts gain enough: they change the weight of a sample in means."""
    return "vbs" if straggler["vbs"] < straggler["fbs+swap"] - _WORTH else "fbs+swap"


def _price(
    samples: Samples, cut: EvenCut, chosen: Setting, found: Mapping[str, Any], method: str
) -> dict[str, Any] | None:
    """What the even cut loses and brings by `method`, as the document has it. `found`: the point of `chosen`."""
    if not cut.needed:
        return None
    even = dataclasses.replace(cut.uncut, max_length=cut.max_length)
    points = (
        found if setting == chosen else simulate_setting(samples, setting, methods=(method,))
        for setting in (even, cut.uncut)
    )
    shares = [(point["straggler"][method], point["straggler_error"][method]) for point in points]
    return {
        "max_length": cut.max_length,
        "events_lost": cut.lost,
        **dict(zip(("straggler", "straggler_error"), shares[0], strict=True)),
        **dict(zip(("straggler_uncut", "straggler_uncut_error"), shares[1], strict=True)),
    }


def _price_said(price: Mapping[str, Any] | None, chosen: Setting) -> list[str]:
    """What is cut off, and what that brings: never one without the other."""
    if price is None:
        return []
    lost = share_text(price["events_lost"])
    cut = share_text(price["straggler"], price["straggler_error"])
    uncut = share_text(price["straggler_uncut"], price["straggler_uncut_error"])
    if chosen.max_length == price["max_length"]:
        first = (
            f"max_length={price['max_length']} cuts off {lost} of the events: balanced ranks wait {cut} of a step, and "
            f"{uncut} uncut."
        )
    else:
        first = (
            f"Nothing is cut off: balanced ranks wait {uncut} of a step. max_length={price['max_length']} would leave "
            f"{cut}, and lose {lost} of the events."
        )
    return [first, f"The {TABLE} of the profile shows what other lengths and batch sizes cost."]


def _why_uncut(chosen: Setting, found: Mapping[str, Any]) -> str:
    return (
        f"max_length: the longest history, {chosen.max_length:,} events. Nothing is cut off: on {chosen.ranks} ranks "
        f"of {chosen.batch_size} samples no single sample outweighs a mean rank (lower bound "
        f"{share_text(found['lower_bound'])})."
    )


def _why_method(chosen: Setting, found: Mapping[str, Any], method: str, caps: Mapping[str, int]) -> Sequence[str]:
    def share(of: str) -> str:
        return share_text(found["straggler"][of], found["straggler_error"][of])

    sentences = [
        f"method: {method} leaves {share(method)} of the time to waiting where unbalanced ranks wait {share(UNPACKED)}"
        + (
            "; every rank keeps its number of samples."
            if method != "vbs"
            else f"; equal numbers of samples would leave {share('fbs+swap')}. Use global_mean for the loss."
        )
    ]
    if method != "vbs" and chosen.ranks > chosen.node > 1:
        options = balance_options("hierarchical", chosen, caps["hierarchical"])
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        sentences.append(
            f"On slow links between nodes try {given}: {share('hierarchical')}, and few samples leave their node."
        )
    sentences.append(f"cost: a sample costs {chosen.cost!r}; `freescale calibrate` fits it to your model's step times.")
    return sentences


def _three_digits(value: float) -> int:
    """Rounded up."""
    unit = max(10 ** (len(str(int(value))) - 3), 1)
    return int(-(-value // unit)) * unit
