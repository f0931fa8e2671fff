"""Exchanges over a ControlGroup: order, how many are under way, and what ends them.

Ranks are threads on a played clock. What hangs on gloo itself, or on threads, is tested with processes.
"""

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from played_network import Job, PlayedNetwork
from ranks_as_threads import Ranks
from worlds import shared_world

from fsranks.control_group import AllToAll, BegunExchange, ControlGroup
from fsranks.errors import PeerError
from fsranks.job_store import DIAGNOSIS_S
from fsranks.rank_context import RankContext, resolve

SIZE = 3
LIMIT_S = 10.0
DTYPES = [torch.float32, torch.int64, torch.uint8, torch.float16]


def sizes_of(part: int) -> list[list[int]]:
    """[W senders][W receivers] entries; parts 3, 7, ... are empty, and rank 1 sends nothing in the others' first."""
    draw = random.Random(part)
    if part % 4 == 3:
        return [[0] * SIZE for _ in range(SIZE)]
    return [[0 if part % 4 == 0 and sender == 1 else draw.randrange(6) for _ in range(SIZE)] for sender in range(SIZE)]


def entries(part: int, sender: int, receiver: int) -> torch.Tensor:
    """[n, 2] what one rank sends to another."""
    number = sizes_of(part)[sender][receiver]
    first = 10 * (part % 4) + 3 * sender + receiver  # at most 99: exact in every dtype
    return torch.arange(first, first + 2 * number).view(number, 2).to(DTYPES[part % len(DTYPES)])


def a_part(part: int, rank: int) -> AllToAll:
    mine = torch.cat([entries(part, rank, receiver) for receiver in range(SIZE)])
    received = [of_sender[rank] for of_sender in sizes_of(part)]
    out = torch.full((sum(received), 2), 111, dtype=mine.dtype)
    return out, mine, received, sizes_of(part)[rank]


def expected(part: int, rank: int) -> torch.Tensor:
    return torch.cat([entries(part, sender, rank) for sender in range(SIZE)])


def exchange_many(group: ControlGroup, rank: int, under_way: int) -> None:
    """At most `under_way` exchanges at a time; each is waited for in order."""
    begun: deque[tuple[int, torch.Tensor, BegunExchange]] = deque()

    def finish_oldest() -> None:
        number, out, exchange = begun.popleft()
        exchange.wait()
        assert torch.equal(out, expected(number, rank)), number

    for number in range(14):
        part = a_part(number, rank)
        begun.append((number, part[0], group.begin(part)))
        if len(begun) == under_way:
            finish_oldest()
    while begun:
        finish_oldest()
    out, mine, received, sent = a_part(14, rank)
    group.all_to_all(out, mine, received, sent)
    assert torch.equal(out, expected(14, rank))


def gather_many(group: ControlGroup, rank: int, size: int) -> None:
    for dtype in (np.int64, np.float32, np.uint8):
        found = group.all_gather(np.array([[rank, 2]], dtype))
        assert (found.dtype, found.tolist()) == (dtype, [[[each, 2]] for each in range(size)])
    assert group.all_gather(np.empty((0, 2))).shape == (size, 0, 2)
    assert group.all_gather(np.array(rank)).tolist() == list(range(size))


def played(
    work: Callable[[ControlGroup, int], Any], size: int = SIZE, network: type[PlayedNetwork] = PlayedNetwork
) -> tuple[list[Any], float]:
    """What `work(group, rank)` returned by rank, and how long all of it took. Raises what a rank raised."""
    ranks = Ranks(size, seed=size)
    job = Job(ranks)

    def run(rank: int) -> Any:
        context = RankContext(rank=rank, world_size=size, network=network(job, rank))
        group = ControlGroup(context, timeout_s=LIMIT_S)
        found = work(group, rank)
        group.close("done")
        return found

    found = ranks.run(run)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found, ranks.now()


def said_by(group: ControlGroup) -> str:
    """Why the exchange that all ranks are to make fails."""
    with pytest.raises(PeerError) as caught:
        group.all_gather(np.zeros(1))
    return str(caught.value)


def test_parts_arrive_in_order_and_several_under_way_take_less_time() -> None:
    took = [
        played(lambda group, rank, under_way=under_way: exchange_many(group, rank, under_way))[1]
        for under_way in (1, 2, 4)
    ]
    assert took == sorted(took, reverse=True)
    assert took[2] < took[0] / 1.5


@pytest.mark.parametrize("size", [2, 3, 9, 13])
def test_arrays_are_gathered(size: int) -> None:
    """At once by few ranks, in rounds by many."""
    played(lambda group, rank: gather_many(group, rank, size), size)


def over_gloo(rank: int, world_size: int) -> None:
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    exchange_many(group, rank, 2)
    gather_many(group, rank, world_size)
    group.close("done")


