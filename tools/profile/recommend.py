"""Recommends settings: where to cut histories, how to balance, what memory a rank needs, and code to paste.

What is quoted is what the code does: the plans are simulated with the options that the code gives to `fsdata.Balance`.

Where one history outweighs what a mean rank holds, all others wait for its rank, whatever the plan. The *even cut* is
the longest max_length at which that costs less than 1 % of a step (lower bound of plans with equal counts). A shorter
cut would lose events for nothing. Events are what a model learns from, so they are not given away for time by default:
the even cut is recommended only if it loses at most 5 % of the events, and less of the events than of the time that
ranks would wait without it. Else nothing is cut, and what a cut would bring and lose stands beside the recommendation.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from freescale_tools.model.batches import UNPACKED, Samples, Setting, balance_options, simulate_setting
from freescale_tools.report.numbers import percent
from fsdata.balance.cost import CANDIDATES
from fsdata.balance.packing import pack

_METHODS = ("fbs+swap", "vbs", "hierarchical")  # that are recommended or named beside it
_HEADROOM = 1.25  # memory limit over the fullest rank of the simulated steps
_WORTH = 0.01  # smallest gain in straggler share for which variable counts are proposed
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


def recommend(samples: Samples, cut: EvenCut) -> dict[str, Any]:
    """Settings for the ranks, batch size and cost model of `cut.uncut`, and the reasons.

    `even_cut` of the document: what the cut at which plans can be even would lose and bring, whether it is recommended
    or not; None if nothing has to be cut for it.
    """
    chosen = dataclasses.replace(cut.uncut, max_length=cut.recommended)
    # A loader refuses a sample with more tokens than max_tokens, and no simulated step may have drawn the longest.
    longest = min(samples.histogram.longest, chosen.max_length)
    longest += samples.candidates.longest if samples.candidates else 0
    fullest = simulate_setting(samples, chosen, methods=_METHODS)["fullest"]
    caps = {method: max(_three_digits(fullest[method] * _HEADROOM), longest) for method in _METHODS}
    found = simulate_setting(samples, chosen, methods=_METHODS, max_tokens=caps)
    # Equal counts, unless variable counts gain enough: they change the weight of a sample in means.
    straggler, errors = found["straggler"], found["straggler_error"]
    method = "vbs" if straggler["vbs"] < straggler["fbs+swap"] - _WORTH else "fbs+swap"
    advice = {
        "max_length": chosen.max_length,
        "method": method,
        "cost_model": repr(chosen.cost),
        "max_tokens": caps[method],
        "events_cut": cut.lost if chosen.max_length < cut.uncut.max_length else 0.0,
        "straggler": straggler[method],
        "straggler_error": errors[method],
        "straggler_none": straggler[UNPACKED],
        "straggler_none_error": errors[UNPACKED],
        "lower_bound": found["lower_bound"],
        "even_cut": None,
    }
    if cut.needed:
        even = dataclasses.replace(cut.uncut, max_length=cut.max_length)
        with_cut, without = (
            found if setting == chosen else simulate_setting(samples, setting, methods=(method,))
            for setting in (even, cut.uncut)
        )
        advice["even_cut"] = {
            "max_length": cut.max_length,
            "events_lost": cut.lost,
            "straggler": with_cut["straggler"][method],
            "straggler_error": with_cut["straggler_error"][method],
            "straggler_uncut": without["straggler"][method],
            "straggler_uncut_error": without["straggler_error"][method],
        }
    uncut = (
        f"max_length: the longest history, {chosen.max_length:,} events. Nothing is cut off: on {chosen.ranks} ranks "
        f"of {chosen.batch_size} samples no single sample outweighs a mean rank (lower bound "
        f"{_share(found['lower_bound'])})."
    )
    advice["why"] = [
        *(cut_sentences(advice) or [uncut]),
        *_why_method(chosen, found, method, caps),
        f"max_tokens: {caps[method]:,} is room for the longest sample, and for a quarter more than the "
        f"{found['fullest'][method]:,} events of the fullest rank in {chosen.steps} simulated steps. Rows of a "
        "step that needs more come in the next step.",
    ]
    return advice


def cut_sentences(advice: Mapping[str, Any]) -> list[str]:
    """What is cut off, and what that brings: never one without the other. Empty if no cut is needed."""
    price = advice["even_cut"]
    if price is None:
        return []
    lost = _share(price["events_lost"])
    cut = _share(price["straggler"], price["straggler_error"])
    uncut = _share(price["straggler_uncut"], price["straggler_uncut_error"])
    if advice["max_length"] == price["max_length"]:
        first = (
            f"max_length={price['max_length']} cuts off {lost} of the events: balanced ranks wait {cut} of a step, and "
            f"{uncut} uncut."
        )
    else:
        first = (
            f"Nothing is cut off: balanced ranks wait {uncut} of a step. max_length={price['max_length']} would leave "
            f"{cut}, and lose {lost} of the events."
        )
    return [first, "The trade-off table of the profile shows what other lengths and batch sizes cost."]


def _why_method(chosen: Setting, found: Mapping[str, Any], method: str, caps: Mapping[str, int]) -> list[str]:
    shares = {of: _share(share, found["straggler_error"][of]) for of, share in found["straggler"].items()}
    waits = f"{shares[method]} of the time to waiting where unbalanced ranks wait {shares[UNPACKED]}"
    if method == "vbs":
        equal = f"equal numbers of samples would leave {shares['fbs+swap']}. Use global_mean for the loss."
        sentences = [f"method: vbs leaves {waits}; {equal}"]
    else:
        sentences = [f"method: {method} leaves {waits}; every rank keeps its number of samples."]
        if chosen.ranks > chosen.node > 1:
            options = balance_options("hierarchical", chosen, caps["hierarchical"])
            given = ", ".join(f"{name}={value!r}" for name, value in options.items())
            few = f"{shares['hierarchical']}, and few samples leave their node."
            sentences.append(f"On slow links between nodes try {given}: {few}")
    sentences.append(f"cost: a sample costs {chosen.cost!r}; `freescale calibrate` fits it to your model's step times.")
    return sentences


def _share(share: float, error: float | None = None) -> str:
    """A share as percent, without digits below its standard error."""
    return percent(share, error).replace("\u00a0", " ")


def _three_digits(value: float) -> int:
    """Rounded up."""
    unit = max(10 ** (len(str(int(value))) - 3), 1)
    return int(-(-value // unit)) * unit
