"""What the demo's runs came to: numbers of measured steps, what must be equal, the last screen and the picture.

*Compute time* of a rank is the CPU time of its training thread for forward, backward and optimizer, on one core.
Waiting uses no CPU, so time that a rank waits for a slower rank does not count. *Straggler share* of a step is 1 - mean
/ max of the ranks' compute time, the share of a step that ranks wait for the slowest; that of a run is the mean over
its steps. *Planned* is the same with the costs that the cost model gives to the samples in place of the time.

*Exposed* communication and *late* come from fsmeter.BubbleMeter. Exposed is wall time that the training thread is
blocked on an exchange after all ranks have begun it; late is the time before that.

*NE*, normalized entropy, is the log loss divided by that of guessing, ln(256) for 256 groups of items.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.data import HISTORY
from fscomm.report.report import Forwards, Managed
from fsdata import Polynomial, pack
from fsdata.balance.packing.plan import straggler_share
from fsmeter.intervals import KINDS

WARMUP = 2  # first steps that no time includes: allocations, first exchange, page faults
STEPS_PER_HOUR = 5  # of the clock by which ids expire: what was fetched ahead of a new hour is of no use
GUESSED = math.log(256)
_CLOSE = 1e-4  # of losses of the first step, whose samples are added in another order
_POINT = 0.01  # straggler shares that differ by less are called alike
_NOISE = 0.05  # of the time of a step
_PLANNED_RANKS = (8, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of one rank.

    `loss` sums over the samples. `lengths` int64 [samples]. `held`: events in the batch, fewer than the samples see if
    they share some. `checksum` is the sum of all rows that the samples see.
    """

    compute_ns: int
    loss: float
    lengths: np.ndarray
    held: int
    checksum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training of the model.

    Attributes:
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
    def exposed(self) -> float:
        """Seconds of a step."""
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
    def held(self) -> float:
        """Events in the batches, for each event that a sample sees."""
        ranks = [rank for step in self.steps for rank in step]
        return sum(rank.held for rank in ranks) / max(sum(int(rank.lengths.sum()) for rank in ranks), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Runs of one job, in pairs that differ only in communication, so that their results must be equal to the bit.

    The first pair is not balanced, the second is; in the third, if data have it, samples share histories too. With
    `parts` above 1 there is one more at the end: the first pair with each step computed in so many parts. Before it
    stands the first pair with tables behind managed collision, if asked for.
    """

    pairs: tuple[tuple[Run, Run], ...]
    cost: Polynomial
    parts: int = 1

    @property
    def runs(self) -> list[Run]:
        return [run for pair in self.pairs for run in pair]

    @property
    def plain(self) -> Run:
        return self.pairs[0][0]

    @property
    def balanced(self) -> Run:
        return self.pairs[1][0]


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


def show(outcome: Outcome, lengths: np.ndarray, batch_size: int, terminal: Terminal) -> None:
    """Check the runs against each other and print what came out. `lengths`: of samples of the set.

    Raises CommandFailed if runs differ that must be equal.
    """
    for run in outcome.runs[1:]:
        check_same_samples(outcome.plain, run)
    cost, ranks = outcome.cost, len(outcome.plain.steps[0])
    rows: list[list[str | float | None]] = []
    for run in outcome.runs:
        shares = (run.straggler, run.planned(cost), run.collisions, run.held)
        straggler, planned, collide, held = (None if share is None else round(100 * share, 1) for share in shares)
        seconds = (run.seconds["seconds"], run.exposed, run.seconds["straggler"])
        rows.append([run.name, straggler, planned, *(round(1e3 * each) for each in seconds), collide, held, *run.last])
    columns = ["run", "straggler %", "planned %", "step ms", "exposed ms", "late ms", "collide %", "held %"]
    terminal.table(
        f"{ranks} ranks, {len(outcome.plain.steps)} steps, the same samples",
        [*columns, "global loss nats", "NE"],
        rows,
        notes=[
            "straggler: share of a step that ranks wait for the slowest, by the CPU time of the training threads; "
            "planned: the same by the cost model",
            "exposed: a step is blocked on an exchange that all ranks have begun; late: on a rank that is not there",
            "collide: ids whose table row the step before uses too; held: events in the batches, of those samples see",
            f"times: means without the first {WARMUP} steps; loss, and NE (1: guessing), are those of the last quarter",
            "ranks share this machine: an exchange is a copy in memory; benchmarks/exposed.py has slower links",
        ],
    )
    terminal.say(f"cost of a sample, fitted on the first run: {cost}")
    both = (outcome.plain, outcome.balanced)
    if any(abs(run.straggler - run.planned(cost)) > _POINT for run in both):
        said = "; ".join(f"{run.name} {run.straggler:.1%}, not {run.planned(cost):.1%}" for run in both)
        terminal.say(
            f"measured straggler share is not as planned: {said}. The plan knows lengths alone; "
            "the rest is what they do not explain, such as other work on these cores"
        )
    for run in outcome.runs:
        for module, why in run.fallbacks.items():
            terminal.say(f"{run.name}: {module} ran plainly: {why}")
    terminal.table(
        "planned straggler share with more ranks, shuffled samples",
        ["ranks", "unbalanced %", "balanced %", "least of any plan %"],
        # As far as the samples fill one global batch.
        [
            [more, *planned_shares(cost, lengths, more, batch_size)]
            for more in _PLANNED_RANKS
            if ranks < more <= len(lengths) // batch_size
        ],
        notes=[
            "least: above 0 where one sample outweighs a rank; `freescale profile` tells what shorter histories bring"
        ],
    )

    found = [(one, other, difference(one, other)) for one, other in outcome.pairs]
    for one, other, apart in found:
        terminal.say(f"{one.name} and {other.name} equal to the bit: {'yes' if apart is None else f'NO, {apart}'}")
    if any(apart for _, _, apart in found):
        raise CommandFailed("prioritized communication changed the results; see above where")


def planned_shares(cost: Polynomial, lengths: np.ndarray, ranks: int, batch_size: int) -> list[float]:
    """Percent of a step that ranks wait: unbalanced, balanced, and the least of any plan; means of whole batches."""
    size = ranks * batch_size
    steps = cost({HISTORY: lengths[: len(lengths) // size * size]}).reshape(-1, size)
    plans = [pack(step, ranks) for step in steps]
    shares = (
        [straggler_share(step.reshape(ranks, batch_size).sum(1)) for step in steps],
        [plan.straggler for plan in plans],
        [plan.lower_bound for plan in plans],
    )
    return [round(100 * float(np.mean(share)), 1) for share in shares]


def verdict(outcome: Outcome) -> str:
    """What came out and why, in a sentence."""
    plain, balanced = outcome.plain, outcome.balanced
    saved = 1 - balanced.seconds["seconds"] / plain.seconds["seconds"]
    explained = 1 - (1 - plain.straggler) / (1 - balanced.straggler)
    took = f"balanced steps took {abs(saved):.0%} {'less' if saved > 0 else 'more'} time here"
    waited = (
        f"unbalanced, ranks waited {plain.straggler:.0%} of a step for the longest samples, "
        f"balanced {balanced.straggler:.0%}"
    )
    if saved <= 0:
        return (
            f"{took}: {waited}, which alone takes {max(explained, 0):.0%} off a step, but moving samples and other "
            "work on these cores cost more than that"
        )
    if saved > explained + _NOISE:
        return f"{took}: {waited}, which explains {max(explained, 0):.0%}; the rest is other work on these cores"
    return f"{took}: {waited}"


def parts_verdict(outcome: Outcome) -> str:
    """What it brought to compute steps in parts and why, in a sentence. The outcome has `parts` above 1."""
    (plain, whole), (plain_cut, cut) = outcome.pairs[0], outcome.pairs[-1]
    seconds = whole.seconds["seconds"]
    hidden = whole.exposed - cut.exposed
    more = plain_cut.compute_s / plain.compute_s - 1
    told = (
        f"prioritized steps had {1e3 * cut.exposed:.0f} ms exposed in {outcome.parts} parts, "
        f"{1e3 * whole.exposed:.0f} of {1e3 * seconds:.0f} ms in one piece, with {cut.collisions or 0:.0%} of ids in "
        "collision"
    )
    costs = f"by the plain runs, parts cost {max(more, 0):.0%} more compute time of the host"
    if hidden > _NOISE * seconds:
        return f"{told}: parts hid {hidden / seconds:.0%} of a step; {costs}"
    return (
        f"{told}: parts brought nothing here, as less than {_NOISE:.0%} of a step is noise. Ranks share this machine, "
        f"so links are as fast as memory; {costs}"
    )


def show_maps(outcome: Outcome, terminal: Terminal) -> None:
    """Print what tables behind managed collision did, in the run with prioritized communication that has them.

    Raises CommandFailed if no row was taken over, as then nothing was shown of evictions.
    """
    (run,) = (other for _, other in outcome.pairs if other.zch)
    tables = {name.rpartition(".table_")[2]: found for name, found in run.managed.items()}
    tables["all"] = sum(tables.values(), Managed())
    rows = [
        [name, found.ids, found.inserted, found.evicted]
        + [round(100 * share, 1) for share in (found.hit_rate, found.own_share, found.late_share)]
        for name, found in tables.items()
    ]
    terminal.table(
        f"tables behind managed collision (MPZCH), an hour every {STEPS_PER_HOUR} steps, batches mapped ahead",
        ["table", "ids", "inserted", "evicted", "hit %", "own row %", "late %"],
        rows,
        notes=[
            "inserted: free rows that got an id; evicted: rows whose id had expired, taken over by another id",
            "hit: ids that had a row of their own before the batch; own row: that have one after it; late: whose row "
            "another id had before it, so that it is not fetched ahead",
        ],
    )
    plain = run.forwards.plain
    terminal.say(f"{run.name}: {run.forwards.served} of {run.forwards.served + sum(plain.values())} forwards served")
    for why, count in plain.items():
        terminal.say(f"  plainly {count} times: {why}")
    if not tables["all"].evicted:
        raise CommandFailed("no row was taken over by another id, so evictions were not tried; give more --steps")


def draw(outcome: Outcome, path: Path, *, title: str) -> None:
    """Write a PNG: compute time by rank and step of the plain and the balanced run, with waiting time shaded.

    Below is the exposed communication of all runs by kind.
    """
    from matplotlib.figure import Figure  # not for the ranks that train
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 9.5), layout="constrained")
    first, second, third = figure.subplots(3, 1, height_ratios=(3, 3, 1.8))
    second.sharex(first)
    second.sharey(first)
    slowest = 0.0
    for axis, run in ((first, outcome.plain), (second, outcome.balanced)):
        times = np.array([[rank.compute_ns / 1e6 for rank in step] for step in run.timed])
        slowest = max(slowest, times.max())
        steps, ranks = times.shape
        width = 0.84 / ranks
        at = np.arange(steps) + len(run.steps) - steps
        for rank, computes in enumerate(times.T):
            x = at + (rank - (ranks - 1) / 2) * width
            axis.bar(x, computes, width, color=f"C{rank % 10}", label=f"rank {rank} computes")
            label = "waits for the slowest" if rank == ranks - 1 else None
            axis.bar(x, times.max(1) - computes, width, bottom=computes, color="#e8b4b0", label=label)
        share = f"ranks wait {run.straggler:.1%} of a step for the slowest, mean of the steps from {at[0]}"
        axis.set_title(f"{run.name}: {share}", loc="left", fontsize=11)
        axis.set_ylabel("compute time of a rank, ms")
        axis.grid(axis="y", alpha=0.3)
    second.set_ylim(0, 1.08 * slowest)
    second.set_xlabel("step")
    second.xaxis.set_major_locator(MaxNLocator(integer=True))
    second.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)

    names = [run.name for run in outcome.runs]
    ends = np.zeros(len(names))
    for kind in KINDS:
        waits = np.array([1e3 * run.seconds[kind] for run in outcome.runs])
        if waits.any():
            third.barh(names, waits, left=ends, label=kind, height=0.6)
        ends += waits
    for name, end in zip(names, ends, strict=True):
        third.annotate(f"{end:.1f}", (end, name), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    third.invert_yaxis()
    third.margins(x=0.12)
    third.set_title("Exposed communication: what a step is blocked on, late ranks aside", loc="left", fontsize=11)
    third.set_xlabel("ms of a step, mean of ranks and steps")
    third.legend(ncols=len(KINDS), frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.98))
    third.grid(axis="x", alpha=0.3)
    for axis in (first, second, third):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)
