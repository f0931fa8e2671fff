"""Ranks of a job that are killed, stopped, late or never come: the others name them in time, and nobody else."""

import os
import signal
import time

import numpy as np
import pytest
import torch.distributed as dist
from worlds import World

from fsranks import gathering
from fsranks.control_group import DIAGNOSIS_S, ControlGroup
from fsranks.errors import PeerError
from fsranks.local_processes import Neighbours
from fsranks.meeting import Meeting
from fsranks.rank_context import resolve

SIZE = 3


def die_while_one_is_busy(rank: int, world_size: int) -> str:
    """Rank 1 dies; rank 2 has other things to do and hears of nothing before rank 0 has given its verdict."""
    group = ControlGroup(resolve(), timeout_s=60)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        time.sleep(5)
    with pytest.raises(PeerError) as caught:
        group.all_gather(np.zeros(1))
    assert group.gone() == [1]
    group.close("done")
    return str(caught.value)


def test_who_is_only_busy_is_not_taken_for_dead() -> None:
    with World(SIZE) as world:
        first, _, busy = world.run(die_while_one_is_busy, lost=[1])
    for said in (first, busy):
        assert "the process of rank 1 has ended" in said
        assert "2" not in said.partition("gloo said")[0].replace("exchange 0 between the ranks failed on rank 2", "")


def stop_while_one_is_busy(rank: int, world_size: int, elsewhere: bool) -> tuple[str, float]:
    """Rank 2 is stopped, and rank 1 comes when rank 0 has long given its verdict."""
    limit_s = 4.0
    group = ControlGroup(resolve(), timeout_s=limit_s)
    if elsewhere:
        group._neighbours = Neighbours({})
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1 and not elsewhere:
        time.sleep(limit_s + 2)
    start = time.monotonic()
    with pytest.raises(PeerError) as caught:
        group.all_gather(np.zeros(1))
    took = time.monotonic() - start
    group.close("done")
    return str(caught.value), took


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on one machine", "on three"])
def test_a_stopped_rank_is_named_within_the_limit_and_no_other(elsewhere: bool) -> None:
    world = World(SIZE)
    try:
        first, second, _ = world.run(stop_while_one_is_busy, elsewhere, lost=[2])
    finally:
        world.kill()
    for said, took in (first, second):
        assert "rank 2 did not answer within" in said
        assert "dead or stopped" in said
        assert took < 4.0 + DIAGNOSIS_S + 2


def late_while_doubling(rank: int, world_size: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_DIRECT_RANKS", 0)
        group = ControlGroup(resolve(), timeout_s=4)
        group.all_gather(np.zeros(1))
        dist.barrier()
        if rank == 1:
            time.sleep(7)
        with pytest.raises(PeerError) as caught:
            group.all_gather(np.zeros(1))
        group.close("done")
    return str(caught.value)


def test_a_rank_that_is_late_while_others_double_is_named() -> None:
    with World(4) as world:
        said = world.run(late_while_doubling)
    for text in (said[0], said[2], said[3]):
        assert "rank 1 came after the others had waited 4.0 s" in text
    assert "rank 1 came after the others had waited" in said[1]


def miss(rank: int, world_size: int, absent: int, late: int = -1) -> str:
    """Rank `absent` never comes, rank `late` shortly before the others' time ends."""
    if rank == absent:
        return ""
    if rank == late:
        time.sleep(2)
    start = time.monotonic()
    with pytest.raises(PeerError) as caught, Meeting(resolve(), what="test", timeout_s=3) as meeting:
        meeting.agree({"seed": "7"})
    assert time.monotonic() - start < 3 + 2
    return str(caught.value)


@pytest.mark.parametrize(("absent", "late"), [(0, -1), (1, -1), (2, 0)])
def test_a_rank_that_never_comes_is_named(absent: int, late: int) -> None:
    with World(3) as world:
        answers = world.run(miss, absent, late)
    for rank, text in enumerate(answers):
        assert (rank == absent) == (text == "")
        assert rank == absent or f"rank {absent} did not come within 3 s" in text


def stop(rank: int, world_size: int) -> str:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return miss(rank, world_size, absent=0)


def test_a_stopped_store_does_not_hang_anybody() -> None:
    world = World(2)
    try:
        _, text = world.run(stop, lost={0})
    finally:
        world.kill()
    assert "rank 0, which hosts the job's store, " in text
