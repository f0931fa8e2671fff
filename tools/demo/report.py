"""The demo's last screen: one table of what was measured and planned, and a picture of every step."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from .measure import WARMUP, Planned, Run, Summary, straggler, summarize

_COLORS = ("#3b6ea5", "#d9822b", "#5b8f4a", "#8a5a9e", "#b04a4a", "#4a9a9a", "#8f7a3a", "#666666")
_IDLE = "#e8b4b0"


def table(plain: Run, balanced: Run, plans: list[Planned]) -> Table:
    """Measured numbers of both runs, then the planned straggler share at other numbers of ranks."""
    before, after = summarize(plain), summarize(balanced)
    made = Table(title=f"{len(plain.ranks)} ranks, {len(plain.losses)} steps, the same samples", title_justify="left")
    made.add_column("")
    for name in (plain.name, balanced.name, "change"):
        made.add_column(name, justify="right")
    for row in _measured(before, after):
        made.add_row(*row)
    made.add_section()
    for plan in plans:
        label = f"straggler planned at {plan.world_size} ranks (floor {plan.floor:.1%})"
        made.add_row(label, f"{plan.plain:.1%}", f"{plan.balanced:.1%}", _points(plan.plain, plan.balanced))
    return made


def _measured(before: Summary, after: Summary) -> list[tuple[str, str, str, str]]:
    return [
        (
            "straggler, compute measured",
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


def picture(plain: Run, balanced: Run, path: Path, *, title: str) -> None:
    """Compute time of every rank and step before and after, as PNG; what a rank waits for the slowest is shaded."""
    figure, axes = plt.subplots(2, 1, figsize=(11, 7), sharex=True, sharey=True, layout="constrained")
    for axis, run in zip(axes, (plain, balanced), strict=True):
        _panel(axis, run)
    axes[1].set_xlabel("step")
    axes[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 5), frameon=False)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axis: Axes, run: Run) -> None:
    """Bars side by side, one per rank; above each, up to the slowest rank, the time it waits."""
    times = 1e3 * run.times("compute")[WARMUP:]
    steps, ranks = times.shape
    width = 0.84 / ranks
    slowest = times.max(1)
    at = np.arange(WARMUP, WARMUP + steps)
    for rank in range(ranks):
        x = at + (rank - (ranks - 1) / 2) * width
        axis.bar(x, times[:, rank], width, color=_COLORS[rank % len(_COLORS)], label=f"rank {rank} computes")
        waits = slowest - times[:, rank]
        axis.bar(
            x, waits, width, bottom=times[:, rank], color=_IDLE, label="waits for the slowest" if not rank else None
        )
    share = straggler(times)
    axis.set_title(f"{run.name}: {share:.1%} of all rank time is waiting for the slowest rank", loc="left", fontsize=11)
    axis.set_ylabel("compute time of a rank, ms")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
