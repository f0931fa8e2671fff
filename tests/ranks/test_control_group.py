"""Several exchanges in a row over one ControlGroup: order, how many are under way, and what ends them."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fsranks.control_group import AllToAll, ControlGroup
from fsranks.errors import PeerError
from fsranks.network import TorchNetwork
from fsranks.rank_context import RankContext, resolve

SIZE = 3
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


def exchange_many(rank: int, world_size: int, in_flight: int, number: int) -> None:
    """When a part is asked for, at most `in_flight - 1` before it are not here yet."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    parts = [a_part(k, rank) for k in range(number)]

    def asked() -> Iterator[AllToAll]:
        for k, part in enumerate(parts):
            for done in range(k - in_flight + 1):
                assert torch.equal(parts[done][0], expected(done, rank)), (done, k)
            yield part

    group.all_to_all_many(asked(), in_flight=in_flight)
    for k, (out, _, _, _) in enumerate(parts):
        assert torch.equal(out, expected(k, rank)), k
    group.all_to_all_many([], in_flight=in_flight)
    assert group.all_gather(np.array([rank])).tolist() == [[0], [1], [2]]
    group.close("done")


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_parts_arrive_in_order(in_flight: int) -> None:
    shared_world(SIZE).run(exchange_many, in_flight, 14)


class Counted:
    """In the place of gloo's group: how many exchanges nobody has waited for yet."""

    def __init__(self, gloo: Any) -> None:
        self._gloo = gloo
        self.under_way: list[int] = []
        self.order: list[int] = []
        self.most = 0

    def alltoall_base(self, *args: Any) -> "CountedWork":
        number = len(self.order) + len(self.under_way)
        self.under_way.append(number)
        self.most = max(self.most, len(self.under_way))
        return CountedWork(self, number, self._gloo.alltoall_base(*args))


class CountedWork:
    def __init__(self, counted: Counted, number: int, work: Any) -> None:
        self._counted, self._number, self._work = counted, number, work

    def wait(self) -> None:
        self._work.wait()
        self._counted.under_way.remove(self._number)
        self._counted.order.append(self._number)


def count_under_way(rank: int, world_size: int, in_flight: int) -> tuple[int, list[int], list[int]]:
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    gloo, group._gloo = group._gloo, Counted(group._gloo)
    counted = group._gloo
    group.all_to_all_many((a_part(k, rank) for k in range(6)), in_flight=in_flight)
    group._gloo = gloo
    group.close("done")
    return counted.most, counted.order, counted.under_way


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_no_more_under_way_than_allowed_and_the_oldest_waited_for_first(in_flight: int) -> None:
    for found in shared_world(SIZE).run(count_under_way, in_flight):
        assert found == (in_flight, list(range(6)), [])


def exchange_one(rank: int, world_size: int) -> None:
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    for k in range(4):
        out, mine, received, sent = a_part(k, rank)
        group.all_to_all(out, mine, received, sent)
        assert torch.equal(out, expected(k, rank))
    group.close("done")


def test_one_part() -> None:
    shared_world(SIZE).run(exchange_one)


def give_wrong_sizes(rank: int, world_size: int) -> None:
    """On all ranks alike: nobody waits. What was issued before is not lost, and the group goes on."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    out, mine, received, sent = a_part(1, rank)
    for bad in ((out, mine, [*received[:-1], received[-1] + 1], sent), (out, mine, received, [*sent[:-1], -1])):
        with pytest.raises(AssertionError, match="splits"):
            group.all_to_all_many([bad], in_flight=2)
    group.all_to_all_many([(out, mine, received, sent)], in_flight=2)
    assert torch.equal(out, expected(1, rank))
    group.close("done")


def test_splits_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    shared_world(SIZE).run(give_wrong_sizes)


class NotThisOne(Exception):
    pass


def fail_between_parts(rank: int, world_size: int) -> None:
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    first, second = a_part(1, rank), a_part(2, rank)

    def parts() -> Iterator[AllToAll]:
        yield first
        raise NotThisOne

    with pytest.raises(NotThisOne):
        group.all_to_all_many(parts(), in_flight=2)
    group.all_to_all_many([second], in_flight=2)
    assert torch.equal(second[0], expected(2, rank))
    group.close("done")


def test_an_error_of_who_gives_the_parts_is_passed_on() -> None:
    shared_world(SIZE).run(fail_between_parts)


def leave_between_parts(rank: int, world_size: int) -> str:
    """Rank 2 gives up after the first part; the others have it, and hear why there is no second."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    parts = [a_part(k, rank) for k in (1, 2, 5)]

    def asked() -> Iterator[AllToAll]:
        yield parts[0]
        dist.barrier()
        yield from parts[1:]

    if rank == 2:
        group.all_to_all_many(parts[:1], in_flight=1)
        dist.barrier()
        group.close("left for lunch")
        return ""
    with pytest.raises(PeerError) as caught:
        group.all_to_all_many(asked(), in_flight=1)
    assert torch.equal(parts[0][0], expected(1, rank))
    with pytest.raises(PeerError, match="is over") as again:
        group.all_to_all_many(parts, in_flight=1)
    assert "left for lunch" in str(again.value)
    group.close("done")
    return str(caught.value)


