"""Bringing a message of every rank to every rank: two ways with one result, and the rule that chooses."""

import datetime
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fsranks import gathering
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

LIMIT = datetime.timedelta(seconds=PATIENCE_S)


def message(rank: int, size: int) -> torch.Tensor:
    return ((torch.arange(size) * 31 + rank * 7) % 251).to(torch.uint8)


def gathered(gather: gathering.Gather, world_size: int, sizes: list[int]) -> list[list[torch.Tensor]]:
    """What each of `world_size` ranks, threads of this process, has after gathering messages of these sizes."""
    store = dist.HashStore()
    found: list[list[torch.Tensor]] = [[] for _ in range(world_size)]

    def run(rank: int) -> None:
        gloo = dist.ProcessGroupGloo(store, rank, world_size, LIMIT)
        for size in sizes:
            found[rank].append(gather(gloo, rank, world_size, message(rank, size)))
        gathering.direct(gloo, rank, world_size, message(rank, 1))  # nobody hangs up before all have read

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("world_size", [2, 3, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 8, 11))])
@pytest.mark.parametrize("gather", [gathering.direct, gathering.doubling], ids=lambda gather: gather.__name__)
def test_every_rank_has_the_messages_of_all_ranks_in_order(gather: gathering.Gather, world_size: int) -> None:
    sizes = [1, 96, 5000, 96]
    expected = [torch.cat([message(rank, size) for rank in range(world_size)]) for size in sizes]
    for found in gathered(gather, world_size, sizes):
        assert all(map(torch.equal, found, expected))


class Counted:
    """In the place of gloo's group: how many messages this rank sends. Nothing arrives."""

    def __init__(self) -> None:
        self.sent = 0

    def alltoall_base(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> "Counted":
        self.sent += sum(size > 0 for size in sent) - 1
        return self

    def send(self, *_: object) -> "Counted":
        self.sent += 1
        return self

    def recv(self, *_: object) -> "Counted":
        return self

    def wait(self) -> None:
        """It is over."""


@pytest.mark.parametrize(
    ("world_size", "size", "messages"),
    [(2, 96, 1), (8, 1024, 7), (8, 1 << 20, 3), (9, 96, 4), (256, 1024, 8), (1000, 96, 10), (1024, 8192, 10)],
)
def test_few_ranks_and_small_messages_go_at_once_the_others_in_few_rounds(
    world_size: int, size: int, messages: int
) -> None:
    gloo = Counted()
    gathering.way(world_size, size)(gloo, 0, world_size, message(0, size))
    assert gloo.sent == messages


def gather_in_control_group(rank: int, world_size: int, few: int) -> list[list[list[float]]]:
    """Any dtype and shape, in either way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_DIRECT_RANKS", few)
        group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
        found = [group.all_gather(np.array([[rank, 2]], dtype)).tolist() for dtype in (np.int64, np.float32, np.uint8)]
        assert group.all_gather(np.empty((0, 2))).shape == (world_size, 0, 2)
        assert group.all_gather(np.array(rank)).tolist() == list(range(world_size))
        group.close("done")
    return found


@pytest.mark.parametrize("few", [0, 8], ids=["doubling", "direct"])
def test_a_group_gathers_arrays(few: int) -> None:
    expected = [[[rank, 2]] for rank in range(3)]
    assert shared_world(3).run(gather_in_control_group, few) == [[expected] * 3] * 3


def leave_while_doubling(rank: int, world_size: int, leaving: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_DIRECT_RANKS", 0)
        group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
        group.all_gather(np.zeros(1))
        dist.barrier()
        if rank == leaving:
            group.close("left for lunch")
            return ""
        with pytest.raises(PeerError) as caught:
            group.all_gather(np.zeros(1))
        group.close("done")
    return str(caught.value)


@pytest.mark.parametrize(
    ("world_size", "leaving"), [(3, 2), *(pytest.param(4, rank, marks=pytest.mark.long) for rank in (0, 3))]
)
def test_a_rank_that_leaves_while_others_double_is_named_by_all(world_size: int, leaving: int) -> None:
    said = shared_world(world_size).run(leave_while_doubling, leaving)
    assert [f"rank {leaving} left for lunch" in text for text in said] == [
        rank != leaving for rank in range(world_size)
    ]
