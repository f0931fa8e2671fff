"""fscomm with tables on CUDA, rows through host memory: bitwise the plain loop. Two GPUs and torchrec are needed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs torchrec"),
]


def test_host_staged_is_bitwise_the_plain_loop() -> None:
    script = Path(__file__).with_name("fscomm_on_cuda.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
