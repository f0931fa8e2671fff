"""Redistribution over real gloo ranks: what a step says of itself, rows that stay, errors. A rank that closes, gives up
or leaves is named on the others, and leaves nothing behind. `tests/faults` plays that every sample arrives."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from patience import PATIENCE_S, until
from samples import SPEC, columns_of, lengths_of, read, rows_of, sample
from worlds import shared_world

from fsdata.balance.exchange import StepExchange, StepResult
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.step_plan import Assignment, GlobalBatch
from fsdata.decode.block import Block, RowRefs, concat, no_rows
from fsdata.errors import DataError, MismatchError, PeerError
from fsdata.order.status_word import StatusWord
from fsranks.rank_context import resolve


def check(step: StepResult, seed: int, rank: int, counts: np.ndarray, plan: np.ndarray) -> None:
    """Compare what one rank has after step `seed` with the samples generated anew."""
    world_size = len(counts)
    home = np.repeat(np.arange(world_size), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    here = np.flatnonzero(plan == rank)
    assert step.origin.tolist() == np.stack([home[here], rows[here]], axis=1).tolist()
    assert step.counts.tolist() == np.bincount(plan, minlength=world_size).tolist()
    lengths = [lengths_of(seed, r, count) for r, count in enumerate(counts)]
    for i, (origin, row) in enumerate(step.origin):
        assert read(step.rows, i) == sample(seed, origin, row, lengths[origin])
    everything = np.concatenate(lengths, axis=1)
    assert step.global_items == {"uih": everything[0].sum(), "candidates": everything[1].sum()}
    assert step.moved == everything.sum(axis=0)[plan != home].sum() / max(1, everything.sum())


def carrying(rank: int, world_size: int, why: str, advice: str) -> None:
    """The plan takes two rows of every rank; ranks 0 and 1 have three, rank 2 has one."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    plan, counts = np.array([2, 0, 1, 2, 0]), np.array([2, 2, 1])
    rows = rows_of(1, rank, counts[rank], lengths_of(1, rank, counts[rank]))
    if rank < 2:
        rows = concat([rows, rows_of(2, rank, 1, lengths_of(2, rank, 1))])
    status = StatusWord(epoch=0, step=0, ended=True)
    step = exchange.step(rows, SPEC, lambda _: Assignment(rank=plan, rows=2), status)
    check(step, 1, rank, counts, plan)
    assert (step.carried, step.ended, step.rest.num_rows) == (2, False, rank < 2)
    if rank < 2:
        assert read(step.rest, 0) == sample(2, rank, 0, lengths_of(2, rank, 1))
    assert exchange.gather_number(10 + rank) == [10, 11, 12]
    if rank == 0:
        exchange.leave(why)  # not between epochs: the carried rows are still to come
    else:
        with pytest.raises(PeerError, match=rf"rank 0 left the loop before step 1 .* \(it {why}\).*{advice}"):
            exchange.step(step.rest, SPEC, lambda _: Assignment(rank=plan[:2]), StatusWord(epoch=0, step=1))

    def other(batch: GlobalBatch) -> Assignment:
        assert any(of.moving_ns > 0 for of in batch.statuses)  # ranks hear how long the step before was under way
        return Assignment(rank=plan[: 5 - 2 * (rank == 1)], rows=1 + (rank != 1))

    with pytest.raises(MismatchError, match="different plans"):
        exchange.step(rows, SPEC, other, status)
    exchange.close()


@pytest.mark.parametrize(
    ("why", "advice"),
    [("closed its loader", "the same number of steps"), ("raised ValueError: bad", "Look at the log")],
)
def test_rows_that_the_plan_leaves_out_stay_and_the_epoch_goes_on(why: str, advice: str) -> None:
    shared_world(3).run(carrying, why, advice)


def agreeing(rank: int, world_size: int) -> list[tuple[int, bool, int, int]]:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    exchange.report(0.25 * (rank + 1), 17)
    status = StatusWord(epoch=3, step=4, position=10 + rank, rows=rank, ended=rank == 1)
    first = exchange.agree(status)
    second = exchange.agree(StatusWord(epoch=3, step=5))
    exchange.close()
    assert [other.compute_step for other in second] == [-1] * world_size
    assert [(other.compute_ns, other.compute_step) for other in first] == [
        (250_000_000 * (r + 1), 17) for r in range(world_size)
    ]
    return [(other.position, other.ended, other.rows, other.step) for other in first]


