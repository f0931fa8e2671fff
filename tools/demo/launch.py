"""From a folder to the demo's table: describe the data, train on every rank under torchrun, report."""

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

from . import report
from .data import HISTORY, DemoData
from .job import Job, Outcome
from .measure import check_same_samples, planned

PLANNED_RANKS = (8, 64)  # besides those of the job


class DemoFailed(RuntimeError):
    """Training did not end; what went wrong stands in the ranks' output above."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How to run the demo. `picture`: where the PNG goes."""

    steps: int = 40
    ranks: int = 2
    seed: int = 0
    picture: Path = Path("freescale-demo.png")

    def __post_init__(self) -> None:
        for name in ("steps", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def demo(data: DemoData, launch: Launch, console: Console) -> Outcome:
    """Train on `launch.ranks` gloo ranks, print the table, write the picture. Raises DemoFailed if a rank fails."""
    began = time.monotonic()
    rows = data.rows
    steps = min(launch.steps, rows // (launch.ranks * data.batch_size))
    console.print(f"[bold]{data.name}[/]: {rows:,} samples, {steps} steps of {launch.ranks} x {data.batch_size}")
    for note in data.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    outcome = _torchrun(data, steps, launch)
    check_same_samples(outcome.plain, outcome.balanced)
    lengths = history_lengths(data)
    sizes = sorted({launch.ranks, *PLANNED_RANKS} - {1})
    plans = [
        planned(lengths, outcome.cost, name=HISTORY, world_size=ranks, batch_size=data.batch_size) for ranks in sizes
    ]
    console.print(report.table(outcome.plain, outcome.balanced, [plan for plan in plans if plan is not None]))
    for ranks, plan in zip(sizes, plans, strict=True):
        if plan is None:
            console.print(f"no plan for {ranks} ranks: {rows:,} samples do not fill {ranks} x {data.batch_size}")
    launch.picture.parent.mkdir(parents=True, exist_ok=True)
    report.picture(outcome.plain, outcome.balanced, launch.picture, title=f"Time of every rank and step, {data.name}")
    console.print(f"cost model fitted on the first run: {outcome.cost}", markup=False, highlight=False)
    console.print(f"picture: {launch.picture}   ({time.monotonic() - began:.0f} s)", markup=False, highlight=False)
    return outcome


def _torchrun(data: DemoData, steps: int, launch: Launch) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="freescale-demo-") as folder:
        job_file, out = Path(folder, "job.pickle"), Path(folder, "outcome.pickle")
        job_file.write_bytes(pickle.dumps(Job(data=data, steps=steps, seed=launch.seed, out=out)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
        command += ["-m", "freescale_tools.demo.train", str(job_file)]
        ended = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        if ended.returncode or not out.exists():
            raise DemoFailed(f"training ended with status {ended.returncode}; the ranks' errors stand above")
        return pickle.loads(out.read_bytes())


def history_lengths(data: DemoData) -> np.ndarray:
    """int64 [samples], as the loaders truncate them."""
    lengths = []
    for table in data.tables:
        column = table.columns.get(data.history[0].name, data.history[0].name)
        for path in table.paths:
            for chunk in pq.read_table(path, columns=[column], use_threads=False)[column].chunks:
                lengths.append(chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    return np.minimum(np.concatenate(lengths).astype(np.int64), data.max_length or np.iinfo(np.int64).max)
