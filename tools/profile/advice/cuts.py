"""Where histories may be cut: the longest cut at which plans can be even, and whether it is worth its events.

Where one history outweighs what a mean rank holds, all others wait for its rank, whatever the plan. The *even cut* is
the longest max_length at which that costs less than 1 % of a step (lower bound of plans with equal counts). A shorter
cut would lose events for nothing.

Events are what a model learns from, so they are not given away for time by default. The even cut is recommended only if
it loses at most 5 % of the events, and less of the events than of the time that ranks would wait without it. Else
nothing is cut, and what a cut would bring and lose stands beside the recommendation.
"""

import dataclasses

import numpy as np

from freescale_tools.simulate.batches import Samples, Setting
from fsdata.balance.cost import CANDIDATES
from fsdata.balance.packing import pack

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
