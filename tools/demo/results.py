"""What the demo's runs came to: numbers of measured steps, and what must be equal.

*Compute time* of a rank is the CPU time of its training thread for forward, backward and optimizer, on one core.
Waiting uses no CPU, so time that a rank waits for a slower rank does not count. *Straggler share* of a step is 1 - mean
/ max of the ranks' compute time, the share of a step that ranks wait for the slowest; that of a run is the mean over
its steps. *Planned* is the same with the costs that the cost model gives to the samples in place of the time.

*Waits for links*, the exposed communication, and *waits for stragglers* come from fsmeter.BubbleMeter: wall time that
the training thread is blocked on an exchange after all ranks have begun it, and before that.

*NE*, normalized entropy, is the log loss divided by that of guessing, ln(256) for 256 groups of items.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from freescale_tools.console.errors import CommandFailed
from freescale_tools.demo.data import HISTORY
from fscomm.report.report import Forwards, Managed
from fsdata import Polynomial
from fsdata.balance.packing.plan import straggler_share
from fsmeter.intervals import KINDS

WARMUP = 2  # first steps that no time includes: allocations, first exchange, page faults
STEPS_PER_HOUR = 4  # of the clock by which ids expire: what was fetched ahead of a new hour is of no use
GUESSED = math.log(256)
_CLOSE = 1e-4  # of losses of the first step, whose samples are added in another order


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of one rank.

    `loss` sums over the samples. `lengths` int64 [samples]. `stored`: events in the batch, fewer than the samples see
    if they share some. `checksum` is the sum of all rows that the samples see.
    """

    compute_ns: int
    loss: float
    lengths: np.ndarray
    stored: int
    checksum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training of the model.

    Attributes:
        like: the name of the run with which it must be bitwise identical; empty: none.
        steps: [steps][ranks].
        seconds: mean seconds of a step by part, see `BubbleReport.mean`.
        weights: a fingerprint of each rank's final weights.
        collisions: share of the ids whose row the step before used too; None if not counted.
        fallbacks: modules that ran without prioritized communication, and why.
        zch: its tables are behind managed collision.
        managed: counts of all ranks by table behind managed collision; empty if not counted.
        forwards: of a rank in training, of all modules.
    """

    name: str
    like: str = ""
    steps: tuple[tuple[Step, ...], ...]
    seconds: Mapping[str, float]
    weights: tuple[str, ...] = ()
    collisions: float | None = None
    fallbacks: Mapping[str, str]
    zch: bool = False
    managed: Mapping[str, Managed] = field(default_factory=dict)
    forwards: Forwards = field(default_factory=Forwards)

    @property
    def timed(self) -> tuple[tuple[Step, ...], ...]:
        """Those that count for times; all if there are no others."""
        return self.steps[WARMUP:] or self.steps

    @property
    def straggler(self) -> float:
        shares = [straggler_share(np.array([rank.compute_ns for rank in step])) for step in self.timed]
        return float(np.mean(shares))

    def planned(self, cost: Polynomial) -> float:
        loads = [[cost({HISTORY: rank.lengths}).sum() for rank in step] for step in self.timed]
        return float(np.mean([straggler_share(np.array(load)) for load in loads]))

    @property
    def compute_s(self) -> float:
        """Mean compute time of a rank in a step, seconds."""
        return float(np.mean([[rank.compute_ns for rank in step] for step in self.timed])) / 1e9

    @property
    def step_s(self) -> float:
        """Mean wall time of a step, seconds."""
        return self.seconds["seconds"]

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return sum(len(rank.lengths) for rank in self.steps[0]) / self.step_s

    @property
    def waits_for_stragglers(self) -> float:
        """Seconds of a step."""
        return self.seconds["straggler"]

    @property
    def exposed(self) -> float:
        """Seconds of a step that wait for links."""
        return sum(self.seconds[kind] for kind in KINDS)

    @property
    def losses(self) -> np.ndarray:
        """float64 [S]: mean over the samples of the global batch."""
        return np.array([sum(r.loss for r in step) / sum(len(r.lengths) for r in step) for step in self.steps])

    @property
    def last(self) -> tuple[float, float]:
        """(loss, NE) of the last quarter of the steps. NE counts samples with an event to predict only."""
        tail = max(len(self.steps) // 4, 1)
        ranks = [rank for step in self.steps[-tail:] for rank in step]
        predicted = sum(int((rank.lengths > 1).sum()) for rank in ranks)
        return float(self.losses[-tail:].mean()), sum(rank.loss for rank in ranks) / (max(predicted, 1) * GUESSED)

    @property
    def stored(self) -> float:
        """Events in the batches, for each event that a sample sees."""
        ranks = [rank for step in self.steps for rank in step]
        return sum(rank.stored for rank in ranks) / max(sum(int(rank.lengths.sum()) for rank in ranks), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """Runs of one job on the same samples and links.

    Attributes:
        links: between the ranks, in a few words.
        collisions: share of ids whose row the step before uses, which the set was made for; None: as it comes.
        runs: the first one is plain.
        references: runs that others must be identical with, and which are not measured.
        cost: of a sample, fitted on the first run; None where nothing is balanced.
    """

    links: str
    collisions: float | None = None
    runs: tuple[Run, ...]
    references: tuple[Run, ...] = ()
    cost: Polynomial | None = None

    @property
    def plain(self) -> Run:
        return self.runs[0]

    def run(self, name: str) -> Run | None:
        """The run of that name, if there is one."""
        return next((run for run in (*self.runs, *self.references) if run.name == name), None)

    @property
    def rate(self) -> float:
        """Share of ids in collision: what was measured, else what the set was made for."""
        measured = [run.collisions for run in self.runs if run.collisions is not None]
        return measured[0] if measured else self.collisions or 0.0

    def gain(self, name: str) -> float:
        """Share of a plain step that the run of that name saves; negative where it costs."""
        run = self.run(name)
        assert run is not None
        return 1 - run.step_s / self.plain.step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What all acts came to: balancing first, on links of memory; then communication, on a link, set by set."""

    balancing: Act
    communication: tuple[Act, ...] = ()

    @property
    def acts(self) -> tuple[Act, ...]:
        return (self.balancing, *self.communication)


