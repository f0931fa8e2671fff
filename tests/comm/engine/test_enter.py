"""Entering a block fails on one rank: that rank raises its error, all others raise it, too, and nothing is left."""

import contextlib
import os
import threading
import time
from typing import Any
from unittest import mock

import pytest
from exact import attachments, compare
from exact_kinds import TWO
from exact_loops import base
from exact_model import Config, build
from torch.distributed.distributed_c10d import _world
from worlds import World, shared_world

import fscomm
from fscomm import comm
from fscomm.exchange import connections
from fscomm.tables.binding import Binding
from fscomm.tables.torchrec import torchrec_library

CONFIG = Config(modules=TWO, static_graph=False, steps=4)
LIMIT_S = 6.0
SLACK_S = 5.0
ODD = 1

PLACES = {  # where it fails, and in which call
    "tables": (torchrec_library, "bind", 1),
    "workers": (connections, "Worker", 2),
    "proxies": (Binding, "proxies", 2),
    "flush points": (comm, "install", 2),
}
TOGETHER = {  # while the others wait for it where no word reaches them; a job cannot go on after that
    "channel": (connections, "channel", 2),
    "row transports": (connections, "open_transport", 2),
}


def failing(owner: Any, name: str, call: int) -> Any:
    real, calls = getattr(owner, name), 0

    def replaced(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError("no descriptors left")
        return real(*args, **options)

    return mock.patch.object(owner, name, replaced)


def enter(rank: int, size: int, place: str) -> tuple[str, float, list[str], list[str]]:
    """What entering raised, how long it took, what it left, and what differs in a loop after."""
    model, optimizer = build(CONFIG, size)
    with fscomm.enable(model):
        pass  # what a first block leaves in a process, such as connections of torch, is not counted
    before = attachments(model, optimizer)
    threads, groups, files = set(threading.enumerate()), set(_world.pg_map), len(os.listdir("/proc/self/fd"))
    start = time.monotonic()
    with failing(*(PLACES | TOGETHER)[place]) if rank == ODD else contextlib.nullcontext():
        try:
            fscomm.enable(model, timeout_s=LIMIT_S).__enter__()
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    took = time.monotonic() - start
    left = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads if thread.is_alive()]
    left += [f"group {group}" for group in set(_world.pg_map) - groups]
    if attachments(model, optimizer) != before:
        left.append("attributes of the model")
    if (more := len(os.listdir("/proc/self/fd")) - files) > 0:
        left.append(f"{more} descriptors")
    return said, took, left, compare(rank, size, CONFIG, base)[0] if place in PLACES else []


@pytest.mark.parametrize("place", PLACES)
def test_entering_fails_on_one_rank(place: str) -> None:
    for rank, (said, took, left, differs) in enumerate(shared_world(3).run(enter, place)):
        if rank == ODD:
            assert said == "OSError: no descriptors left"
        else:
            assert said.startswith("PeerError: ")
            assert f"rank {ODD} failed: OSError: no descriptors left" in said
        assert took < LIMIT_S / 2
        assert left == []
        assert differs == []


@pytest.mark.parametrize("place", TOGETHER)
def test_opening_fails_on_one_rank(place: str) -> None:
    world = World(2)
    try:
        answers = world.run(enter, place)
    finally:
        world.kill()
    for rank, (said, took, left, _) in enumerate(answers):
        assert said == "OSError: no descriptors left" if rank == ODD else said.startswith("PeerError: ")
        assert rank == ODD or f"rank {ODD}" in said
        assert took < LIMIT_S + SLACK_S
        assert left == []
