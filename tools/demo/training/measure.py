"""Defines what a run measures, and the figures that follow from it.

*Compute time* of a rank is the CPU time of its training thread for forward, backward and optimizer, on one
core. Waiting uses no CPU, so time that a rank waits for a slower rank does not count. *Straggler share* is 1
- mean / max of the ranks' compute time, weighted by the length of the step: the share of all ranks' time that
is spent waiting for the slowest rank.

*Exposed* communication and *late* come from fsmeter.BubbleMeter in every run. Exposed is wall time that the
training thread is blocked on an exchange after all ranks have begun it; late is the time before that.

*NE*, normalized entropy, is the log loss divided by the log loss of guessing. Guessing among one item and N
negatives has the log loss ln(N + 1).

Letters: S steps, W ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fsmeter.intervals import KINDS, BubbleReport, StepTimes

WARMUP = 2  # first steps that no time includes: allocations, first exchange, page faults


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of one rank.

    Times in seconds: `wall` from the request of the batch to the end of the update, `compute` CPU time of the
    training thread without data loading. `loss` sums over the samples. `lengths` int64 [samples]. `held`: events
    in the batch, fewer than the samples see if they share some. `checksum` is the sum of all ids that the samples
    see; its sum over all ranks shows whether two runs saw the same samples.
    """

    wall: float
    compute: float
    loss: float
    lengths: np.ndarray
    held: int
    checksum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """All ranks' steps of one run.

    `parts`: seconds of a step by part, from `typical`. `guess`: log loss of guessing. `collisions`: share of
    the ids whose row the step before used too; None if not counted. `weights`: a fingerprint of each rank's
    final weights. `fallbacks`: modules that ran without prioritized communication, and why.
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
        """NE of the `last` steps, or of all steps. Only samples with an event to predict count."""
        steps = [step for of_rank in self.ranks for step in of_rank[-(last or 0) :]]
        predicted = sum(int((step.lengths > 1).sum()) for step in steps)
        return sum(step.loss for step in steps) / (max(predicted, 1) * self.guess)

    @property
    def held(self) -> float:
        """Events in the batches, for each event that a sample sees."""
        steps = [step for of_rank in self.ranks for step in of_rank]
        return sum(step.held for step in steps) / max(sum(int(step.lengths.sum()) for step in steps), 1)

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
    """Seconds of each kind of exposed communication, and `late`: mean of the ranks, median of the steps."""
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
    """Raise RuntimeError unless all runs trained on the same global batches."""
    first = runs[0]
    for other in runs[1:]:
        for step, (one, two) in enumerate(zip(first.checksums, other.checksums, strict=True)):
            if one != two:
                raise RuntimeError(f"step {step}: {first.name} and {other.name} trained on different samples")
