"""Draws the demo's picture: compute time of every rank and step, and exposed communication of every run."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from freescale_tools.demo.outcome.planner import NO_FLOOR
from freescale_tools.demo.training.job import Outcome
from freescale_tools.demo.training.measure import WARMUP, Run, straggler
from fsmeter.intervals import KINDS

_COLORS = ("#3b6ea5", "#d9822b", "#5b8f4a", "#8a5a9e", "#b04a4a", "#4a9a9a", "#8f7a3a", "#666666")
_IDLE = "#e8b4b0"
_FLOOR_LABEL = "one sample outweighs a rank's share"


def picture(outcome: Outcome, floors: np.ndarray, path: Path, *, title: str) -> None:
    """Write a PNG: compute time by rank and step of the plain and the balanced run, with waiting time shaded.

    Below is the exposed communication of all runs by kind. floors [S]: the lowest straggler share that
    any plan can have; steps with a high floor are marked.
    """
    figure, (first, second, third) = plt.subplots(
        3, 1, figsize=(11, 9.5), height_ratios=(3, 3, 1.8), layout="constrained"
    )
    second.sharex(first)
    second.sharey(first)
    for axis, run in ((first, outcome.plain), (second, outcome.balanced)):
        _panel(axis, run)
    _mark_floors(second, outcome.balanced, floors)
    second.set_ylim(
        top=1.08 * max(1e3 * run.times("compute")[WARMUP:].max() for run in (outcome.plain, outcome.balanced))
    )
    second.set_xlabel("step")
    second.set_xlim(WARMUP - 1, len(floors))
    second.xaxis.set_major_locator(MaxNLocator(integer=True))
    second.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)
    _exposed(third, outcome.runs)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _exposed(axis: Axes, runs: Sequence[Run]) -> None:
    """Draw a bar for each run, by kind of exchange."""
    ends = np.zeros(len(runs))
    names = [run.name for run in runs]
    for kind, color in zip(KINDS, _COLORS, strict=False):
        times = np.array([1e3 * run.parts[kind] for run in runs])
        if times.any():
            axis.barh(names, times, left=ends, color=color, label=kind, height=0.6)
        ends += times
    for name, end in zip(names, ends, strict=True):
        axis.annotate(f"{end:.1f}", (end, name), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title("Exposed communication: what a step is blocked on, late ranks aside", loc="left", fontsize=11)
    axis.set_xlabel("ms, mean of the ranks, median of the steps")
    axis.legend(ncols=len(KINDS), frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.98))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def _panel(axis: Axes, run: Run) -> None:
    """Draw a bar for each rank, and on top of it the time that the rank waits for the slowest."""
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
    """Mark steps in which one sample costs more than a rank's fair share."""
    marked = np.flatnonzero(floors > NO_FLOOR)
    marked = marked[marked >= WARMUP]
    if len(marked):
        top = 1e3 * run.times("compute").max(1)
        axis.scatter(marked, top[marked] + 0.04 * top.max(), marker="v", color="black", s=18, label=_FLOOR_LABEL)
