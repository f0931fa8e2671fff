"""Bringing a message of every rank to every rank: two ways with one result, and the rule that chooses."""

import datetime
import threading

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S

from fsranks.messages import Gather, direct, doubling, way

LIMIT = datetime.timedelta(seconds=PATIENCE_S)


def message(rank: int, size: int) -> torch.Tensor:
    return ((torch.arange(size) * 31 + rank * 7) % 251).to(torch.uint8)


def gathered(gather: Gather, world_size: int, sizes: list[int]) -> list[list[torch.Tensor]]:
    """What each of `world_size` ranks, threads of this process, has after gathering messages of these sizes."""
    store = dist.HashStore()
    found: list[list[torch.Tensor]] = [[] for _ in range(world_size)]

    def run(rank: int) -> None:
        gloo = dist.ProcessGroupGloo(store, rank, world_size, LIMIT)
        for size in sizes:
            found[rank].append(gather(gloo, rank, world_size, message(rank, size)))
        direct(gloo, rank, world_size, message(rank, 1))  # nobody hangs up before all have read

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("world_size", [2, 3, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 8, 11))])
@pytest.mark.parametrize("gather", [direct, doubling], ids=lambda gather: gather.__name__)
def test_every_rank_has_the_messages_of_all_ranks_in_order(gather: Gather, world_size: int) -> None:
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
    way(world_size, size)(gloo, 0, world_size, message(0, size))
    assert gloo.sent == messages
