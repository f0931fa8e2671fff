"""Makes the demo's last screen: a table of measurements, a table of plans, and notes on how to read them."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from freescale_tools.demo.outcome.equality import difference
from freescale_tools.demo.outcome.planner import Planned
from freescale_tools.demo.training.job import Outcome
from freescale_tools.demo.training.measure import Run, summarize

_NOTES = (
    "straggler: idle share by the CPU time of the training threads; waiting for another rank costs none",
    "exposed: ms of a step in which the training thread is blocked on an exchange that all ranks have begun",
    "late: ms in which it is blocked on a rank that has not come yet; step: ms of the slowest rank",
    "collide: ids whose table row the step before uses too; their rows cannot travel ahead of its update",
    "NE: log loss over that of guessing; it and the loss are those of the last quarter; times are medians",
)
_SHARED = (
    "held: events in the batches, of those that the samples see: samples of one key share events, each of which is",
    "  looked up and exchanged once; gradients are then added in another order, so losses differ in their last bits",
)
_LOCAL = (
    "all ranks run on this machine: an exchange is a copy in memory, and fscomm's threads share the cores that train",
    "  seen here: that results are equal, and that what remains exposed is small on both sides",
    "  not seen here: time saved; that takes links slower than memory: python benchmarks/exposed.py",
)


def measured(outcome: Outcome) -> Table:
    """One row per run; loss and NE of the last quarter of the steps."""
    plain = outcome.plain
    made = _table(f"{len(plain.ranks)} ranks, {len(plain.losses)} steps, the same samples")
    made.add_column("", no_wrap=True)
    shared = ["held"] if outcome.shared else []
    for name in ("straggler", "exposed", "late", "step", "collide", *shared, "loss", "NE"):
        made.add_column(name, justify="right", no_wrap=True)
    for run in outcome.runs:
        made.add_row(run.name, *_row(run, shared=bool(shared)))
    return made


def _row(run: Run, *, shared: bool) -> Sequence[str]:
    found = summarize(run)
    return (
        f"{found.straggler:.1%}",
        f"{found.exposed_ms:.1f}",
        f"{found.late_ms:.0f}",
        f"{found.step_ms:,.0f}",
        "" if run.collisions is None else f"{run.collisions:.0%}",
        *([f"{run.held:.0%}"] if shared else []),
        f"{found.last_loss:.5f}",
        f"{found.ne:.5f}",
    )


def planned(plans: Sequence[Planned]) -> Table:
    """The straggler share that the cost model predicts at other numbers of ranks."""
    made = _table("straggler, planned")
    made.add_column("")
    for name in ("plain", "balanced", "floor"):
        made.add_column(name, justify="right")
    for plan in plans:
        made.add_row(_plan_label(plan), f"{plan.plain:.1%}", f"{plan.balanced:.1%}", f"{plan.floor:.1%}")
    return made


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, show_edge=False)


def _plan_label(plan: Planned) -> str:
    if plan.max_length is not None:
        return f"  histories cut at {plan.max_length:,} events"
    return f"{plan.world_size} ranks"


def faster(outcome: Outcome) -> str:
    """What the fastest run saves, in a sentence."""
    took = {run.name: summarize(run).step_ms for run in outcome.runs}
    best, plain = min(took, key=took.__getitem__), outcome.plain.name
    if best == plain:
        return f"no run is faster than {plain} on this machine"
    gain = took[plain] / took[best] - 1
    return f"{best} is {gain:.0%} faster than {plain}: steps of {took[best]:,.0f} ms, not {took[plain]:,.0f}"


def equality(outcome: Outcome) -> tuple[list[str], bool]:
    """(sentences on what was compared bit by bit, whether all of it is equal)."""
    lines, equal = [], True
    for one, other in outcome.twins:
        found = difference(one, other)
        equal &= found is None
        lines.append(f"{one.name} and {other.name} equal to the bit: {'yes' if found is None else f'NO, {found}'}")
    lines.append("  (loss of every rank and step, NE, and at the end all tables, dense weights and optimizer states)")
    return lines, equal


def notes(outcome: Outcome) -> list[str]:
    """Notes: what the columns mean, and what this machine cannot show."""
    plainly = [f"{run.name}: {name} ran plainly: {why}" for run in outcome.runs for name, why in run.fallbacks.items()]
    return [*_NOTES, *(_SHARED if outcome.shared else ()), *_LOCAL, *plainly]
