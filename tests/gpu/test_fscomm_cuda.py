"""fscomm with tables on CUDA is bitwise the plain loop, over each transport. Two GPUs and torchrec are needed."""

import importlib.util
import os
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


@pytest.mark.parametrize("transport", ["host-staged", "copy-engine", "nccl", "nccl-ce"])
def test_bitwise_the_plain_loop(transport: str) -> None:
    script = Path(__file__).with_name("fscomm_on_cuda.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        transport,
    ]
    queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # which copy-engine asks for
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env={**os.environ, **queues})
    assert done.returncode == 0, done.stdout + done.stderr
