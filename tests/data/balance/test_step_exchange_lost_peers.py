"""A rank that dies, is stopped, leaves or is late: the others raise, name it, and never hang."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from samples import SPEC, lengths_of, table_of
from worlds import World, shared_world

from fsdata.balance.exchange import Assignment, GlobalBatch, StatusWord, StepExchange
from fsdata.errors import PeerError
from fsranks.rank_context import resolve

TIMEOUT_S = 3.0
LIMIT_S = TIMEOUT_S + 12  # a very slow machine included; without a time limit it would be the harness's 30 s


def rotate(batch: GlobalBatch) -> Assignment:
    return Assignment(rank=(batch.home + 1) % len(batch.statuses))


def steps(exchange: StepExchange, rank: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        table = table_of(number, rank, 3, lengths_of(number, rank, 3))
        exchange.step(table, SPEC, rotate, StatusWord(epoch=0, step=number))


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
    assert "rank 1 did not answer" in on_time
    assert "rank 1 came after the others had waited 1.5 s" in late


def close_while_others_wait(rank: int, world_size: int) -> str:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    if rank == 2:
        exchange.close()
        return ""
    start = time.monotonic()
    with pytest.raises(PeerError) as caught:
        steps(exchange, rank, 1, 1)
    assert time.monotonic() - start < 15
    exchange.close()
    return str(caught.value)


def test_a_rank_that_closed_is_named() -> None:
    first, second, _ = shared_world(3).run(close_while_others_wait)
    assert "rank 2 left the loop (its loader was closed)" in first
    assert "rank 2 left the loop (its loader was closed)" in second


def abort_a_blocked_call(rank: int, world_size: int) -> tuple[float, str]:
    """Rank 0's thread waits for peers that do not come; its main thread breaks the group."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    texts: list[str] = []
    took = 0.0
    if rank == 0:

        def blocked() -> None:
            try:
                steps(exchange, rank, 1, 1)
            except PeerError as error:
                texts.append(str(error))

        thread = threading.Thread(target=blocked)
        thread.start()
        start = time.monotonic()
        exchange.end(thread, grace_s=0.2)
        took = time.monotonic() - start
    else:
        while not texts:  # nothing is sent to rank 0 before its connections are closed
            time.sleep(0.5)
            try:
                steps(exchange, rank, 1, 1)
            except PeerError as error:
                texts.append(str(error))
    exchange.close()
    return took, texts[0]


def test_abort_gets_a_blocked_thread_out() -> None:
    (took, own), (_, second), (_, third) = shared_world(3).run(abort_a_blocked_call)
    assert took < 20
    assert "left the loop" in own
    assert "rank 0 left the loop" in second
    assert "rank 0 left the loop" in third


def leave_with_a_time_limit(rank: int, world_size: int) -> float:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    start = time.monotonic()
    if rank == 0:
        exchange.leave(grace_s=0.2)
        exchange.close()
        return time.monotonic() - start
    time.sleep(1)
    with pytest.raises(PeerError, match="rank 0 left the loop"):
        steps(exchange, rank, 1, 3)
    exchange.close()
    return 0.0


def test_leaving_does_not_wait_longer_than_told() -> None:
    took, _ = shared_world(2).run(leave_with_a_time_limit)
    assert took < 20


def count_leftovers(rank: int, world_size: int) -> tuple[int, int]:
    """Threads and open files that five exchanges leave behind; the first one may start what stays."""

    def now() -> tuple[int, int]:
        return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))

    def once() -> StepExchange:
        exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
        steps(exchange, rank, 0, 1)
        exchange.leave()
        exchange.close()
        exchange.close()
        return exchange

    once()
    threads, files = now()
    kept = [once() for _ in range(5)]
    for _ in range(100):  # the store's server closes its ends of our connections a little later
        threads_after, files_after = now()
        if threads_after <= threads and files_after <= files:
            break
        time.sleep(0.1)
    assert len(kept) == 5
    return max(threads_after - threads, 0), max(files_after - files, 0)


def test_nothing_is_left_behind() -> None:
    assert shared_world(2).run(count_leftovers) == [(0, 0), (0, 0)]
