"""The demo's last screen: one table of what was measured and planned, and a picture of every step."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from .measure import NO_FLOOR, WARMUP, Planned, Run, Summary, straggler, summarize

_COLORS = ("#3b6ea5", "#d9822b", "#5b8f4a", "#8a5a9e", "#b04a4a", "#4a9a9a", "#8f7a3a", "#666666")
_IDLE = "#e8b4b0"
_FLOOR_LABEL = "one sample outweighs a rank's share"


def table(plain: Run, balanced: Run, plans: list[Planned]) -> Table:
    """Measured numbers of both runs, then the planned straggler share at other numbers of ranks."""
    before, after = summarize(plain), summarize(balanced)
    made = Table(title=f"{len(plain.ranks)} ranks, {len(plain.losses)} steps, the same samples", title_justify="left")
    made.add_column("")
    for name in (plain.name, balanced.name, ""):
        made.add_column(name, justify="right")
    for row in _measured(before, after):
        made.add_row(*row)
    made.add_section()
    for plan in plans:
        made.add_row(_plan_label(plan), f"{plan.plain:.1%}", f"{plan.balanced:.1%}", f"floor {plan.floor:.1%}")
    return made


def _plan_label(plan: Planned) -> str:
    if plan.max_length is not None:
        return f"  histories cut at {plan.max_length:,} events"
    return f"planned straggler, {plan.world_size} ranks"


def _measured(before: Summary, after: Summary) -> list[tuple[str, str, str, str]]:
    return [
        (
            "straggler, measured",
            f"{before.straggler:.1%}",
            f"{after.straggler:.1%}",
            _points(before.straggler, after.straggler),
        ),
        ("step, ms", f"{before.step_ms:,.0f}", f"{after.step_ms:,.0f}", _ratio(before.step_ms, after.step_ms)),
        (
            "events/s",
            f"{before.tokens_per_s:,.0f}",
            f"{after.tokens_per_s:,.0f}",
            _ratio(before.tokens_per_s, after.tokens_per_s),
        ),
        ("data wait, ms a step", f"{before.wait_ms:.1f}", f"{after.wait_ms:.1f}", ""),
        ("loss, first quarter", f"{before.first_loss:.5f}", f"{after.first_loss:.5f}", ""),
        ("loss, last quarter", f"{before.last_loss:.5f}", f"{after.last_loss:.5f}", ""),
    ]


def _points(before: float, after: float) -> str:
    return f"{100 * (after - before):+.1f} points"


def _ratio(before: float, after: float) -> str:
    return f"{after / before - 1:+.0%}" if before else ""


def picture(plain: Run, balanced: Run, floors: np.ndarray, path: Path, *, title: str) -> None:
    """Compute time of every rank and step before and after, as PNG; what a rank waits for the slowest is shaded.

    floors [S]: the lowest straggler share any plan can have; steps where it matters are marked.
    """
    figure, axes = plt.subplots(2, 1, figsize=(11, 7), sharex=True, sharey=True, layout="constrained")
    for axis, run in zip(axes, (plain, balanced), strict=True):
        _panel(axis, run)
    _mark_floors(axes[1], balanced, floors)
    axes[1].set_xlabel("step")
    axes[1].set_xlim(WARMUP - 1, len(floors))
    axes[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axis: Axes, run: Run) -> None:
    """Bars side by side, one per rank; above each, up to the slowest rank, the time it waits."""
    times = 1e3 * run.times("compute")[WARMUP:]
    steps, ranks = times.shape
    width = 0.84 / ranks
    at = np.arange(WARMUP, WARMUP + steps)
    for rank in range(ranks):
        x = at + (rank - (ranks - 1) / 2) * width
        computes = times[:, rank]
        axis.bar(x, computes, width, color=_COLORS[rank % len(_COLORS)], label=f"rank {rank} computes")
        label = "waits for the slowest" if rank == ranks - 1 else None
        axis.bar(x, times.max(1) - computes, width, bottom=computes, color=_IDLE, label=label)
    share = f"{straggler(times):.1%} of all rank time is waiting for the slowest rank"
    axis.set_title(f"{run.name}: {share}", loc="left", fontsize=11)
    axis.set_ylabel("compute time of a rank, ms")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def _mark_floors(axis: Axes, run: Run, floors: np.ndarray) -> None:
    """Mark the steps in which one sample is dearer than a rank's fair share."""
    marked = np.flatnonzero(floors > NO_FLOOR)
    marked = marked[marked >= WARMUP]
    if len(marked):
        top = 1e3 * run.times("compute").max(1)
        axis.scatter(marked, top[marked] + 0.04 * top.max(), marker="v", color="black", s=18, label=_FLOOR_LABEL)
