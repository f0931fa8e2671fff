"""Ranks and devices that are lost or late, by each transport by itself: who is named, and when."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from patience import PATIENCE_S, until
from test_opening import CPU
from test_shared_memory import a_ring, a_word, engines, held
from test_staged import before_exchange, opened, stuck
from worlds import World, shared_world

import fscomm
from fscomm.device import Host
from fscomm.transports import opening
from fscomm.transports.handshake import Handshake
from fscomm.transports.ring.shared_memory import CopyThread
from fsranks.errors import PeerError
from fsranks.rank_context import resolve


def see_gone(rank: int, world_size: int) -> tuple[bool, list[int], list[int]]:
    handshake = Handshake(resolve(), verify=False, timeout_s=PATIENCE_S)
    before = handshake.gone()
    handshake.agree("meet", torch.zeros(0))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until(handshake.gone)
    after = handshake.gone()
    handshake.group.close("done")
    return handshake.one_host, before, after


def test_a_rank_that_died_is_gone() -> None:
    with World(3) as world:
        answers = world.run(see_gone, lost=(1,))
    assert answers == [(True, [], [1]), None, (True, [], [1])]


def lose_after_sending(rank: int, world_size: int) -> str:
    """Rank 1 dies when it has sent to all, and rank 2 has its word: of rank 0 alone, which cannot send any more."""
    handshake = Handshake(resolve(), verify=False, timeout_s=PATIENCE_S)
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 0:
        while not handshake.gone():
            time.sleep(0.01)
        time.sleep(0.2)
    with pytest.raises(PeerError) as caught:
        handshake.agree("meet", torch.zeros(0))
    handshake.group.close("done")
    return str(caught.value)


def test_a_rank_that_waits_for_one_that_lives_is_not_taken_for_dead() -> None:
    with World(3) as world:
        answers = world.run(lose_after_sending, lost=(1,))
    for rank in (0, 2):
        assert "process of rank 1 has ended" in answers[rank], answers


def die_in_the_warm_up(rank: int, size: int) -> str:
    original = Handshake.agree

    def once(self: Handshake, *given: Any) -> int:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handshake, "agree", once)
        with pytest.raises(fscomm.PeerError) as error:
            opening.agree_on("copy-engine", resolve(), CPU, timeout_s=4)
    return str(error.value)


def test_a_rank_that_dies_in_the_warm_up_is_named() -> None:
    with World(3) as world:
        first, _, last = world.run(die_in_the_warm_up, lost=[1])
    assert "rank 1 did not come" in first
    assert "rank 1 did not come" in last


def late_within(rank: int, world_size: int) -> str:
    with opened(Host(), timeout_s=1) as transport:
        rows = torch.ones(2 * world_size)
        with before_exchange(transport, lambda: time.sleep(3)) if rank == 1 else contextlib.nullcontext():
            handle = transport.all_to_all_v(torch.empty_like(rows), rows, [2] * world_size, [2] * world_size)
            with pytest.raises(PeerError) as caught:
                handle.wait()
    return str(caught.value)


def test_a_rank_that_is_late_with_a_piece_is_named() -> None:
    said = shared_world(3).run(late_within)
    assert all("rank 1 came after the others had waited" in said[rank] for rank in (0, 2))


def test_a_device_that_gets_nowhere_is_given_up() -> None:
    said = shared_world(2).run(stuck, False, 1.0)
    assert "the device did not come to copy the rows within 1 s" in said[1]
    assert "rank 1" in said[0]


def killed(rank: int, world_size: int) -> tuple[str, str]:
    with opened(Host(), chunk_bytes=64) as transport:
        rows = torch.ones(world_size * 32)
        splits = [32] * world_size
        die = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
        with before_exchange(transport, die) if rank == 2 else contextlib.nullcontext():
            handle = transport.all_to_all_v(torch.empty_like(rows), rows, splits, splits)
            with pytest.raises(PeerError) as caught:
                handle.wait()
        with pytest.raises(PeerError) as again:
            transport.all_to_all_v(torch.empty_like(rows), rows, splits, splits)
    return str(caught.value), str(again.value)


def test_a_killed_rank_is_named_at_once() -> None:
    with World(3) as world:
        answers = world.run(killed, lost=[2])
    for rank in (0, 1):
        assert all("process of rank 2 has ended" in each for each in answers[rank])


def late(rank: int, size: int) -> float:
    """Rank 1 waits itself before it issues the next: a sender is held up and nothing is lost."""
    ring = a_ring(slots=2, slot_bytes=64, most=64)
    handles = []
    for k in range(3):
        if rank == 1:
            time.sleep(0.2)
        inp = torch.full((size * 500,), 10 * rank + k)
        out = torch.zeros_like(inp)
        handles.append((k, out, ring.all_to_all_v(out, inp, [500] * size, [500] * size)))
    for k, out, handle in handles:
        handle.wait()
        assert torch.equal(out, (10 * torch.arange(size) + k).repeat_interleave(500))
    ring.close("was closed")
    return 0.0


def test_a_rank_that_is_late() -> None:
    shared_world(3).run(late)


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as made:
        yield made


def keep_on(rank: int, size: int, timeout_s: float, who: int, how: int) -> tuple[str, float]:
    """Exchange until an error; rank `who` sends itself a signal in the middle of an operation."""
    ring = a_ring(timeout_s, slots=2, slot_bytes=64, most=64)
    inp, out = torch.ones(size * 5000), torch.empty(size * 5000)
    number, start = 0, time.monotonic()
    try:
        while True:
            number += 1
            start = time.monotonic()
            handle = ring.all_to_all_v(out, inp, [5000] * size, [5000] * size)
            if rank == who and number == 5:
                os.kill(os.getpid(), how)
            handle.wait()
    except PeerError as error:
        took = time.monotonic() - start
        ring.close("was closed")
        assert engines() == []
        with pytest.raises(PeerError):
            ring.meet()
        assert held() == 0
        return str(error), took


@pytest.mark.parametrize("who", [1, 0])
def test_a_killed_rank_is_named_long_before_the_time_limit(world: World, who: int) -> None:
    answers = world.run(keep_on, 60.0, who, signal.SIGKILL, lost=[who])
    for text, took in (answer for answer in answers if answer):
        assert f"rank {who}" in text
        assert took < 20


def test_a_stopped_rank_is_named_within_the_time_limit(world: World) -> None:
    answers = world.run(keep_on, 2.0, 2, signal.SIGSTOP, lost=[2])
    os.kill(world.pid(2), signal.SIGKILL)  # it will not end by itself
    for text, took in answers[:2]:
        assert "rank 2 did not answer" in text
        assert took < 15


def test_waiting_costs_next_to_nothing() -> None:
    """Processor time of eight waiting threads; a loop without sleep would take all of it."""
    queues, word = [CopyThread("fscomm test") for _ in range(8)], a_word()
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
