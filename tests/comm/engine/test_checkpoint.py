"""Checkpoints in mid-run: bitwise those of the plain loop, and service goes on.

`test_resharding.py` reads them on other numbers of ranks.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from exact import Run, compare
from exact_configs import CONFIGS
from patience import PATIENCE_S
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from worlds import shared_world

from fscomm.exchange.wire_gate import WireGate
from fscomm.report.report import WARM_UP

SAVED = 3  # after this step


def by_async_save(run: Run, folder: str) -> None:
    """Torch refuses that for sharded tensors, which are TorchRec's."""
    dcp.save(run.model.state_dict(), checkpoint_id=folder)
    local = {f"{name} {run.rank}": table.detach() for name, table in run.tables().items()}
    saved = dcp.async_save(local, checkpoint_id=f"{folder}/local")
    assert not isinstance(saved, AsyncSaveResponse)
    saved.result()


def by_safetensors(run: Run, folder: str) -> None:
    """Which looks at the storages of what it is given, and writes from their memory; and read back at once."""
    from safetensors.torch import load_file, save_file

    dcp.save(run.model.state_dict(), checkpoint_id=folder)
    tables, file = run.tables(), f"{folder}/{run.rank}.safetensors"
    save_file({name: table.detach() for name, table in tables.items()}, file)
    saved = load_file(file)
    run.record("by safetensors", saved)
    with torch.no_grad():
        for name, table in tables.items():
            table.copy_(saved[name] * 0.5)


def through_files(save: Callable[[Run, str], None], run: Run) -> None:
    """By torch.distributed.checkpoint: written in mid-run, then read back over what was trained since."""
    folder = [tempfile.mkdtemp() if run.rank == 0 else ""]
    dist.broadcast_object_list(folder)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == SAVED:
                save(run, folder[0])
            if step == 2 * SAVED:
                state = run.model.state_dict()
                dcp.load(state, checkpoint_id=folder[0])
                run.model.load_state_dict(state)
                run.record("loaded", run.model.state_dict())
    dist.barrier()
    if run.rank == 0:
        shutil.rmtree(folder[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "save",
    [
        by_async_save,
        pytest.param(
            by_safetensors, marks=pytest.mark.skipif(find_spec("safetensors") is None, reason="not installed")
        ),
    ],
)
def test_a_checkpoint_by_torch_ends_no_service(save: Callable[[Run, str], None]) -> None:
    config = CONFIGS["row"].but(steps=8)
    for found, said in shared_world(2).run(compare, config, partial(through_files, save)):
        assert found == []
        for forwards in said["report"]["forwards"].values():
            assert forwards["plain"] == {WARM_UP: 1}
            assert forwards["served"] == config.steps - 1


READER, OTHER = 1, 0


def read_between(run: Run) -> None:
    """Two backward passes through one forward. Between them one rank reads its tables, as soon as the other one, which
    does not, has begun the second pass and keeps the wire for it."""
    kept, second = threading.Event(), threading.Event()
    enter, wait = WireGate.enter, WireGate.wait

    entries: list[WireGate] = []

    def entered(self: WireGate) -> None:
        enter(self)
        if second.is_set() and threading.current_thread().name != "fscomm ids":
            entries.append(self)
            if len(entries) == 2:  # of the second pass
                kept.set()

    def held(self: WireGate) -> None:
        if second.is_set():
            assert kept.wait(PATIENCE_S)
        wait(self)

    with run.enable() as comm, pytest.MonkeyPatch.context() as patch:
        if run.rank == OTHER and run.mode == "fscomm":
            patch.setattr(WireGate, "enter", entered)
            patch.setattr(WireGate, "wait", held)
        for step, batch in enumerate(comm.lookahead(run.loader())):
            loss = run.loss(step, batch)
            if step == SAVED:
                comm.flush()
                second.set()
                loss.backward(retain_graph=True)
                if run.rank == READER:
                    run.record("between", run.model.state_dict())
            loss.backward()
            run.optimizer.step()


def test_a_state_read_between_two_passes_by_one_rank_waits_for_no_time_limit() -> None:
    """The rows that it waits for are held back by the other rank until that hears of it."""
    config = CONFIGS["row"].but(steps=6)
    for found, _ in shared_world(2).run(compare, config, read_between):
        assert found == []
