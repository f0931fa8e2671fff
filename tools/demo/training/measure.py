"""What a run measured, and the numbers that are drawn from it.

A rank's *compute time* is the CPU time of its training thread over forward, backward and optimizer, on one core.
Waiting costs no CPU, so a rank that sits in an embedding exchange until its slower peer arrives is not charged for it.
The straggler share is 1 - mean / max of the ranks' compute time, weighted by the length of the step: the share of all
ranks' time that was spent waiting for the slowest one.

*Exposed* communication and *late* are fscomm.BubbleMeter's, in every run alike: the wall time that the training thread
was blocked on an exchange after, and before, every rank had issued its part of it.

*NE*, normalized entropy, is the log loss over that of a guess: a next item among N negatives is guessed with ln(N + 1).

Letters: S steps, W ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fscomm.meter_steps import KINDS, BubbleReport, StepTimes
from fsdata import pack

WARMUP = 2  # first steps left out of every time: allocations, first exchange, page faults
NO_FLOOR = 0.01  # a lowest straggler share that is no obstacle

Cost = Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of one rank.

    Times in seconds: `wall` from asking for the batch to the end of the update, `compute` CPU time of the training
    thread without data loading. `loss` sums over the samples. `lengths` int64 [samples].
    `checksum` adds up all ids of the batch, so that it shows over all ranks which samples a step saw.
    """

    wall: float
    compute: float
    loss: float
    lengths: np.ndarray
    checksum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Every rank's steps, trained in one way.

    `parts`: seconds of a step by part, from `typical`. `guess`: log loss of guessing.
    `collisions`: share of the ids whose row the step before used too, None where nobody counted. `weights`: of each
    rank, a fingerprint of all weights at the end. `fallbacks`: modules that ran plainly although they should not, and
    why.
    """

    name: str
    ranks: Sequence[Sequence[Step]]
    parts: Mapping[str, float]
    guess: float
    collisions: float | None = None
    weights: Sequence[str] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)

    def times(self, what: str) -> np.ndarray:
        """float64 [S, W] of `wall` or `compute`, in seconds."""
        return np.array([[getattr(step, what) for step in steps] for steps in self.ranks]).T

    def normalized_entropy(self, last: int | None = None) -> float:
        """Over the samples of the last so many steps, or of all, that have an event to predict."""
        steps = [step for of_rank in self.ranks for step in of_rank[-(last or 0) :]]
        predicted = sum(int((step.lengths > 1).sum()) for step in steps)
        return sum(step.loss for step in steps) / (max(predicted, 1) * self.guess)

    @property
    def losses(self) -> np.ndarray:
        """float64 [S]: mean over the samples of the global batch."""
        total = np.array([[step.loss for step in steps] for steps in self.ranks]).sum(0)
        return total / np.array([[len(step.lengths) for step in steps] for steps in self.ranks]).sum(0)

    @property
    def checksums(self) -> list[int]:
        return [sum(step.checksum for step in steps) % (1 << 64) for steps in zip(*self.ranks, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One row of the demo's table."""

    straggler: float  # 0..1
    exposed_ms: float
    late_ms: float
    step_ms: float
    last_loss: float  # of the last quarter, as is `ne`
    ne: float


def typical(report: BubbleReport) -> dict[str, float]:
    """Seconds of each kind of exposed communication, and `late`: means over the ranks, medians over the steps."""
    by_step: dict[int, list[StepTimes]] = {}
    for times in report.steps:
        by_step.setdefault(times.step, []).append(times)
    parts = {
        kind: [np.mean([each.exposed[kind] for each in of_step]) for of_step in by_step.values()] for kind in KINDS
    }
    parts["late"] = [np.mean([each.straggler or 0.0 for each in of_step]) for of_step in by_step.values()]
    return {part: float(np.median(times)) if times else 0.0 for part, times in parts.items()}


def straggler(load: np.ndarray) -> float:
    """Share of waiting of loads [S, W]: 1 - sum of means / sum of maxima."""
    return float(1 - load.mean(1).sum() / max(load.max(1).sum(), 1e-12))


def summarize(run: Run) -> Summary:
    wall = run.times("wall")[WARMUP:].max(1)
    tail = max(len(run.losses) // 4, 1)
    return Summary(
        straggler=straggler(run.times("compute")[WARMUP:]),
        exposed_ms=1e3 * sum(run.parts[kind] for kind in KINDS),
        late_ms=1e3 * run.parts["late"],
        step_ms=1e3 * float(np.median(wall)),
        last_loss=run.losses[-tail:].mean(),
        ne=run.normalized_entropy(tail),
    )


def check_same_samples(runs: Sequence[Run]) -> None:
    """Raise if the runs did not train on the same global batches."""
    first = runs[0]
    for other in runs[1:]:
        for step, (one, two) in enumerate(zip(first.checksums, other.checksums, strict=True)):
            if one != two:
                raise RuntimeError(f"step {step}: {first.name} and {other.name} trained on different samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Straggler share that a cost model predicts for so many ranks; `floor` is what no plan can beat."""

    world_size: int
    max_length: int | None  # events kept of a history for this plan; None: as in the job
    plain: float
    balanced: float
    floor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """Plans the same samples for other numbers of ranks. lengths int64 [samples], in order; name: of their sequence."""

    lengths: np.ndarray
    cost: Cost
    name: str
    batch_size: int

    def plan(self, world_size: int, max_length: int | None = None) -> Planned | None:
        """Deal the samples in order and balanced; None if they do not fill one global batch."""
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
        """The plan with histories cut to the largest power of two at which nothing stands in the way of balance."""
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