def test_statuses_reach_every_rank() -> None:
    answers = shared_world(3).run(agreeing)
    assert answers == [[(10 + r, r == 1, r, 4) for r in range(3)]] * 3


def going_wrong(rank: int, world_size: int) -> None:
    """Errors on one rank or on all, one after another over the same exchange, which stays usable."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)

    def stay(batch: GlobalBatch) -> Assignment:
        return Assignment(rank=batch.home)

    def step(number: int, planner=stay, rows: RowRefs | None = None) -> StepResult:  # type: ignore[no-untyped-def]
        rows = rows or rows_of(0, rank, 3, lengths_of(0, rank, 3))
        return exchange.step(rows, SPEC, planner, StatusWord(epoch=2, step=number))

    if rank == 1:
        own = ValueError("disk on fire")
        exchange.fail(own, StatusWord(epoch=2, step=7))
    else:
        with pytest.raises(PeerError, match="rank 1 failed at step 7 of epoch 2: ValueError: disk on fire"):
            step(7)

    def broken(batch: GlobalBatch) -> Assignment:
        if rank == 2:
            raise RuntimeError("no plan today")
        return stay(batch)

    with pytest.raises(RuntimeError, match="no plan today") as caught:
        step(8, broken)
    assert isinstance(caught.value, PeerError) == (rank != 2)
    assert rank == 2 or "rank 2 failed at step 8" in str(caught.value)

    def hopeless(batch: GlobalBatch) -> Assignment:
        return StepPlanner(Balance(max_tokens=3), world_size)(batch)

    with pytest.raises(ValueError, match="longest sample"):
        step(9, hopeless)
    with pytest.raises(ValueError, match=r"one rank in 0\.\.2 for each of 9 samples"):
        step(10, lambda batch: Assignment(rank=batch.home + 1))
    with pytest.raises(MismatchError, match="ranks 0 and 1 made different plans"):
        step(11, lambda batch: Assignment(rank=np.roll(batch.home, rank)))
    with pytest.raises(MismatchError, match="ranks disagree on step: rank 0 has 12, rank 2 has 13"):
        step(13 if rank == 2 else 12)
    ragged = columns_of(0, rank, 3, lengths_of(0, rank, 3))
    if rank == 0:
        assert ragged[2].length is not None
        ragged[2].length[1] += 1
        with pytest.raises(DataError, match="field 'action' of row 1"):
            step(14, rows=RowRefs.of(Block.of(ragged, 3)))
    else:
        with pytest.raises(PeerError, match="rank 0 failed at step 14 of epoch 2: DataError: field 'action' of row 1"):
            step(14)
    spec = replace(SPEC, width=np.array([1, 0, 0, 0, 0, 3 + (rank == 2), 0]))
    with pytest.raises(MismatchError, match="fields of a sample"):
        exchange.step(no_rows(len(spec.names)), spec, stay, StatusWord(epoch=2, step=15))
    if rank == 0:  # as if its loader did not balance
        exchange.agree(StatusWord(epoch=2, step=16, rows=3))
    else:
        with pytest.raises(MismatchError, match="rank 0 reported 3 samples, but sent 0 bytes for their length"):
            step(16)
    assert step(17).rows.num_rows == 3
    exchange.close()


def test_an_error_reaches_every_rank_at_the_step_concerned() -> None:
    shared_world(3).run(going_wrong)


def rotate(batch: GlobalBatch) -> Assignment:
    return Assignment(rank=(batch.home + 1) % len(batch.statuses))


def steps(exchange: StepExchange, rank: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        rows = rows_of(number, rank, 3, lengths_of(number, rank, 3))
        exchange.step(rows, SPEC, rotate, StatusWord(epoch=0, step=number))


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
        thread.join(0.2)
        exchange.abort()
        thread.join()
    dist.barrier()  # nothing is sent to rank 0 before its connections are closed
    if rank != 0:
        blocked()
    exchange.close()
    return texts[0]


def test_abort_gets_a_blocked_thread_out() -> None:
    own, second, third = shared_world(3).run(abort_a_blocked_call)
    assert "closed its loader" in own
    assert "rank 0 closed its loader" in second
    assert "rank 0 closed its loader" in third


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
