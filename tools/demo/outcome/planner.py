"""The straggler share that a cost model predicts for the samples of the demo at other numbers of ranks.

Letters: S steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from freescale_tools.demo.training.measure import Run, straggler
from fsdata import pack

NO_FLOOR = 0.01  # smaller floors of the straggler share do not matter

Cost = Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Straggler shares that a cost model predicts for `world_size` ranks. No plan gets below `floor`."""

    world_size: int
    max_length: int | None  # events kept of a history for this plan; None: as in the job
    plain: float
    balanced: float
    floor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """Plans the same samples for other numbers of ranks.

    lengths: int64 [samples], in order; name: of the sequence.
    """

    lengths: np.ndarray
    cost: Cost
    name: str
    batch_size: int

    def plan(self, world_size: int, max_length: int | None = None) -> Planned | None:
        """Plan the samples in order, and balanced. None if they do not fill one global batch."""
        size = world_size * self.batch_size
        steps = len(self.lengths) // size
        if steps == 0:
            return None
        kept = self.lengths[: steps * size]
        costs = self._costs(kept if max_length is None else np.minimum(kept, max_length)).reshape(steps, size)
        plans = [pack(of_step, world_size) for of_step in costs]
        mean = costs.sum(1) / world_size
        lightest = mean / (1 - np.array([plan.lower_bound for plan in plans]))
        return Planned(
            world_size=world_size,
            max_length=max_length,
            plain=straggler(costs.reshape(steps, world_size, self.batch_size).sum(2)),
            balanced=straggler(np.array([plan.load for plan in plans])),
            floor=float(1 - mean.sum() / lightest.sum()),
        )

    def plan_cut(self, world_size: int) -> Planned | None:
        """The plan with histories cut to the largest power of two at which the floor does not matter."""
        longest = int(self.lengths.max(initial=0))
        for bits in range(longest.bit_length() - 1, 3, -1):
            found = self.plan(world_size, 1 << bits)
            if found is None or found.floor <= NO_FLOOR:
                return found
        return None

    def floors(self, run: Run) -> np.ndarray:
        """float64 [S]: the lowest straggler share any plan of the run's global batches can have."""
        batches = [np.concatenate([step.lengths for step in steps]) for steps in zip(*run.ranks, strict=True)]
        return np.array([pack(self._costs(batch), len(run.ranks)).lower_bound for batch in batches])

    def _costs(self, lengths: np.ndarray) -> np.ndarray:
        return self.cost({self.name: lengths})
