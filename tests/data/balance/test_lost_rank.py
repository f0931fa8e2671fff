"""A rank that is killed and one that is stopped, for real: the others name it, and no other rank.

This file may set a small limit, the only one outside `tests/realtime/` that does: that a rank was stopped can be known
by a limit alone. It ends later on a busy machine, and says the same.
"""

import os
import signal
import threading

import numpy as np
import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from test_step_exchange import steps
from worlds import World

from fsdata.balance.exchange import StepExchange
from fsranks import job_store
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

LIMIT_S = 10.0


def be_killed(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError) as caught:
        steps(exchange, rank, 2, 1)
    with pytest.raises(PeerError) as again:
        steps(exchange, rank, 3, 1)
    exchange.leave()
    exchange.close()
    return str(caught.value), str(again.value), [thread.name for thread in threading.enumerate()]


def test_a_killed_rank_is_named_by_all_others_long_before_the_limit() -> None:
    with World(3) as world:
        first, _, third = world.run(be_killed, lost={1})
    for text, again, threads in (first, third):
        assert "exchange 2" in text
        assert "the process of rank 1 has ended" in text
        assert "rank 1" in again
        assert threads == ["MainThread"]


def be_stopped(rank: int, world_size: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_store, "_PATIENCE_S", PATIENCE_S)  # the store is only slow, if anything
        dist.barrier()  # all are there before the small limit counts
        group = ControlGroup(resolve(), timeout_s=LIMIT_S)
        group.all_gather(np.zeros(1))
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(PeerError) as caught:
            group.all_gather(np.zeros(1))
        group.close("done")
    return str(caught.value)


def test_a_stopped_rank_is_named_by_all_others_and_nobody_else() -> None:
    world = World(3)
    try:
        said = world.run(be_stopped, lost={2})
    finally:
        world.kill()
    for text in said[:2]:
        assert "rank 2 did not answer within" in text
        assert "dead or stopped" in text
        assert all(f"rank {other} did not" not in text and f"rank {other} came" not in text for other in (0, 1))