def test_gloo_does_the_same() -> None:
    shared_world(SIZE).run(over_gloo)


def test_splits_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    """On all ranks alike: nobody waits. What was issued before is not lost, and the group goes on."""

    def work(group: ControlGroup, rank: int) -> None:
        out, mine, received, sent = a_part(1, rank)
        before = a_part(2, rank)
        begun = group.begin(before)
        for bad in ((out, mine, [*received[:-1], received[-1] + 1], sent), (out, mine, received, [*sent[:-1], -1])):
            with pytest.raises(AssertionError, match="splits"):
                group.begin(bad)
        begun.wait()
        group.all_to_all(out, mine, received, sent)
        assert torch.equal(before[0], expected(2, rank))
        assert torch.equal(out, expected(1, rank))

    played(work)


@pytest.mark.parametrize("size", [SIZE, 9])
def test_a_rank_that_leaves_is_named_by_all_others(size: int) -> None:
    def work(group: ControlGroup, rank: int) -> tuple[str, str]:
        gather_many(group, rank, size)
        if rank == 2:
            group.close("left for lunch")
            return "", ""
        return said_by(group), said_by(group)

    for rank, (first, again) in enumerate(played(work, size)[0]):
        assert ("rank 2 left for lunch" in first) == (rank != 2)
        assert rank == 2 or ("is over" in again and "left for lunch" in again)


def test_a_process_that_ends_without_closing_its_group_is_named() -> None:
    def work(group: ControlGroup, rank: int) -> str:
        if rank == 1:
            group.end_at_exit()
            return ""
        return said_by(group)

    first, _, third = played(work)[0]
    assert "rank 1 ended its process without closing" in first
    assert "rank 1 ended its process without closing" in third


def test_nobody_waits_for_the_word_of_a_process_that_is_gone() -> None:
    ranks = Ranks(SIZE, seed=SIZE)
    job = Job(ranks)

    def run(rank: int) -> str:
        group = ControlGroup(job.context(rank), timeout_s=LIMIT_S)
        if rank == 1:
            ranks.kill(rank)
            ranks.wait(0)
        return said_by(group)

    first, _, third = ranks.run(run)
    assert "the process of rank 1 has ended" in first
    assert "the process of rank 1 has ended" in third
    assert ranks.now() < DIAGNOSIS_S / 2


def abort_while_blocked(rank: int, world_size: int) -> str:
    """Rank 0 has issued an exchange that nobody joins; a thread of its own gets it out, and then the others try."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    if rank == 0:
        begun = group.begin(a_part(1, rank))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(group.abort, "was told to stop")
            with pytest.raises(PeerError) as caught:
                begun.wait()
    dist.barrier()
    if rank != 0:
        with pytest.raises(PeerError) as caught:
            group.all_to_all(*a_part(1, rank))
    group.close("done")
    return str(caught.value)


def test_an_exchange_that_is_aborted_from_outside() -> None:
    said = shared_world(SIZE).run(abort_while_blocked)
    assert "was told to stop" in said[0]
    for text in said[1:]:
        assert "rank 0 was told to stop" in text


def test_a_group_needs_peers() -> None:
    with pytest.raises(ValueError, match="at least two ranks"):
        ControlGroup(RankContext(rank=0, world_size=1), timeout_s=LIMIT_S)


def breaking(times: int) -> type[PlayedNetwork]:
    """A network in which rank 1 finds its first connections reset."""

    class Breaking(PlayedNetwork):
        tries = 0

        def connect(
            self, store: Any, name: str, rank: int, world_size: int, timeout_s: float, *, within_s: float
        ) -> Any:
            made = super().connect(store, name, rank, world_size, timeout_s, within_s=within_s)
            Breaking.tries += rank == 1
            if rank == 1 and Breaking.tries <= times:
                raise RuntimeError("[pair.cc:1] Read error: Connection reset by peer. This is typical")
            return made

    return Breaking


def test_a_connection_that_breaks_while_it_is_made_is_made_again_by_all_ranks() -> None:
    network = breaking(2)
    played(lambda group, rank: gather_many(group, rank, SIZE), network=network)
    assert vars(network)["tries"] == 3


def test_all_tries_together_have_one_limit() -> None:
    class Silent(PlayedNetwork):
        def connect(self, *where: Any, within_s: float) -> Any:
            self.clock.wait(within_s)
            raise RuntimeError("[pair.cc:1] Connect timeout. This is typical")

    with pytest.raises(PeerError, match="1 try failed, the last one on 3 of 3 ranks: Connect timeout"):
        played(lambda group, rank: None, network=Silent)


def test_connections_that_keep_breaking_are_given_up_by_all_ranks() -> None:
    with pytest.raises(PeerError, match="3 tries failed, the last one on rank 1: Read error: Connection reset by peer"):
        played(lambda group, rank: None, network=breaking(9))
