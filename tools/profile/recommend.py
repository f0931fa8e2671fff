"""Recommends settings: where to cut histories, how to balance, what memory a rank needs, and code to paste.

What is quoted is what the code does: the plans are simulated with the options that the code gives to `fsdata.Balance`.

Where one history outweighs what a mean rank holds, all others wait for its rank, whatever the plan. The *even cut* is
the longest max_length at which less than 1 % of the time is lost to that (lower bound of plans with equal counts). A
shorter cut would lose events for nothing. Events are what a model learns from, so they are not given away for time by
default: the even cut is recommended only if it loses at most 5 % of the events, and less of the events than of the time
that ranks would wait without it; or if it touches at most one row in 10,000, so that a single giant history stops no
cluster. Else nothing is cut, and what a cut would bring and lose stands beside the recommendation.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from freescale_tools.model.batches import UNPACKED, Samples, Setting, Waits, balance_options, simulate_setting
from freescale_tools.report.numbers import percent
from freescale_tools.scan.batch_order import DEALT
from fsdata.balance.cost import CANDIDATES
from fsdata.balance.packing import pack

_METHODS = ("fbs+swap", "vbs", "hierarchical")  # that are recommended or named beside it
_HEADROOM = 1.25  # memory limit over the fullest rank of the simulated steps
_WORTH = 0.01  # smallest gain in time lost for which variable counts are proposed
_BOUND = 0.01  # largest lower bound of an even plan: about the error of a cost model
_LOST = 0.05  # most events that a recommended cut loses
_GIANTS = 1e-4  # so few rows may lose more than that: a few giant ones
_COARSE = 10  # a length is rounded down to tens
_TRIED = 64  # steps that lengths to cut at are tried on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvenCut:
    """The longest max_length at which plans can be even.

    Attributes:
        uncut: the settings with whole histories.
        max_length: that of `uncut` if no cut is needed.
        lost: share of the events that it cuts off.
        touched: share of the rows that it cuts.
        bound: time lost without a cut, whatever the plan: lower bound of plans with equal counts.
    """

    uncut: Setting
    max_length: int
    lost: float
    touched: float
    bound: float

    @property
    def needed(self) -> bool:
        return self.max_length < self.uncut.max_length

    @property
    def recommended(self) -> int:
        """The recommended max_length: that of the cut, or of no cut."""
        worth = self.lost <= min(_LOST, self.bound) or 0 < self.touched <= min(_GIANTS, self.bound)
        return self.max_length if worth else self.uncut.max_length


def even_cut(samples: Samples, uncut: Setting) -> EvenCut:
    """The even cut of `samples`, by bisection on the batches of `uncut`."""
    steps, weight = samples.steps(uncut, most=_TRIED)
    dealt = [samples.lengths(uncut, *step) for step in steps]

    def bound(length: int) -> float:
        mean, most = [], []
        for one in dealt:
            cut = {name: of if name == CANDIDATES else np.minimum(of, length) for name, of in one.items()}
            cost = uncut.cost(cut)
            mean.append(float(cost.sum()) / uncut.ranks)
            most.append(mean[-1] / (1 - pack(cost, uncut.ranks, method="fbs").lower_bound))
        return Waits(mean=np.array(mean), most=np.array(most), weight=weight).time_lost()[0]

    low, high = 1, uncut.max_length
    without = bound(high)
    if without < _BOUND:
        return EvenCut(uncut=uncut, max_length=high, lost=0.0, touched=0.0, bound=without)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle) < _BOUND else (low, middle)
    length = low - low % _COARSE if low >= 10 * _COARSE else low
    histogram = samples.histogram
    lost, touched = 1.0 - histogram.kept_share(length), histogram.longer_share(length)
    return EvenCut(uncut=uncut, max_length=length, lost=lost, touched=touched, bound=without)


def recommend(samples: Samples, cut: EvenCut, *, max_length: int | None = None) -> dict[str, Any]:
    """Settings for the ranks, batch size and cost model of `cut.uncut`, and the reasons. `max_length`: as asked for.

    `even_cut` of the document: what the cut at which plans can be even would lose and bring, whether it is recommended
    or not; None if nothing has to be cut for it. `single`: share of what unbalanced ranks wait that no plan with equal
    counts takes away, because single samples outweigh a mean rank.
    """
    chosen = dataclasses.replace(cut.uncut, max_length=max_length or cut.recommended)
    # A loader refuses a sample with more tokens than max_tokens, and no simulated step may have drawn the longest.
    longest = min(samples.histogram.longest, chosen.max_length)
    longest += samples.candidates.longest if samples.candidates else 0
    # Rows in file order may be long together, which shuffling spreads: the code has room for both orders.
    dealt = [simulate_setting(samples, dataclasses.replace(chosen, order=order), methods=_METHODS) for order in DEALT]
    fullest = {method: max(one["fullest"][method] for one in dealt) for method in _METHODS}
    caps = {method: max(_three_digits(fullest[method] * _HEADROOM), longest) for method in _METHODS}
    found = simulate_setting(samples, chosen, methods=_METHODS, max_tokens=caps)
    # Equal counts, unless variable counts gain enough: they change the weight of a sample in means.
    lost, errors = found["time_lost"], found["time_lost_error"]
    method = "vbs" if lost["vbs"] < lost["fbs+swap"] - _WORTH else "fbs+swap"
    waits, alone = (share / (1 - share) for share in (lost[UNPACKED], found["bound_time_lost"]))
    advice = {
        "max_length": chosen.max_length,
        "method": method,
        "cost_model": repr(chosen.cost),
        "max_tokens": caps[method],
        "events_cut": 1.0 - samples.histogram.kept_share(chosen.max_length),
        "rows_cut": samples.histogram.longer_share(chosen.max_length),
        **{
            f"{name}{suffix}{kind}": found[f"{name}{kind}"][of]
            for name in ("straggler", "time_lost")
            for suffix, of in (("", method), ("_none", UNPACKED))
            for kind in ("", "_error")
        },
        "lower_bound": found["lower_bound"],
        "single": min(alone / waits, 1.0) if waits > 0 else 0.0,
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
            "rows_touched": cut.touched,
            "time_lost": with_cut["time_lost"][method],
            "time_lost_error": with_cut["time_lost_error"][method],
            "time_lost_uncut": without["time_lost"][method],
            "time_lost_uncut_error": without["time_lost_error"][method],
        }
    uncut = (
        f"max_length: the longest history, {chosen.max_length:,} events. Nothing is cut off: on {chosen.ranks} ranks "
        f"of {chosen.batch_size} samples no single sample outweighs a mean rank (lower bound "
        f"{_share(found['lower_bound'])})."
    )
    advice["why"] = [
        *(cut_sentences(advice) or [uncut]),
        *_why_method(chosen, lost, errors, method),
        f"max_tokens: {caps[method]:,} is room for the longest sample, and for a quarter more than the "
        f"{fullest[method]:,} events of the fullest rank in the simulated steps, shuffled or in file order. Rows of a "
        "step that needs more come in the next step.",
    ]
    return advice


def cut_sentences(advice: Mapping[str, Any]) -> list[str]:
    """What is cut off, and what that brings: never one without the other. Empty if no cut is needed."""
    price = advice["even_cut"]
    if price is None:
        return []
    lost, touched = _share(price["events_lost"]), _share(price["rows_touched"])
    cut = _share(price["time_lost"], price["time_lost_error"])
    uncut = _share(price["time_lost_uncut"], price["time_lost_uncut_error"])
    if advice["max_length"] == price["max_length"]:
        first = (
            f"max_length={price['max_length']} cuts off {lost} of the events, in {touched} of the rows: balanced ranks "
            f"lose {cut} of the time to waiting, and {uncut} uncut."
        )
    else:
        kept = "Nothing is cut off" if not advice["events_cut"] else f"max_length={advice['max_length']} as asked for"
        first = (
            f"{kept}: whole histories lose {uncut} of the time to waiting, though balanced. "
            f"max_length={price['max_length']} would leave {cut}, and lose {lost} of the events, in {touched} of the "
            "rows."
        )
    return [first, "The trade-off table of the profile shows what other lengths and batch sizes cost."]


def _why_method(chosen: Setting, lost: Mapping[str, float], errors: Mapping[str, float], method: str) -> list[str]:
    shares = {of: _share(share, errors[of]) for of, share in lost.items()}
    waits = f"{shares[method]} of the time to waiting where unbalanced ranks lose {shares[UNPACKED]}"
    if method == "vbs":
        equal = f"equal numbers of samples would leave {shares['fbs+swap']}. Use global_mean for the loss."
        sentences = [f"method: vbs leaves {waits}; {equal}"]
    else:
        sentences = [f"method: {method} leaves {waits}; every rank keeps its number of samples."]
        if chosen.ranks > chosen.node > 1:
            given = ", ".join(f"{name}={value!r}" for name, value in balance_options("hierarchical", chosen).items())
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
