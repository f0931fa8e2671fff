"""A rank that closes, gives up or leaves its exchange: the others raise and name it, and nothing is left behind."""

import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from patience import PATIENCE_S, until
from samples import SPEC, lengths_of, table_of
from worlds import shared_world

from fsdata.balance.exchange import Assignment, GlobalBatch, StatusWord, StepExchange
from fsdata.errors import PeerError
from fsranks.rank_context import resolve


def rotate(batch: GlobalBatch) -> Assignment:
    return Assignment(rank=(batch.home + 1) % len(batch.statuses))


def steps(exchange: StepExchange, rank: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        table = table_of(number, rank, 3, lengths_of(number, rank, 3))
        exchange.step(table, SPEC, rotate, StatusWord(epoch=0, step=number))


def close_while_others_wait(rank: int, world_size: int) -> str:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    if rank == 2:
        exchange.close()
        return ""
    with pytest.raises(PeerError) as caught:
        steps(exchange, rank, 1, 1)
    exchange.close()
    return str(caught.value)


def test_a_rank_that_closed_is_named() -> None:
    first, second, _ = shared_world(3).run(close_while_others_wait)
    assert "rank 2 left the loop (its loader was closed)" in first
    assert "rank 2 left the loop (its loader was closed)" in second


def abort_a_blocked_call(rank: int, world_size: int) -> str:
    """Rank 0's thread waits for peers that do not come; its main thread breaks the group."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    texts: list[str] = []

    def blocked() -> None:
        with pytest.raises(PeerError) as caught:
            steps(exchange, rank, 1, 1)
        texts.append(str(caught.value))

    if rank == 0:
        thread = threading.Thread(target=blocked)
        thread.start()
        exchange.end(thread, grace_s=0.2)
    dist.barrier()  # nothing is sent to rank 0 before its connections are closed
    if rank != 0:
        blocked()
    exchange.close()
    return texts[0]


def test_abort_gets_a_blocked_thread_out() -> None:
    own, second, third = shared_world(3).run(abort_a_blocked_call)
    assert "left the loop" in own
    assert "rank 0 left the loop" in second
    assert "rank 0 left the loop" in third


def leave_with_a_time_limit(rank: int, world_size: int) -> None:
    """Rank 1 does not come to the step in which rank 0 says that it leaves."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    steps(exchange, rank, 0, 1)
    if rank == 0:
        exchange.leave(grace_s=0.2)
    dist.barrier()
    if rank == 1:
        with pytest.raises(PeerError, match="rank 0 left the loop"):
            steps(exchange, rank, 1, 3)
    exchange.close()


def test_leaving_does_not_wait_longer_than_told() -> None:
    shared_world(2).run(leave_with_a_time_limit)


def leave_nothing_behind(rank: int, world_size: int) -> None:
    """Five exchanges leave no thread and no open file behind; the first one may start what stays."""

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

    def ended() -> bool:  # the store's server closes its ends of our connections a little later
        threads_after, files_after = now()
        return threads_after <= threads and files_after <= files

    until(ended, "the end of all threads and files of five exchanges")
    assert len(kept) == 5


def test_nothing_is_left_behind() -> None:
    shared_world(2).run(leave_nothing_behind)
