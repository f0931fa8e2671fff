"""Entering a block fails on one rank: that rank raises its error, all others raise it, too, and nothing is left."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from exact import attachments, compare
from exact_kinds import TWO
from exact_loops import base
from exact_model import Config, batches, build
from patience import PATIENCE_S
from torch.distributed.distributed_c10d import _world
from worlds import exit_codes, shared_world

import fscomm
from fscomm.engine import hooks
from fscomm.exchange import executor
from fscomm.tables.torchrec import binding

CONFIG = Config(modules=TWO, static_graph=False, steps=4)
ODD = 1

PLACES = {  # where it fails, and in which call
    "tables": (binding, "bind", 1),
    "workers": (executor, "Worker", 2),
    "flush points": (hooks, "find", 1),
}


def enter(
    rank: int, size: int, where: tuple[Any, str, int], timeout_s: float, *, goes_on: bool
) -> tuple[str, list[str], list[str]]:
    """What entering raised, what it left, and what differs in a loop after, if the job `goes_on`."""
    model, optimizer = build(CONFIG, size)
    with fscomm.enable(model):
        pass  # what a first block leaves in a process, such as connections of torch, is not counted
    before = attachments(model, optimizer)
    threads, groups, files = set(threading.enumerate()), set(_world.pg_map), len(os.listdir("/proc/self/fd"))
    owner, name, call = where
    works = [getattr(owner, name)] * (call - 1)
    failing = mock.patch.object(owner, name, side_effect=Failing(*works))
    with failing if rank == ODD else contextlib.nullcontext():
        try:
            fscomm.enable(model, timeout_s=timeout_s).__enter__()
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    left = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads if thread.is_alive()]
    left += [f"group {group}" for group in set(_world.pg_map) - groups]
    if attachments(model, optimizer) != before:
        left.append("attributes of the model")
    if (more := len(os.listdir("/proc/self/fd")) - files) > 0:
        left.append(f"{more} descriptors")
    return said, left, compare(rank, size, CONFIG, base)[0] if goes_on else []


class Failing:
    """Calls what it is given, one after the other, then fails."""

    def __init__(self, *works: Any) -> None:
        self._works = list(works)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self._works:
            raise OSError("no descriptors left")
        return self._works.pop(0)(*args, **options)


def entered(rank: int, size: int, place: str) -> tuple[str, list[str], list[str]]:
    return enter(rank, size, PLACES[place], PATIENCE_S, goes_on=True)


@pytest.mark.parametrize("place", PLACES)
def test_entering_fails_on_one_rank(place: str) -> None:
    for rank, (said, left, differs) in enumerate(shared_world(2).run(entered, place)):
        if rank == ODD:
            assert said == "OSError: no descriptors left"
        else:
            assert said.startswith("PeerError: ")
            assert f"rank {ODD} failed: OSError: no descriptors left" in said
        assert left == []
        assert differs == []


def end_inside_the_block(rank: int, size: int, folder: Path) -> None:
    """Between two steps: workers have updates to do, and rows of the next step to fetch."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    model, _ = build(CONFIG, size)
    comm = fscomm.enable(model, timeout_s=PATIENCE_S).__enter__()
    for _, batch in zip(range(2), comm.lookahead(batches(CONFIG, rank, size, 0, 4)), strict=False):
        model(batch).sum().backward()
    globals()["left"] = comm  # as a variable of a script


def test_a_process_that_ends_inside_the_block_ends_well(tmp_path: Path) -> None:
    assert exit_codes(end_inside_the_block, 2, tmp_path) == [0, 0]


def test_without_torchrec_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(ModuleNotFoundError, match="which is not installed: see Installing in the README"):
        fscomm.enable(torch.nn.Linear(1, 1))
