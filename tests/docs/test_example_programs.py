"""The programs in `examples/`, as a user starts them: with fscomm they print the losses of the plain loop."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
SMALL = {
    "bert4rec": ("--users", "800", "--epochs", "1"),
    "dlrm": ("--steps", "25"),
    "hstu": ("--rows", "1600"),
    "two_tower": ("--rows", "3200"),
}
LONGEST = 150


def printed(program: Path, *options: str) -> str:
    """What rank 0 of two printed."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(program),
            *options,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_served_and_the_same_losses(program: Path) -> None:
    small = SMALL[program.stem]
    served, plain = printed(program, *small), printed(program, *small, "--plain")
    losses = re.findall(r"loss.*", plain)
    assert losses
    assert losses == re.findall(r"loss.*", served)
    share = re.search(r"served in training: ([0-9.]+)% of the ids", served)
    assert share is not None
    assert float(share[1]) >= 95


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_short_enough_to_read(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= LONGEST
