"""fscomm over tables that know neither TorchRec nor fbgemm is bitwise the plain loop.

`tests/gpu/test_fscomm_cuda.py` runs the same with two processes on one GPU.
"""

import subprocess
import sys
import threading

import pytest
from patience import PATIENCE_S
from standin_loops import LOOPS, compare
from worlds import World, shared_world


@pytest.mark.parametrize(("loop", "least_served"), [("base", 0.85), ("everything", 0.3)])
def test_bitwise_the_plain_loop(loop: str, least_served: float) -> None:
    """least_served: of the ids; some steps of the loop have to run plainly."""
    for rank, (found, served) in enumerate(shared_world(2).run(compare, loop, "row-wise adagrad", "gloo", "cpu")):
        assert found == [], f"rank {rank}"
        assert served >= least_served


def on_a_device(rank: int, size: int) -> tuple[list[str], float, list[str]]:
    from far_device import FAR, served_there  # changes torch in this process

    with served_there() as device:
        found, served = compare(rank, size, "everything", "row-wise adagrad", "host-staged", str(FAR))
    stalls = [thread for thread in device.stalls if thread == threading.current_thread().name]
    return found, served, stalls


def test_nothing_of_a_step_mixes_tensors_of_host_and_device() -> None:
    """And nothing that trains waits for the device."""
    with World(2) as world:
        for rank, (found, served, stalls) in enumerate(world.run(on_a_device)):
            assert (found, stalls) == ([], []), f"rank {rank}"
            assert served > 0.3, f"rank {rank}"


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("loop", LOOPS)
def test_on_any_number_of_ranks(loop: str, size: int) -> None:
    for rank, (found, _) in enumerate(shared_world(size).run(compare, loop, "sgd", "copy-engine", "cpu")):
        assert found == [], f"rank {rank}"


@pytest.mark.long
def test_it_needs_neither_torchrec_nor_fbgemm() -> None:
    code = """
import sys
for name in ("torchrec", "fbgemm_gpu"):
    sys.modules[name] = None
import standin_loops
"""
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, env=path)
    assert done.returncode == 0, done.stderr