def test_a_rank_that_leaves_is_named() -> None:
    said = shared_world(SIZE).run(leave_between_parts)
    for text in said[:2]:
        assert "rank 2 left for lunch" in text


def abort_while_blocked(rank: int, world_size: int) -> str:
    """Rank 0 has issued an exchange that nobody joins; a thread of its own gets it out, and then the others try."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    issuing = threading.Event()

    def asked() -> Iterator[AllToAll]:
        issuing.set()
        yield a_part(1, rank)

    def abort() -> None:
        assert issuing.wait(PATIENCE_S)
        group.abort("was told to stop")

    thread = threading.Thread(target=abort)
    if rank == 0:
        thread.start()
    else:
        dist.barrier()
    with pytest.raises(PeerError) as caught:
        group.all_to_all_many(asked(), in_flight=2)
    if rank == 0:
        thread.join()
        dist.barrier()
    group.close("done")
    return str(caught.value)


def test_an_exchange_that_is_aborted_from_outside() -> None:
    said = shared_world(SIZE).run(abort_while_blocked)
    assert "was told to stop" in said[0]
    for text in said[1:]:
        assert "rank 0 was told to stop" in text


def end_without_closing(rank: int, world_size: int) -> str:
    """What runs when the process of rank 1 ends while its group is open."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    if rank == 1:
        group.end_at_exit()
        return ""
    with pytest.raises(PeerError) as caught:
        group.all_gather(np.zeros(1))
    group.close("done")
    return str(caught.value)


def test_a_process_that_ends_without_closing_its_group_is_named() -> None:
    first, _, third = shared_world(SIZE).run(end_without_closing)
    assert "rank 1 ended its process without closing" in first
    assert "rank 1 ended its process without closing" in third


def test_a_group_needs_peers() -> None:
    with pytest.raises(ValueError, match="at least two ranks"):
        ControlGroup(RankContext(rank=0, world_size=1), timeout_s=PATIENCE_S)


def connect_badly(rank: int, world_size: int, broken: int) -> str:
    """Rank 1 finds its first `broken` connections reset."""
    connect, tries = TorchNetwork.connect, []

    def connect_badly(network: TorchNetwork, *args: Any) -> Any:
        tries.append(args[1])
        made = connect(network, *args)
        if rank == 1 and len(tries) <= broken:
            raise RuntimeError("[pair.cc:1] Read error: Connection reset by peer. This is typical")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchNetwork, "connect", connect_badly)
        try:
            group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
        except PeerError as error:
            return str(error)
    assert group.all_gather(np.array([rank])).tolist() == [[0], [1], [2]]
    group.close("done")
    return f"tries {tries}"


def test_a_connection_that_breaks_while_it_is_made_is_made_again_by_all_ranks() -> None:
    assert shared_world(SIZE).run(connect_badly, 2) == ["tries ['gloo/0', 'gloo/1', 'gloo/2']"] * SIZE


def test_connections_that_keep_breaking_are_given_up_by_all_ranks() -> None:
    for text in shared_world(SIZE).run(connect_badly, 9):
        assert "3 tries failed, the last one on rank 1: Read error: Connection reset by peer" in text
