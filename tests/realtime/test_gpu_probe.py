"""The driver probes on host memory: they find streams that share a hardware queue, and a call that blocks."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_cuda
import pytest
import torch
from host_cuda import Setup, on_host_cuda, world_for

from fscomm.transports.ring.cuda_driver import DriverCalls, register, unregister

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: a file there is named like a module of Python's

import gpu_probe  # noqa: E402
from common.checks import Checks  # noqa: E402

setup = host_cuda.setup


def found(folder: Path, name: str) -> dict[str, tuple[str, str]]:
    checks = json.loads((folder / f"{name}.json").read_text())["checks"]
    return {check["name"].split(",")[0]: (check["status"], check["told"]) for check in checks}


def probed(setup: Setup, case: Callable[..., Any], *args: Any) -> Any:
    """What `case(cuda, word, *args)` gives in a process that has the driver."""
    (answer,) = world_for(setup, 1).run(host_cuda.run, setup, of_one_rank, case, *args)
    return answer


def of_one_rank(rank: int, world_size: int, case: Callable[..., Any], *args: Any) -> Any:
    cuda = DriverCalls(0)
    word = torch.zeros(1, dtype=torch.int32)
    register(cuda, word)
    try:
        return case(cuda, word, *args)
    finally:
        unregister(cuda, word)


def stalled(cuda: DriverCalls, word: torch.Tensor, folder: Path) -> tuple[str, str]:
    queues = {name: cuda.stream() for name in ("ring 1", "ring 2", "torch 0")}
    out, inp = {name: torch.zeros(8, dtype=torch.uint8) for name in queues}, torch.ones(8, dtype=torch.uint8)
    works = {"copies": lambda name: cuda.copy(queues[name], out[name], inp)}
    gpu_probe.stalls(Checks(folder, "stalls"), cuda, queues, works, word)
    assert all(torch.equal(each, inp) for each in out.values())
    return found(folder, "stalls")["copies"]


@on_host_cuda
@pytest.mark.parametrize(
    ("queues", "said"),
    [
        (32, "0 of 2 streams held up others while they waited"),
        (2, "1 of 2 streams held up others while they waited; ring 1 held up torch 0"),
        (
            1,
            "2 of 2 streams held up others while they waited; ring 1 held up ring 2, torch 0; "
            "ring 2 held up ring 1, torch 0",
        ),
    ],
    ids=["32 queues", "2 queues", "1 queue"],
)
def test_streams_that_a_waiting_one_holds_up_are_named(setup: Setup, queues: int, said: str, tmp_path: Path) -> None:
    assert probed(replace(setup, queues=queues), stalled, tmp_path) == ("passed", said)


def grown(cuda: DriverCalls, word: torch.Tensor, folder: Path) -> dict[str, tuple[str, str]]:
    stream = cuda.stream()
    actions = {
        "waits": lambda: cuda("cuStreamSynchronize", stream),
        "fails": lambda: cuda("cuMemAlloc", 1),
        "returns": cuda.stream,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_probe, "WAIT_S", 0.2)
        gpu_probe.growth(Checks(folder, "growth"), gpu_probe.Blocked(cuda, stream, word), actions)
    return found(folder, "growth")


@on_host_cuda
def test_calls_that_come_back_only_later_are_told_and_errors_end_nothing(setup: Setup, tmp_path: Path) -> None:
    told = probed(setup, grown, tmp_path)
    assert told["waits"] == ("passed", "comes back only when the stream goes on")
    status, why = told["fails"]
    assert status == "failed"
    assert why.startswith("CudaError: cuMemAlloc on CUDA device 0: ")
    assert told["returns"][0] == "passed"
    assert told["returns"][1].endswith(" ms")
