"""The demo's picture: the time of every rank and step, unbalanced and balanced, and the step of every run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from freescale_tools.demo.results import Act, Outcome, Run
from freescale_tools.demo.screen import links

_STRAGGLERS, _LINKS, _REST = "#e8b4b0", "#c44e52", "#8fb0d0"


def draw(outcome: Outcome, path: Path, *, title: str) -> None:
    """Write a PNG: compute time by rank and step of the plain and the balanced run, with waiting time shaded.

    Below are the steps of all runs: waits for stragglers, waits for links, and the rest.
    """
    # Each kind of links has an axis of its own: on a slow link a step has fewer events, and is shorter.
    kinds = [acts for acts in ((outcome.balancing,), outcome.communication) if acts]
    heights = [0.4 * sum(len(act.runs) + 1 for act in acts) + 0.6 for acts in kinds]
    layout = ConstrainedLayoutEngine(w_pad=0.15)
    figure = Figure(figsize=(11, 7 + 1.1 * sum(heights)), layout=layout)
    first, second, *below = figure.subplots(2 + len(kinds), 1, height_ratios=(3, 3, *heights))
    second.sharex(first)
    second.sharey(first)
    balanced = outcome.balancing.run("balanced")
    assert balanced is not None
    slowest = max(_ranks(first, outcome.balancing.plain), _ranks(second, balanced))
    second.set_ylim(0, 1.08 * slowest)
    second.set_xlabel("step")
    second.xaxis.set_major_locator(MaxNLocator(integer=True))
    second.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)
    for axis, acts in zip(below, kinds, strict=True):
        _steps(axis, acts)
    below[0].set_title(
        "Every run: the time of a step, and the difference from the plain run above it", loc="left", fontsize=11
    )
    below[-1].set_xlabel("ms of a step, mean of ranks and steps")
    below[-1].legend(ncols=3, frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    for axis in (first, second, *below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=130)


def _ranks(axis: Axes, run: Run) -> float:
    """Draws compute and waiting time of every rank and step, and returns the longest compute time in ms."""
    times = np.array([[rank.compute_ns / 1e6 for rank in step] for step in run.timed])
    steps, ranks = times.shape
    width = 0.84 / ranks
    at = np.arange(steps) + len(run.steps) - steps
    for rank, computes in enumerate(times.T):
        x = at + (rank - (ranks - 1) / 2) * width
        axis.bar(x, computes, width, color=f"C{rank % 10}", label=f"rank {rank} computes")
        label = "waits for the slowest" if rank == ranks - 1 else None
        axis.bar(x, times.max(1) - computes, width, bottom=computes, color=_STRAGGLERS, label=label)
    share = f"ranks wait {run.straggler:.1%} of a step for the slowest, mean of the steps from {at[0]}"
    axis.set_title(f"{run.name}: {share}", loc="left", fontsize=11)
    axis.set_ylabel("CPU time of a rank, ms")
    axis.grid(axis="y", alpha=0.3)
    return float(times.max())


def _steps(axis: Axes, acts: Sequence[Act]) -> None:
    """Draws a bar for the step of every run, with the time that it saves or costs beside the plain run of its act."""
    y = 0.0
    names = []
    for act in acts:
        axis.text(0, y, f" links: {links(act)}", va="center", fontweight="bold", fontsize=10)
        for run in act.runs:
            y += 1
            names.append((y, run.name))
            waits = run.waits_for_stragglers + run.exposed
            left = 0.0
            for seconds, shade in (
                (run.step_s - waits, _REST),
                (run.waits_for_stragglers, _STRAGGLERS),
                (run.exposed, _LINKS),
            ):
                axis.barh(y, 1e3 * seconds, left=1e3 * left, color=shade, height=0.7)
                left += seconds
            change = -act.gain(run.name)
            text = f"{1e3 * run.step_s:.0f} ms" + (f", {change:+.0%}" if run is not act.plain else "")
            axis.annotate(
                text, (1e3 * run.step_s, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9,
                color="#b02020" if change > 0.005 else "black",
            )  # fmt: skip
        y += 1.5
    axis.set_yticks([place for place, _ in names], [name for _, name in names])
    axis.invert_yaxis()
    axis.margins(x=0.14)
    for color, label in (
        (_REST, "compute, and all else"),
        (_STRAGGLERS, "waits for stragglers"),
        (_LINKS, "waits for links"),
    ):
        axis.barh(0, 0, color=color, label=label)
    axis.grid(axis="x", alpha=0.3)
