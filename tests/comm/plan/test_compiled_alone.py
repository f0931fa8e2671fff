"""No kernel is compiled during a step: that takes seconds, in which all other ranks would wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.long  # a whole process
def test_all_kernels_are_ready_before_the_first_step() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "compiled_alone.py"), str(ROOT / "benchmarks")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[-2] == "[] 1"
