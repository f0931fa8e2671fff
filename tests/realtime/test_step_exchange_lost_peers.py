"""A rank that dies, is stopped, never comes or is late: the others raise, name it, and never hang."""

import os
import signal
import threading
import time

import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from test_dispatch import shuffled, step_of
from test_step_exchange_leaving import steps
from worlds import World, shared_world

from fsdata.balance.exchange import StepExchange
from fsdata.embedding_balance.dispatch import Dispatcher, dispatch
from fsdata.errors import PeerError
from fsranks.rank_context import resolve

TIMEOUT_S = 3.0
LIMIT_S = TIMEOUT_S + 12  # a very slow machine included; without a time limit it would be the harness's 30 s


def warm_up(rank: int) -> None:
    """Compile and load the kernels, so that nobody is late for that."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    exchange.close()
    dist.barrier()


def lose(rank: int, world_size: int, lost: int, how: signal.Signals) -> tuple[str, float, str, list[str]]:
    """What the survivors hear after rank `lost` got a signal between two steps, and how long it took."""
    warm_up(rank)
    exchange = StepExchange(resolve(), timeout_s=TIMEOUT_S)
    steps(exchange, rank, 0, 2)
    if rank == lost:
        os.kill(os.getpid(), how)
    start = time.monotonic()
    with pytest.raises(PeerError) as caught:
        steps(exchange, rank, 2, 1)
    took = time.monotonic() - start
    with pytest.raises(PeerError) as again:
        steps(exchange, rank, 3, 1)
    exchange.leave()
    exchange.close()
    named = [thread.name for thread in threading.enumerate()]
    return str(caught.value), took, str(again.value), named


@pytest.mark.parametrize("lost", [1, 0], ids=["a rank", "the rank that hosts the store"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_is_named_by_all_others(how: signal.Signals, lost: int) -> None:
    world = World(3)
    try:
        answers = world.run(lose, lost, how, lost={lost})
    finally:
        world.kill()
    for rank, answer in enumerate(answers):
        if rank == lost:
            assert answer is None
            continue
        text, took, again, threads = answer
        assert f"rank {lost}" in text
        assert "exchange 2" in text
        said = f"process of rank {lost} has ended" if how == signal.SIGKILL else "did not answer"
        assert said in text or "rank 0, which hosts the job's store" in text
        assert all(f"rank {other} did not" not in text for other in range(3) if other != lost)
        assert took < LIMIT_S
        assert f"rank {lost}" in again
        if not (lost == 0 and how == signal.SIGSTOP):  # a store that is stopped keeps the one who asks it
            assert threads == ["MainThread"]


def do_not_come(rank: int, world_size: int) -> str:
    if rank == 1:
        time.sleep(4)
        return ""
    with pytest.raises(PeerError) as caught:
        StepExchange(resolve(), timeout_s=1)
    return str(caught.value)


def test_a_rank_that_makes_no_exchange_is_named() -> None:
    with World(3) as world:
        first, _, third = world.run(do_not_come)
    assert "rank 1 did not come within 1 s" in first
    assert "rank 1 did not come within 1 s" in third


def be_late(rank: int, world_size: int, delay: float) -> str:
    warm_up(rank)
    exchange = StepExchange(resolve(), timeout_s=2)
    steps(exchange, rank, 0, 1)
    if rank == 1:
        time.sleep(delay)
    with pytest.raises(PeerError) as caught:
        steps(exchange, rank, 1, 1)
    exchange.close()
    return str(caught.value)


def test_a_late_rank_is_named_and_hears_of_it() -> None:
    on_time, late = shared_world(2).run(be_late, 5.0)
    assert "rank 1 came after the others had waited 2.0 s" in on_time
    assert "rank 1 came after the others had waited 1.5 s" in late


def killed(rank: int, world_size: int) -> str:
    lengths, values, _ = step_of(rank, 0, (2,))
    dispatcher = Dispatcher(shuffled, timeout_s=3)
    handle = dispatcher.plan(lengths)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError, match="rank 1") as caught:
        dispatch(values, handle)
    dispatcher.close()
    return str(caught.value)


def test_a_killed_rank_is_named_by_a_dispatcher() -> None:
    with World(3) as world:
        found = world.run(killed, lost=(1,))
    assert all("rank 1" in found[rank] for rank in (0, 2))
