"""Uncertainty of the time lost to stragglers: cost model, order of the rows, sampled steps.

Plans use the cost model of the pasted code; the seconds of a rank follow the true cost of its samples. Without a
calibration the true cost may be anything from L (tokens) to L^2 (pure attention); with one it is the fitted model,
within its residual error. The loader deals rows in file order, or shuffled by any seed. The steps of an epoch are
resampled with replacement (bootstrap).
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
    """Simulated epochs, plain and balanced, under every candidate cost model.

    Attributes:
        epochs: by order; several seeds of the shuffled order.
        method: of the balanced batches.
        costs: number of cost models; the first is that of the plan.
        error: standard deviation of a rank's seconds relative to the cost of its samples.
    """

    epochs: Mapping[str, Sequence[Simulated]]
    method: str
    costs: int
    error: float

    def draw(self, generator: np.random.Generator) -> dict[str, float]:
        """Time lost, `none` and `balanced`, for one draw of order, seed, cost model and steps, which both share."""
        of_order = self.epochs[list(self.epochs)[int(generator.integers(len(self.epochs)))]]
        epoch = of_order[int(generator.integers(len(of_order)))]
        place, steps = int(generator.integers(self.costs)), len(epoch.weight)
        drawn = epoch.weight * generator.multinomial(steps, np.full(steps, 1 / steps))
        found = {}
        for name, method in ((UNPACKED, UNPACKED), (PACKED, self.method)):
            load = epoch.loads[method, place]
            off = np.maximum(1 + self.error * generator.standard_normal(load.shape), 0.0) if self.error else 1.0
            found[name] = Waits.of(load * off, drawn).time_lost()[0]
        return found

    def interval(self) -> dict[str, list[float]]:
        """90 % interval of the time lost, `none` and `balanced`; it includes the values of `in_orders`."""
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
                "steps": round(float(epoch.weight.sum())),
                "straggler": {name: of.straggler()[0] for name, of in waits.items()},
                "time_lost": {name: of.time_lost()[0] for name, of in waits.items()},
            }
        return found


def waiting(samples: Samples, setting: Setting, method: str, *, error: float | None = None) -> Waiting:
    """For the batches of `setting` in both orders, plain and balanced by `method` without a cap on tokens.

    error: residual error of the setting's cost model, if it was measured; None varies the cost model instead.
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
