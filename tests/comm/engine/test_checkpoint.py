"""Checkpoints: written with or without fscomm in mid-run, read with or without it, all the same bits."""

import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from exact import Mode, Run, compare, differences, flat, new_run, raw_state
from exact_configs import CONFIGS
from exact_model import Config
from patience import PATIENCE_S
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from worlds import shared_world

from fscomm.exchange.operations import EXCLUSIVE
from fscomm.exchange.wire_gate import WireGate
from fscomm.report.report import WARM_UP

SAVED = 3  # after this step
State = dict[str, Any]


def write(run: Run) -> tuple[State, State]:
    """Train a while, take the state with training under way, train on. What was written, and the state at the end."""
    written: State = {}
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == SAVED:
                written = flat({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()})
    return written, flat(raw_state(run.model, run.optimizer))


def read(run: Run, written: State, *, inside: bool) -> State:
    """A model that was trained on something else takes it, before the block or in it, and trains the rest."""

    def load() -> None:
        for name, owner in (("model", run.model), ("optimizer", run.optimizer)):
            state = owner.state_dict()
            _fill(state, written[name])
            owner.load_state_dict(state)

    run.train(50, run.loader(50, 51)[0])
    if not inside:
        load()
    with run.enable() as comm:
        if inside:
            load()
        for step, batch in enumerate(comm.lookahead(run.loader(SAVED + 1)), SAVED + 1):
            run.train(step, batch)
    return flat(raw_state(run.model, run.optimizer))


def _fill(state: Any, saved: Any) -> None:
    """Copy what `flat` took apart into a state whose tensors are still sharded."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if hasattr(value, "local_shards"):
            for shard, (tensor, _) in zip(value.local_shards(), saved[key], strict=True):
                shard.tensor.copy_(tensor)
        elif isinstance(value, torch.Tensor):
            value.copy_(saved[key])
        elif isinstance(value, (dict, list)):
            _fill(value, saved[key])


def interchange(rank: int, size: int, config: Config) -> list[str]:
    """Every way to write and to read against the plain one; names of what differs."""

    def new(mode: Mode) -> Run:
        return new_run(rank, size, config, mode)

    (plain, plain_end), (served, served_end) = write(new("plain")), write(new("fscomm"))
    expected = read(new("plain"), plain, inside=False)
    return [
        *differences([plain, plain_end], [served, served_end], "written"),
        *differences(_weights(plain_end), _weights(expected), "restored and trained on"),
        *differences(expected, read(new("plain"), served, inside=False), "read without"),
        *differences(expected, read(new("fscomm"), plain, inside=False), "read before the block"),
        *differences(expected, read(new("fscomm"), served, inside=True), "read in the block"),
    ]


def _weights(state: State) -> State:
    return {name: value for name, value in state.items() if name.endswith("weights")}


@pytest.mark.parametrize(("size", "config"), [(2, "half rowwise"), pytest.param(3, "loops", marks=pytest.mark.long)])
def test_interchange_in_both_directions(size: int, config: str) -> None:
    for rank, found in enumerate(shared_world(size).run(interchange, CONFIGS[config].but(steps=7))):
        assert found == [], f"rank {rank}"


def by_save(run: Run, folder: str) -> None:
    dcp.save(run.model.state_dict(), checkpoint_id=folder)


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
        by_save,
        by_async_save,
        pytest.param(
            by_safetensors, marks=pytest.mark.skipif(find_spec("safetensors") is None, reason="not installed")
        ),
    ],
)
def test_a_checkpoint_by_torch_ends_no_service(save: Callable[[Run, str], None]) -> None:
    config = CONFIGS["row"].but(steps=12)
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


def written_before_a_forward(run: Run) -> None:
    """All tables, once the exclusive rows of the step after have been fetched."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == SAVED:
                if run.mode == "fscomm":
                    *_, coming = comm._engine.steps.to_come()
                    for module in coming.modules:
                        module.fetched[EXCLUSIVE].done.result()
                with torch.no_grad():
                    for table in run.tables().values():
                        table.mul_(0.5)
            run.train(step, batch)


def test_tables_that_are_written_before_a_forward_are_read_anew_for_the_step_after_it() -> None:
    for found, _ in shared_world(2).run(compare, CONFIGS["row"].but(steps=6), written_before_a_forward):
        assert found == []
