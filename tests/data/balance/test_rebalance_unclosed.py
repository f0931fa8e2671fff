"""Scripts that end without closing their loader: no hang, no crash at exit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

import fsdata

pytestmark = pytest.mark.long  # whole processes; what ends an open group is in test_control_group.py

SCRIPT = """
import sys, torch, torch.distributed as dist
from fsdata import rebalance

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
balanced = rebalance([{"x": torch.arange(8)}] * 20, lengths=lambda batch: batch["x"], timeout_s=600)
for step, batch in enumerate(balanced):
    if step == 2:
        break
print("done")
"""


def test_a_script_that_breaks_and_ends_ends_well(tmp_path: Path) -> None:
    root = str(Path(fsdata.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path / "store")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        answers = [process.communicate(timeout=PATIENCE_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [(process.returncode, out) for process, (out, _) in zip(ranks, answers, strict=True)] == [
        (0, "done\n")
    ] * 2, answers
