"""A rank that dies while a transport warms up, and what waiting costs."""

import os
import signal
import time
from typing import Any

import pytest
import torch
from test_opening import CPU
from worlds import World

import fscomm
from fscomm.transports import opening
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import CopyThread
from fscomm.transports.transport import Handle
from fsranks.rank_context import resolve


def die_in_the_warm_up(rank: int, size: int) -> str:
    original = Ring.all_to_all_v

    def dies(self: Ring, *given: Any, **named: Any) -> Handle:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ring, "all_to_all_v", dies)
        with pytest.raises(fscomm.PeerError) as error:
            opening.agree_on("copy-engine", resolve(), CPU, timeout_s=4)
    return str(error.value)


def test_a_rank_that_dies_in_the_warm_up_is_named() -> None:
    with World(3) as world:
        first, _, last = world.run(die_in_the_warm_up, lost=[1])
    assert "rank 1 did not come" in first
    assert "rank 1 did not come" in last


def test_waiting_costs_next_to_nothing() -> None:
    """Processor time of eight waiting threads; a loop without sleep would take all of it."""
    queues, word = [CopyThread("fscomm test") for _ in range(8)], torch.zeros(1, dtype=torch.int32)
    for queue in queues:
        queue.wait(word, 1)
    time.sleep(0.1)
    start, used = time.monotonic(), time.process_time()
    time.sleep(0.5)
    share = (time.process_time() - used) / (time.monotonic() - start)
    word[0] = 1
    for queue in queues:
        assert queue.wait_for(1, 10)
        queue.end()
        queue.join()
    assert share < 0.5
