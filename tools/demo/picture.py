"""Draws the demo's picture: compute time of every rank and step, and exposed communication of every run."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from freescale_tools.demo.results import Outcome, Run
from fsmeter.intervals import KINDS


def draw(outcome: Outcome, path: Path, *, title: str) -> None:
    """Write a PNG: compute time by rank and step of the plain and the balanced run, with waiting time shaded.

    Below is the exposed communication of all runs by kind.
    """
    figure, (first, second, third) = plt.subplots(
        3, 1, figsize=(11, 9.5), height_ratios=(3, 3, 1.8), layout="constrained"
    )
    second.sharex(first)
    second.sharey(first)
    for axis, run in ((first, outcome.plain), (second, outcome.balanced)):
        _times(axis, run)
    slowest = max(rank.compute_ns for run in (outcome.plain, outcome.balanced) for step in run.timed for rank in step)
    second.set_ylim(0, 1.08 * slowest / 1e6)
    second.set_xlabel("step")
    second.xaxis.set_major_locator(MaxNLocator(integer=True))
    second.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)
    _exposed(third, outcome.runs)
    for axis in (first, second, third):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _times(axis: Axes, run: Run) -> None:
    """Draw a bar for each rank, and on top of it the time that the rank waits for the slowest."""
    times = np.array([[rank.compute_ns / 1e6 for rank in step] for step in run.timed])
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


def _exposed(axis: Axes, runs: list[Run]) -> None:
    """Draw a bar for each run, by kind of exchange."""
    names = [run.name for run in runs]
    ends = np.zeros(len(runs))
    for kind in KINDS:
        times = np.array([1e3 * run.seconds[kind] for run in runs])
        if times.any():
            axis.barh(names, times, left=ends, label=kind, height=0.6)
        ends += times
    for name, end in zip(names, ends, strict=True):
        axis.annotate(f"{end:.1f}", (end, name), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title("Exposed communication: what a step is blocked on, late ranks aside", loc="left", fontsize=11)
    axis.set_xlabel("ms of a step, mean of ranks and steps")
    axis.legend(ncols=len(KINDS), frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.98))
    axis.grid(axis="x", alpha=0.3)
