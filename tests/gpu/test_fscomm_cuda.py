"""fscomm with tables on CUDA is bitwise the plain loop: by torchrec on two GPUs or one, by stand-in tables on one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from standin_loops import LOOPS, OPTIMIZERS, compare
from worlds import World

from fscomm.transports.opening import agree_on
from fsranks.rank_context import resolve

pytestmark = pytest.mark.gpu


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs torchrec")
@pytest.mark.parametrize(
    ("transport", "programs"),
    [
        ("host-staged", "--usual 1"),
        ("host-staged", "--hot"),
        ("nccl", "--random 6"),
        pytest.param("copy-engine", "--usual 1", marks=two_gpus),
        pytest.param("nccl-ce", "--usual 1", marks=two_gpus),
    ],
)
def test_bitwise_the_plain_loop(transport: str, programs: str) -> None:
    """Two ranks, which share a GPU where there is one."""
    script = str(Path(__file__).with_name("programs_on_cuda.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    environment = {
        **os.environ,
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # which every transport asks for
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # and deterministic algorithms for this
    }
    command += ["--transport", transport, *programs.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bitwise_the_plain_loop_without_torchrec_and_fbgemm() -> None:
    with World(2) as world:
        for optimizer in OPTIMIZERS:
            for loop in LOOPS:
                answers = world.run(compare, loop, optimizer, "host-staged", "cuda:0", timeout_s=60)
                for rank, (found, served) in enumerate(answers):
                    assert found == [], f"rank {rank}, {loop}, {optimizer}"
                    assert served > 0.2, f"rank {rank}, {loop}, {optimizer}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ranks_that_share_a_device_are_refused_copy_engine_in_words() -> None:
    with World(2) as world:
        first, second = world.run(refused, timeout_s=60)
    assert first == second
    assert first.startswith("ranks 0, 1 share a GPU: ")


def refused(rank: int, world_size: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        return agree_on("copy-engine", resolve(), torch.device("cuda", 0), timeout_s=30).why_not
