"""fscomm over tables that know neither TorchRec nor fbgemm is bitwise the plain loop.

`tests/gpu/test_fscomm_cuda.py` runs the same with two processes on one GPU.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from standin_loops import LOOPS, MODULES, Model, Run, batch, compare
from worlds import World, shared_world

from fscomm.loop.kjt_paths import Snapshot
from fscomm.recipes.search import recipe


@pytest.mark.parametrize(("loop", "least_served"), [("base", 0.85), ("everything", 0.3)])
def test_bitwise_the_plain_loop(loop: str, least_served: float) -> None:
    """least_served: of the ids; some steps of the loop have to run plainly."""
    for rank, (found, served) in enumerate(shared_world(2).run(compare, loop, "row-wise adagrad", "gloo", "cpu")):
        assert found == [], f"rank {rank}"
        assert served >= least_served


@pytest.fixture(scope="module")
def far_world() -> Iterator[World]:
    """Of processes of its own, in which torch is changed (`far_device`)."""
    with World(2) as world:
        yield world


def on_a_device(rank: int, size: int, transport: str) -> tuple[list[str], float, list[str]]:
    from far_device import FAR, served_there

    with served_there() as device:
        found, served = compare(rank, size, "everything", "row-wise adagrad", transport, str(FAR))
    stalls = [thread for thread in device.stalls if thread == threading.current_thread().name]
    return found, served, stalls


@pytest.mark.parametrize("transport", ["host-staged", "nccl"])
def test_nothing_of_a_step_mixes_tensors_of_host_and_device(transport: str, far_world: World) -> None:
    """And nothing that trains waits for the device. transport: issued by a worker for each class, or by one for all."""
    for rank, (found, served, stalls) in enumerate(far_world.run(on_a_device, transport)):
        assert (found, stalls) == ([], []), f"rank {rank}"
        assert served > 0.3, f"rank {rank}"


def cost_of_steps(rank: int, size: int, transport: str) -> tuple[float, list[Any]]:
    """Launches of the training thread for each forward that is served, and all calls that wait or copy."""
    from far_device import CALLS, FAR, served_there

    with served_there():
        where = torch.device(str(FAR))
        run = Run(transport, Model("row-wise adagrad", where), where)
        loader = run.loader(0, 20)
        CALLS.clear()
        with run.enable() as comm:
            for step, given in enumerate(comm.lookahead(loader)):
                if step == 4:  # all that is done once was done
                    CALLS.clear()
                run.train(step, given)
    mine = threading.current_thread().name
    launches = sum(count for call, count in CALLS.items() if call.kind == "launch" and call.thread == mine)
    return launches / (16 * len(MODULES)), [call for call in CALLS if call.kind != "launch"]


@pytest.mark.parametrize("transport", ["host-staged", "nccl"])
def test_what_a_step_costs_where_tables_are_on_a_device(transport: str, far_world: World) -> None:
    """Of a forward the training thread launches the gather of its rows, and what autograd holds on to. Nothing is
    copied but by `put`, and by the transport."""
    for launches, crossing in far_world.run(cost_of_steps, transport):
        assert launches <= 2
        assert {(call.kind, call.place) for call in crossing} == {("copy", "fscomm.transports.staged.host_staged")}


def waits_to_recognise(rank: int, size: int) -> list[str]:
    """For features of equal contents in other tensors, as where a model makes them anew."""
    from far_device import CALLS, FAR, served_there

    with served_there():
        announced, given = (batch(rank, 0, torch.device(str(FAR))).a for _ in range(2))
        snapshot = Snapshot(announced)
        CALLS.clear()
        assert snapshot.matches(given)
        assert snapshot.matches(announced)
    return [call.operator for call in CALLS.elements() if call.kind != "launch"]


def test_features_are_recognised_by_one_wait_for_the_device(far_world: World) -> None:
    """And by none, if they are the very tensors that were announced."""
    assert far_world.run(waits_to_recognise) == [["aten::_local_scalar_dense"]] * 2


def looks_for_features(rank: int, size: int) -> tuple[list[str], list[str]]:
    """The keys that are nowhere in a batch on the device, and in one that was left in host memory."""
    from far_device import FAR, served_there

    with served_there():
        here, there = batch(rank, 0, torch.device("cpu")), batch(rank, 0, torch.device(str(FAR)))
        search = partial(recipe, make=lambda *_: None)
        return search([there, here], there.a)[1], search(here, there.a)[1]


def test_features_are_looked_for_where_they_are(far_world: World) -> None:
    for found in far_world.run(looks_for_features):
        assert found == ([], batch(0, 0, torch.device("cpu")).a.keys())


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
