"""fscomm over tables that know neither TorchRec nor fbgemm is bitwise the plain loop, over every transport of a CPU.

`tests/gpu/test_fscomm_cuda.py` runs the same with two processes on one GPU.
"""

import subprocess
import sys
from typing import Any

import pytest
from device_thread import one_device_thread
from patience import PATIENCE_S
from standin_loops import LOOPS, OPTIMIZERS, compare
from worlds import shared_world

LEAST_SERVED = {"base": 0.85, "other_batch": 0.6}  # of the ids; elsewhere some steps have to run plainly


def cheap(*chosen: str) -> list[Any]:
    """All loops, long but for the `chosen` ones."""
    return [pytest.param(loop, marks=() if loop in chosen else pytest.mark.long) for loop in LOOPS]


@pytest.mark.parametrize(
    "transport", ["gloo", *(pytest.param(each, marks=pytest.mark.long) for each in ("host-staged", "copy-engine"))]
)
@pytest.mark.parametrize("loop", cheap("base", "other_batch"))
def test_bitwise_the_plain_loop(loop: str, transport: str) -> None:
    for rank, (found, served) in enumerate(shared_world(2).run(compare, loop, "row-wise adagrad", transport, "cpu")):
        assert found == [], f"rank {rank}"
        assert served >= LEAST_SERVED.get(loop, 0.2)


@pytest.mark.long
@pytest.mark.parametrize(("size", "optimizer"), [(1, "sgd"), (3, "sgd"), *((4, each) for each in OPTIMIZERS)])
@pytest.mark.parametrize("loop", LOOPS)
def test_on_any_number_of_ranks(loop: str, optimizer: str, size: int) -> None:
    for rank, (found, _) in enumerate(shared_world(size).run(compare, loop, optimizer, "gloo", "cpu")):
        assert found == [], f"rank {rank}"


def in_one_thread(rank: int, size: int, loop: str) -> list[str]:
    with one_device_thread():
        return compare(rank, size, loop, "sgd", "gloo", "cpu")[0]


@pytest.mark.parametrize("loop", cheap("base"))
def test_with_backward_in_one_thread(loop: str) -> None:
    assert shared_world(2).run(in_one_thread, loop) == [[], []]


@pytest.mark.long
def test_it_needs_neither_torchrec_nor_fbgemm() -> None:
    code = """
import sys
for name in ("torchrec", "fbgemm_gpu"):
    sys.modules[name] = None
import standin_loops
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, env=_environment()
    )
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
