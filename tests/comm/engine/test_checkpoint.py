"""Checkpoints: written with or without fscomm, in mid-run or after it, read with or without it, all the same bits."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from exact import Mode, Run, differences, flat, new_run, raw_state
from exact_configs import CONFIGS
from exact_model import Config
from worlds import shared_world

SAVED = 3  # after this step
MODES: dict[str, Mode] = {"plain": "plain", "fscomm": "fscomm"}


def write(run: Run, folder: Path) -> dict[str, Any]:
    """Train a while, write a checkpoint with training under way, train on."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == SAVED:
                dcp.save(run.model.state_dict(), checkpoint_id=folder / "model")
                torch.save(flat(run.optimizer.state_dict()), folder / f"optimizer.{run.rank}")
    return flat(raw_state(run.model, run.optimizer))


def read(run: Run, folder: Path, *, inside: bool) -> dict[str, Any]:
    """A model that was trained on something else takes it, before the block or in it, and trains the rest."""

    def load() -> None:
        state = run.model.state_dict()
        dcp.load(state, checkpoint_id=folder / "model")
        run.model.load_state_dict(state)
        saved = torch.load(folder / f"optimizer.{run.rank}")
        state = run.optimizer.state_dict()
        _fill(state, saved)
        run.optimizer.load_state_dict(state)

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


def interchange(rank: int, size: int, config: Config, root: str) -> list[str]:
    """Every way to write and to read against the plain one; names of what differs."""
    folders, found = {}, []
    ends: dict[str, Any] = {}
    for name, mode in MODES.items():
        folder = folders[name] = Path(root) / name
        folder.mkdir(exist_ok=True)
        dist.barrier()
        ends[name] = write(new_run(rank, size, config, mode), folder)
        dist.barrier()
    found += differences(ends["plain"], ends["fscomm"], "after writing")
    saved = {mode: torch.load(folder / f"optimizer.{rank}") for mode, folder in folders.items()}
    found += differences(saved["plain"], saved["fscomm"], "optimizer in the checkpoint")
    expected = None
    for writer, reader, inside in itertools.product(MODES, MODES, (False, True)):
        end = read(new_run(rank, size, config, MODES[reader]), folders[writer], inside=inside)
        expected = end if expected is None else expected
        found += differences(expected, end, f"written {writer}, read {reader}, inside {inside}")
    assert expected is not None
    found += differences(_weights(ends["plain"]), _weights(expected), "restored and trained on")
    return found


def _weights(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name.endswith("weights")}


IN_FULL = [pytest.param(size, "loops", marks=pytest.mark.long) for size in (2, 3)]


@pytest.mark.parametrize(("size", "config"), [(2, "half rowwise"), *IN_FULL])
def test_interchange_in_both_directions(size: int, config: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        for rank, found in enumerate(shared_world(size).run(interchange, CONFIGS[config], root)):
            assert found == [], f"rank {rank}"
