"""Numbers from rank to rank beside the exchanges of a group, over gloo."""

import numpy as np
import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.messages import Signals
from fsranks.rank_context import resolve

SIZE = 3
MANY = 50


def all_of(signals: Signals, number: int) -> list[int]:
    """What came, in order of arrival, until `number` numbers are there."""
    found: list[int] = []
    while len(found) < number:
        found += signals.received()
    return found


def send_and_look(rank: int, world_size: int) -> tuple[list[int], list[int]]:
    """Numbers come while the group makes exchanges, and while it makes none."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    signals = Signals(group.gloo, rank, world_size)
    for number in range(MANY):
        signals.send(MANY * rank + number)
        assert group.all_gather(np.array([rank])).ravel().tolist() == list(range(world_size))
    found = all_of(signals, MANY * (world_size - 1))
    nothing = signals.received()
    dist.barrier()  # what was not read before is gone
    signals.close()
    signals.send(1)
    after = signals.received()
    group.close("done")
    return found, nothing + after


def test_every_number_comes_once_and_in_the_order_of_its_sender() -> None:
    for rank, (found, nothing) in enumerate(shared_world(SIZE).run(send_and_look)):
        for sender in range(SIZE):
            of_sender = [number for number in found if number // MANY == sender]
            assert of_sender == (list(range(MANY * sender, MANY * (sender + 1))) if sender != rank else [])
        assert nothing == []


def lose_one(rank: int, world_size: int) -> str:
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    signals = Signals(group.gloo, rank, world_size)
    if rank == 1:
        group.abort("was told to stop")
    dist.barrier()
    signals.send(rank)
    assert set(signals.received()) <= {0, 2} - {rank}  # what came before the connection ended
    with pytest.raises(PeerError) as caught:
        group.all_gather(np.zeros(1))
    signals.close()
    group.close("done")
    return str(caught.value)


def test_a_lost_rank_is_told_by_the_group() -> None:
    for rank, said in enumerate(shared_world(SIZE).run(lose_one)):
        assert ("" if rank == 1 else "rank 1 ") + "was told to stop" in said


def test_the_only_rank_hears_nothing() -> None:
    signals = Signals(None, 0, 1)
    signals.send(3)
    assert signals.received() == []
    signals.close()
