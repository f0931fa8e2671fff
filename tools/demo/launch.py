"""Runs the demo: trains on every rank under torchrun, then prints tables and draws the picture."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from freescale_tools.console.errors import CommandFailed
from freescale_tools.demo.data import DemoData
from freescale_tools.demo.model.features import HISTORY
from freescale_tools.demo.outcome import tables as report
from freescale_tools.demo.outcome.picture import picture
from freescale_tools.demo.outcome.planner import NO_FLOOR, Planned, Planner
from freescale_tools.demo.plain_histories import as_of_lengths
from freescale_tools.demo.training.job import Job, Outcome
from freescale_tools.demo.training.measure import check_same_samples

PLANNED_RANKS = (8, 64)  # besides those of the job


class DemoFailed(CommandFailed):
    """Training failed, or its results are not as promised. The reason was printed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How to run the demo. `picture`: where the PNG goes."""

    steps: int = 14
    ranks: int = 2
    seed: int = 0
    picture: Path = Path("freescale-demo.png")

    def __post_init__(self) -> None:
        for name in ("steps", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def demo(data: DemoData, launch: Launch, console: Console) -> Outcome:
    """Train on `launch.ranks` gloo ranks, print tables, write the picture.

    Raises DemoFailed if a rank fails, or if runs differ that must be equal.
    """
    began = time.monotonic()
    rows = data.rows
    steps = min(launch.steps, rows // (launch.ranks * data.batch_size))
    size = f"{rows:,} samples, {steps} steps of {launch.ranks} x {data.batch_size}"
    for line in (f"{data.name}: {size}", *(f"  {note}" for note in data.notes)):
        _say(console, line)
    outcome = _torchrun(data, steps, launch)
    check_same_samples(outcome.runs)
    planner = Planner(lengths=history_lengths(data), cost=outcome.cost, name=HISTORY, batch_size=data.batch_size)
    compared, equal = report.equality(outcome)
    console.print(report.measured(outcome))
    for line in (report.faster(outcome), *compared):
        _say(console, line)
    console.print(report.planned(_plans(planner, launch.ranks)))
    launch.picture.parent.mkdir(parents=True, exist_ok=True)
    floors = planner.floors(outcome.plain)
    picture(outcome, floors, launch.picture, title=f"Time of every rank and step, {data.name}")
    for line in (
        *report.notes(outcome),
        "floor: what no plan can beat, because one sample outweighs a rank's fair share",
        f"cost of a sample, fitted on the first run: {outcome.cost}",
        f"picture: {launch.picture}   ({time.monotonic() - began:.0f} s)",
    ):
        _say(console, line)
    if not equal:
        raise DemoFailed("prioritized communication changed the results; see above where")
    return outcome


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _plans(planner: Planner, ranks: int) -> list[Planned]:
    """Plans for several numbers of ranks, and one with shorter histories if single samples are too long."""
    plans = [planner.plan(world_size) for world_size in sorted({ranks, *PLANNED_RANKS} - {1})]
    found = [plan for plan in plans if plan is not None]
    if found and found[-1].floor > NO_FLOOR:
        cut = planner.plan_cut(found[-1].world_size)
        found += [] if cut is None else [cut]
    return found


def _torchrun(data: DemoData, steps: int, launch: Launch) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="freescale-demo-") as folder:
        job_file, out = Path(folder, "job.pickle"), Path(folder, "outcome.pickle")
        job_file.write_bytes(pickle.dumps(Job(data=data, steps=steps, seed=launch.seed, out=out)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
        command += ["-m", "freescale_tools.demo.training.train", str(job_file)]
        ended = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        if ended.returncode or not out.exists():
            raise DemoFailed(f"training ended with status {ended.returncode}; the ranks' errors stand above")
        return pickle.loads(out.read_bytes())


def history_lengths(data: DemoData) -> np.ndarray:
    """int64 [samples], as the loaders truncate them."""
    lengths = []
    for table in data.tables:
        if table.histories is not None:
            lengths.append(as_of_lengths(table, data.max_length))
            continue
        column = table.columns.get(data.history[0].name, data.history[0].name)
        for path in table.paths:
            for chunk in pq.read_table(path, columns=[column], use_threads=False)[column].chunks:
                lengths.append(chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    return np.minimum(np.concatenate(lengths).astype(np.int64), data.max_length or np.iinfo(np.int64).max)