def check(act: Act) -> dict[str, str | None]:
    """The first difference of each run from the one it must be identical with, by name; None: bitwise identical.

    Raises CommandFailed if runs trained on different samples.
    """
    found = {}
    for run in act.runs:
        check_same_samples(act.plain, run)
        if run.like:
            reference = act.run(run.like)
            assert reference is not None
            found[run.name] = difference(reference, run)
    return found


def check_same_samples(first: Run, other: Run) -> None:
    """Raise CommandFailed unless both runs trained on the same global batches, and began with the same loss.

    If the tables of one of them are behind managed collision, they have other rows, and another loss.
    """
    for number, (one, two) in enumerate(zip(first.steps, other.steps, strict=True)):
        same = sum(rank.checksum for rank in one) == sum(rank.checksum for rank in two)
        left, right = (np.sort(np.concatenate([rank.lengths for rank in step])) for step in (one, two))
        if not same or not np.array_equal(left, right):
            raise CommandFailed(f"step {number}: {first.name} and {other.name} trained on different samples")
    if first.zch == other.zch and not math.isclose(first.losses[0], other.losses[0], rel_tol=_CLOSE):
        raise CommandFailed(
            f"step 0: {first.name} has the loss {first.losses[0]}, {other.name} {other.losses[0]}: they have the same "
            f"weights and samples, so the losses should agree within a factor of 1 + {_CLOSE}"
        )


def difference(one: Run, other: Run) -> str | None:
    """The first difference of two runs, bit by bit: the losses of a step, or the final weights; None if equal."""
    if len(one.steps) != len(other.steps):
        return f"{len(one.steps)} and {len(other.steps)} steps"
    for number, (left, right) in enumerate(zip(one.steps, other.steps, strict=True)):
        if apart := [rank for rank, (a, b) in enumerate(zip(left, right, strict=True)) if a.loss != b.loss]:
            losses = f"{float(one.losses[number])!r} and {float(other.losses[number])!r}"
            return f"step {number}: global losses {losses}, which differ on rank {apart[0]}"
    if one.weights != other.weights:
        return "tables, maps, dense weights or optimizer states at the end"
    return None
