"""How sure it is what ranks lose to the slowest one: by cost model, order, and draws of the steps.

A plan is made by the cost model that the pasted code names, and ranks take what samples really cost. Without a
calibration that may be anything from L (tokens) to L^2 (pure attention); with one it is the fitted model, within its
error. The loader deals rows in file order or shuffled. And an epoch is one draw of its steps: they are drawn again,
with replacement (bootstrap).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from freescale_tools.model.batches import PACKED, UNPACKED, Samples, Setting, Waits, deal_out
from freescale_tools.scan.batch_order import DEALT
from fsdata.balance.cost import Power

_ALPHAS = (1.0, 1.25, 1.5, 1.75, 2.0)
_DRAWS = 400
_WITHIN = (5, 95)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """The loads of ranks in the steps of an epoch, in every order and by every cost model that they may have.

    Attributes:
        loads: by order and place of the cost model (0: that of the plan), method -> [S, W]. S differs by order.
        stands_for: order -> float64 [S], steps of the epoch that each one stands for.
        error: what a rank takes differs so much from the cost of its samples, as a share; its standard deviation.
    """

    loads: Mapping[tuple[str, int], Mapping[str, np.ndarray]]
    stands_for: Mapping[str, np.ndarray]
    error: float

    def draw(self, generator: np.random.Generator) -> dict[str, float]:
        """Method -> time lost, of one draw of cost model, order and steps. Both methods have the same steps."""
        choices = list(self.loads)
        order, place = choices[int(generator.integers(len(choices)))]
        stands_for = self.stands_for[order]
        steps = len(stands_for)
        drawn = stands_for * generator.multinomial(steps, np.full(steps, 1 / steps))
        found = {}
        for method, load in self.loads[order, place].items():
            off = np.maximum(1 + self.error * generator.standard_normal(load.shape), 0.0) if self.error else 1.0
            found[method] = Waits.of(load * off, drawn).time_lost()[0]
        return found

    def interval(self) -> dict[str, list[float]]:
        """Method -> the two shares of time lost between which 90 % of the draws are."""
        generator = np.random.default_rng(0)
        drawn = [self.draw(generator) for _ in range(_DRAWS)]
        return {
            method: np.percentile([one[method] for one in drawn], _WITHIN).tolist() for method in (UNPACKED, PACKED)
        }

    def in_orders(self) -> dict[str, dict[str, Any]]:
        """Order -> {steps, straggler, time_lost}, shares by method, with the cost model of the plan."""
        return {
            order: {
                "steps": round(float(stands_for.sum())),
                "straggler": {name: Waits.of(load, stands_for).straggler()[0] for name, load in loads.items()},
                "time_lost": {name: Waits.of(load, stands_for).time_lost()[0] for name, load in loads.items()},
            }
            for order, stands_for in self.stands_for.items()
            for loads in [self.loads[order, 0]]
        }


def waiting(
    samples: Samples, setting: Setting, method: str, max_tokens: int | None = None, *, error: float | None = None
) -> Waiting:
    """Of the batches of `setting` in both orders, plain and balanced by `method`.

    error: of the cost model of the setting, if it was measured; None varies the model.
    """
    costs = (setting.cost, *(() if error is not None else (Power(alpha=alpha) for alpha in _ALPHAS)))
    caps = {} if max_tokens is None else {method: max_tokens}
    loads, stands_for = {}, {}
    for order in DEALT:
        found = deal_out(
            samples, dataclasses.replace(setting, order=order), methods=(method,), max_tokens=caps, costs=costs
        )
        stands_for[order] = found.stands_for
        for place in range(len(costs)):
            loads[order, place] = {UNPACKED: found.loads[UNPACKED, place], PACKED: found.loads[method, place]}
    return Waiting(loads=loads, stands_for=stands_for, error=error or 0.0)
