"""How sure it is what ranks lose to the slowest one: by cost model, order, and draws of the steps.

A plan is made by the cost model that the pasted code names, and ranks take what samples really cost. Without a
calibration that may be anything from L (tokens) to L^2 (pure attention); with one it is the fitted model, within its
error. The loader deals rows in file order, or shuffled by any seed. And an epoch is one draw of its steps: they are
drawn again, with replacement (bootstrap).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.model.batches import PACKED, UNPACKED, Samples, Setting, Simulated, Waits, deal_out
from freescale_tools.scan.batch_order import DEALT
from fsdata.balance.cost import Power

_ALPHAS = (1.0, 1.25, 1.5, 1.75, 2.0)
_SEEDS = 4  # of the shuffled order
_MOST = 128  # steps of all seeds but the first
_DRAWS = 400
_WITHIN = (5, 95)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """The steps of epochs, plain and balanced, by every cost model that samples may have.

    Attributes:
        epochs: simulated ones by order, of several seeds where it is shuffled.
        method: that balances.
        costs: how many cost models there are; the first is that of the plan.
        error: what a rank takes differs so much from the cost of its samples, as a share; its standard deviation.
    """

    epochs: Mapping[str, Sequence[Simulated]]
    method: str
    costs: int
    error: float

    def draw(self, generator: np.random.Generator) -> dict[str, float]:
        """Time lost, `none` and `balanced`, of one draw of order, seed, cost model and steps; both of the same ones."""
        of_order = self.epochs[list(self.epochs)[int(generator.integers(len(self.epochs)))]]
        epoch = of_order[int(generator.integers(len(of_order)))]
        place, steps = int(generator.integers(self.costs)), len(epoch.stands_for)
        drawn = epoch.stands_for * generator.multinomial(steps, np.full(steps, 1 / steps))
        found = {}
        for name, method in ((UNPACKED, UNPACKED), (PACKED, self.method)):
            load = epoch.loads[method, place]
            off = np.maximum(1 + self.error * generator.standard_normal(load.shape), 0.0) if self.error else 1.0
            found[name] = Waits.of(load * off, drawn).time_lost()[0]
        return found

    def interval(self) -> dict[str, list[float]]:
        """Time lost, `none` and `balanced`: two shares between which 90 % of the draws are, and those of both orders."""
        generator = np.random.default_rng(0)
        drawn = [self.draw(generator) for _ in range(_DRAWS)]
        found = {}
        for name in (UNPACKED, PACKED):
            known = [one["time_lost"][name] for one in self.in_orders().values()]
            low, high = np.percentile([one[name] for one in drawn], _WITHIN).tolist()
            found[name] = [min(low, *known), max(high, *known)]
        return found

    def in_orders(self) -> dict[str, dict[str, Any]]:
        """Order -> {steps, straggler, time_lost}: shares, `none` and `balanced`, with the cost model of the plan."""
        found = {}
        for order, (epoch, *_) in self.epochs.items():
            waits = {UNPACKED: epoch.waits(UNPACKED), PACKED: epoch.waits(self.method)}
            found[order] = {
                "steps": round(float(epoch.stands_for.sum())),
                "straggler": {name: of.straggler()[0] for name, of in waits.items()},
                "time_lost": {name: of.time_lost()[0] for name, of in waits.items()},
            }
        return found


def waiting(samples: Samples, setting: Setting, method: str, *, error: float | None = None) -> Waiting:
    """Of the batches of `setting` in both orders, plain and balanced by `method` without a cap on tokens.

    error: of the cost model of the setting, if it was measured; None varies the model.
    """
    costs = (setting.cost, *(() if error is not None else (Power(alpha=alpha) for alpha in _ALPHAS)))

    def epoch(order: str, seed: int) -> Simulated:
        return deal_out(
            samples if seed == 0 else dataclasses.replace(samples, seed=samples.seed + seed),
            dataclasses.replace(setting, order=order),
            methods=(method,),
            costs=costs,
            most=None if seed == 0 else _MOST,
        )

    epochs = {order: [epoch(order, seed) for seed in range(_SEEDS if order == "shuffled" else 1)] for order in DEALT}
    return Waiting(epochs=epochs, method=method, costs=len(costs), error=error or 0.0)
