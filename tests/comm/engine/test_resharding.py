"""Checkpoints by torch.distributed.checkpoint: written in mid-run, read on as many ranks, on fewer, and on more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from exact import Mode, Run, differences, flat, new_run, raw_state
from exact_configs import CONFIGS
from exact_model import Config
from worlds import shared_world

SAVED = 3  # after this step
Parts = list[tuple[tuple[int, ...], np.ndarray]]  # where each begins in the whole tensor. Ranks give no tensors: torch
# would start a thread in them, which shares the memory.


def state_of(run: Run) -> dict[str, Any]:
    return {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}


def parts_of(state: Any, name: str = "") -> dict[str, Any]:
    """By path: the parts that this rank has of a tensor; or what else there is."""
    if isinstance(state, (dict, list, tuple)):
        inside = state.items() if isinstance(state, dict) else enumerate(state)
        return {path: parts for key, value in inside for path, parts in parts_of(value, f"{name}/{key}").items()}
    if hasattr(state, "local_shards"):
        shards = state.local_shards()
        return {name: [(tuple(shard.metadata.shard_offsets), _array(shard.tensor)) for shard in shards]}
    if isinstance(state, torch.Tensor):
        return {name: [((0,) * state.dim(), _array(state))]}
    return {name: state}


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def whole(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for of_rank in of_ranks:
        for name, there in of_rank.items():
            found[name] = [*found.get(name, []), *there] if isinstance(there, list) else there
    return {name: _together(there) if isinstance(there, list) and there else there for name, there in found.items()}


def _together(parts: Parts) -> torch.Tensor:
    """NaN is in the places that no rank has."""
    ends = [[first + length for first, length in zip(begin, part.shape, strict=True)] for begin, part in parts]
    found = np.full([max(each) for each in zip(*ends, strict=True)], np.nan, dtype=parts[0][1].dtype)
    for (begin, part), end in zip(parts, ends, strict=True):
        found[tuple(slice(*each) for each in zip(begin, end, strict=True))] = part
    return torch.from_numpy(found)


def written(rank: int, size: int, config: Config, folder: str) -> dict[str, Any]:
    """What the checkpoint holds, as this rank saw it."""
    run, kept = new_run(rank, size, config, "fscomm"), {}
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == SAVED:
                state = state_of(run)
                dcp.save(state, checkpoint_id=folder)
                kept = parts_of(state)
    return kept


def read(rank: int, size: int, config: Config, folder: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What a new model has read, without fscomm and with it; and what differs when both have trained on."""
    kept: list[dict[str, Any]] = []
    ends: list[Any] = []
    modes: tuple[Mode, ...] = "plain", "fscomm"
    for mode in modes:
        run = new_run(rank, size, config, mode)
        for name, optimizer in run.optimizer.optimizers:
            if name == "dense":
                optimizer.init_state()
        with run.enable() as comm:
            state = state_of(run)
            dcp.load(state, checkpoint_id=folder)
            run.model.load_state_dict(state["model"])
            run.optimizer.load_state_dict(state["optimizer"])
            kept.append(parts_of(state_of(run)))
            for step, batch in enumerate(comm.lookahead(run.loader(SAVED + 1)), SAVED + 1):
                run.train(step, batch)
        ends.append(flat(raw_state(run.model, run.optimizer)))
    return kept, differences(*ends)


@pytest.mark.filterwarnings("ignore")
def test_bitwise(tmp_path: Path) -> None:
    config, folder = CONFIGS["several"].but(steps=6), str(tmp_path / "checkpoint")
    saved = whole(shared_world(2).run(written, config, folder))
    for size in (2, 1, 3):
        of_ranks, different = zip(*shared_world(size).run(read, config, folder), strict=True)
        for kept in zip(*of_ranks, strict=True):
            assert differences(saved, whole(list(kept))) == [], size
        assert different == ([],) * size
