"""The programs in `examples/`: with fscomm they print the losses of the plain loop. One is started as a user does."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from pages import ROOT
from patience import PATIENCE_S
from torch import Tensor, nn
from worlds import shared_world

# The others are those of test_nano.py and of tests/data/sources/test_row_source.py.
PROGRAMS = sorted(set((ROOT / "examples").glob("*.py")) - {ROOT / "examples/nano.py", ROOT / "examples/arrow_ipc.py"})
SMALL = {
    "bert4rec": ("--users", "800", "--epochs", "1"),
    "dlrm": ("--steps", "25"),
    "dlrm_v4": ("--users", "200"),
    "hstu": ("--rows", "1600"),
    "segments": ("--requests", "900"),
    "two_tower": ("--rows", "3200"),
}


def by_torchrun(program: Path, *options: str) -> str:
    """What rank 0 of two printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(program), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def ran(rank: int, size: int, program: Path, *options: str) -> str:
    """What the program printed on a rank whose process group is there already."""
    out = io.StringIO()
    with (
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        mock.patch.object(sys, "argv", [str(program), *options]),
        contextlib.redirect_stdout(out),
    ):
        runpy.run_path(str(program), run_name="__main__")
    return out.getvalue()


def ran_in(rank: int, size: int, folder: Path, program: str, *options: str) -> str:
    """The same of a program in `folder`, which works there."""
    with contextlib.chdir(folder):
        return ran(rank, size, Path(program), *options)


def in_this_world(program: Path, *options: str) -> str:
    return str(shared_world(2).run(ran, program, *options)[0])


@pytest.mark.parametrize(
    "program",
    [pytest.param(path, marks=[] if path.stem == "two_tower" else pytest.mark.long) for path in PROGRAMS],
    ids=lambda path: path.stem,
)
def test_served_and_the_same_losses(program: Path) -> None:
    small = SMALL[program.stem]
    start = by_torchrun if program.stem == "hstu" else in_this_world
    served, plain = start(program, *small), in_this_world(program, *small, "--plain")
    losses = re.findall(r"loss.*", plain)
    assert losses
    assert losses == re.findall(r"loss.*", served)
    share = re.search(r"served in training: ([0-9.]+)% of the ids", served)
    assert share is not None
    assert float(share[1]) >= 95


def evaluated_in(rank: int, size: int, logits: list[list[float]], labels: list[list[float]]) -> tuple[float, float]:
    """What `evaluated` of the DLRMv4 example returns on a rank that has these samples in two batches."""
    example = runpy.run_path(str(ROOT / "examples/dlrm_v4.py"))

    class Model(nn.Module):
        def forward(self, batch: SimpleNamespace) -> tuple[None, tuple[Tensor, Tensor]]:
            return None, (batch.logits * 2, batch.logits)

    own = [torch.tensor(of[rank]).split([1, len(of[rank]) - 1] if of[rank] else [0, 0]) for of in (logits, labels)]
    batches = [SimpleNamespace(logits=each, labels={"played": played}) for each, played in zip(*own, strict=True)]
    return example["evaluated"](Model(), iter(batches))


@pytest.mark.parametrize("ranks", [[5, 3], [8, 0], [1, 7]])
def test_the_auc_is_that_of_all_pairs_of_all_ranks(ranks: list[int]) -> None:
    """Ranks have different numbers of samples, or none; equal scores count half."""
    scores, labels = [0.5, -1.0, 2.0, 0.5, 0.5, 3.0, -1.0, 0.25], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    pairs = [
        (1.0 if high > low else 0.5 if high == low else 0.0)
        for high, played in zip(scores, labels, strict=True)
        for low, other in zip(scores, labels, strict=True)
        if played and not other
    ]
    dealt = [[of[: ranks[0]], of[ranks[0] :]] for of in (scores, labels)]
    expected = (2 * sum(scores) / 8, sum(pairs) / len(pairs))
    assert shared_world(2).run(evaluated_in, *dealt) == [expected, expected]
