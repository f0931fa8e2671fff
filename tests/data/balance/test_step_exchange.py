"""Redistribution over real gloo ranks: every sample arrives once, whole, where the plan says."""

import numpy as np
import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from samples import SPEC, lengths_of, read, sample, table_of
from worlds import shared_world

from fsdata.balance.exchange import Assignment, GlobalBatch, RecordSpec, StatusWord, StepExchange, StepResult
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.packing import Method
from fsdata.decode.row_table import RowTable, concat, empty
from fsdata.errors import DataError, MismatchError, PeerError
from fsranks.rank_context import resolve

METHODS: tuple[Method, ...] = ("fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")


def counts_of(seed: int, world_size: int) -> np.ndarray:
    """Unequal contributions: in every third step one rank has nothing, in every seventh nobody has."""
    counts = np.random.default_rng(seed).integers(0, 9, world_size)
    if seed % 3 == 0:
        counts[seed % world_size] = 0
    return counts * (seed % 7 != 6)


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
        assert read(step.table, i) == sample(seed, origin, row, lengths[origin])
    everything = np.concatenate(lengths, axis=1)
    assert step.global_items == {"uih": everything[0].sum(), "candidates": everything[1].sum()}
    assert step.moved == everything.sum(axis=0)[plan != home].sum() / max(1, everything.sum())


def random_plans(rank: int, world_size: int) -> int:
    """Steps with random plans over random tables; the number of samples received over all."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    received, kept = 0, []
    for seed in range(24):
        counts = counts_of(seed, world_size)
        plan = np.random.default_rng(100 + seed).integers(0, world_size, counts.sum())
        lengths = lengths_of(seed, rank, counts[rank])
        table = table_of(seed, rank, counts[rank], lengths) if counts[rank] else None
        step = exchange.step(table, SPEC, lambda _, plan=plan: Assignment(rank=plan), StatusWord(epoch=0, step=seed))
        kept.append((step, seed, rank, counts, plan))
        received += step.table.num_rows
    for arguments in kept:  # only now: a buffer used again too early would have been overwritten
        check(*arguments)
    exchange.close()
    return received


@pytest.mark.parametrize("world_size", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_every_sample_arrives_once_and_whole(world_size: int) -> None:
    received = shared_world(world_size).run(random_plans)
    assert sum(received) == sum(counts_of(seed, world_size).sum() for seed in range(24))


def balanced(rank: int, world_size: int, method: Method) -> list[tuple[list[int], float | None, float | None]]:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    planner = StepPlanner(Balance(method, ranks_per_node=2 if method == "hierarchical" else None), world_size)
    plans: list[np.ndarray] = []

    def remember(batch: GlobalBatch) -> Assignment:
        plan = planner(batch)
        plans.append(plan.rank)
        return plan

    out = []
    for seed in (1, 2, 4, 5, 7):
        counts = counts_of(seed, world_size)
        table = table_of(seed, rank, counts[rank], lengths_of(seed, rank, counts[rank]))
        step = exchange.step(table, SPEC, remember, StatusWord(epoch=0, step=seed))
        check(step, seed, rank, counts, plans[-1])
        out.append((step.counts.tolist(), step.straggler_before, step.straggler_after))
    exchange.close()
    return out


@pytest.mark.parametrize(
    ("world_size", "method"),
    [
        *((3, method) for method in METHODS if method != "hierarchical"),
        *(pytest.param(4, method, marks=pytest.mark.long) for method in METHODS),
    ],
)
def test_balanced_steps_are_the_same_on_every_rank(world_size: int, method: Method) -> None:
    answers = shared_world(world_size).run(balanced, method)
    assert all(answer == answers[0] for answer in answers)
    for counts, before, after in answers[0]:
        assert min(counts) > 0
        assert after <= before or method in ("fbs", "vbs-contiguous")
        if not method.startswith("vbs"):
            assert max(counts) - min(counts) <= 1


def draining(rank: int, world_size: int, batches: list[int]) -> list[tuple[int, bool]]:
    """Ranks that have different numbers of batches stop together, and nothing is lost."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    planner = StepPlanner(Balance(), world_size)
    out = []
    for number in range(10):
        rows = 4 if number < batches[rank] else 0
        table = table_of(number, rank, rows, lengths_of(number, rank, rows)) if rows else None
        status = StatusWord(epoch=0, step=number, ended=number + 1 >= batches[rank])
        step = exchange.step(table, SPEC, planner, status)
        out.append((step.table.num_rows, step.ended))
        if step.ended:
            break
    exchange.leave()  # between epochs: nobody waits for anybody
    exchange.close()
    return out


def test_ranks_with_unequal_data_drain_together() -> None:
    batches = [5, 2, 0]
    answers = shared_world(3).run(draining, batches)
    assert {len(answer) for answer in answers} == {5}
    assert [answer[-1][1] for answer in answers] == [True] * 3
    assert sum(rows for answer in answers for rows, _ in answer) == 4 * sum(batches)
    assert all(rows > 0 for answer in answers for rows, _ in answer)


def carrying(rank: int, world_size: int) -> None:
    """The plan takes two rows of every rank; ranks 0 and 1 have three, rank 2 has one."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    plan, counts = np.array([2, 0, 1, 2, 0]), np.array([2, 2, 1])
    table = table_of(1, rank, counts[rank], lengths_of(1, rank, counts[rank]))
    if rank < 2:
        table = concat([table, table_of(2, rank, 1, lengths_of(2, rank, 1))])
    status = StatusWord(epoch=0, step=0, ended=True)
    step = exchange.step(table, SPEC, lambda _: Assignment(rank=plan, rows=2), status)
    check(step, 1, rank, counts, plan)
    assert (step.carried, step.ended, step.rest.num_rows) == (2, False, rank < 2)
    if rank < 2:
        assert read(step.rest, 0) == sample(2, rank, 0, lengths_of(2, rank, 1))
    assert exchange.tell(10 + rank) == [10, 11, 12]
    if rank == 0:
        exchange.leave()  # not between epochs: the carried rows are still to come
    else:
        with pytest.raises(PeerError, match="rank 0 left the loop before step 1"):
            exchange.step(step.rest, SPEC, lambda _: Assignment(rank=plan[:2]), StatusWord(epoch=0, step=1))
    with pytest.raises(MismatchError, match="different plans"):
        exchange.step(table, SPEC, lambda _: Assignment(rank=plan[: 5 - 2 * (rank == 1)], rows=1 + (rank != 1)), status)
    exchange.close()


def test_rows_that_the_plan_leaves_out_stay_and_the_epoch_goes_on() -> None:
    shared_world(3).run(carrying)


def without_lists(rank: int, world_size: int) -> list[int]:
    """Samples of fixed width, and a plan that leaves all of them where they are."""
    spec = RecordSpec(
        names=("id",),
        itemsize=np.array([8]),
        group=np.array([-1]),
        width=np.array([1]),
        groups=(),
        group_field=np.empty(0, np.int64),
    )
    values = np.arange(5) + 10 * rank
    table = RowTable(values.ctypes.data + 8 * np.arange(5)[None], np.ones((1, 5), np.int64), spec.itemsize, (values,))
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    stay = exchange.step(table, spec, lambda batch: Assignment(rank=batch.home), StatusWord(epoch=0, step=0))
    assert stay.table is table
    assert stay.moved == 0
    swap = exchange.step(table, spec, lambda batch: Assignment(rank=1 - batch.home), StatusWord(epoch=0, step=1))
    exchange.close()
    assert swap.moved == 1
    return [int(read(swap.table, row)[0][0]) for row in range(5)]


def test_samples_without_lists() -> None:
    assert shared_world(2).run(without_lists) == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]


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

    def step(number: int, planner=stay, table: RowTable | None = None) -> StepResult:  # type: ignore[no-untyped-def]
        table = table or table_of(0, rank, 3, lengths_of(0, rank, 3))
        return exchange.step(table, SPEC, planner, StatusWord(epoch=2, step=number))

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
    ragged = table_of(0, rank, 3, lengths_of(0, rank, 3))
    if rank == 0:
        ragged.length[2, 1] += 1
        with pytest.raises(DataError, match="field 'action' of row 1"):
            step(14, table=ragged)
    else:
        with pytest.raises(PeerError, match="rank 0 failed at step 14 of epoch 2: DataError: field 'action' of row 1"):
            step(14)
    assert step(15).table.num_rows == 3
    exchange.close()


def test_an_error_reaches_every_rank_at_the_step_concerned() -> None:
    shared_world(3).run(going_wrong)


def test_other_fields_on_another_rank_are_found_out() -> None:
    shared_world(2).run(other_fields)


def other_fields(rank: int, world_size: int) -> None:
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    spec = RecordSpec(
        names=SPEC.names,
        itemsize=SPEC.itemsize,
        group=SPEC.group,
        width=np.array([1, 0, 0, 0, 0, 3 + rank, 0]),
        groups=SPEC.groups,
        group_field=SPEC.group_field,
    )
    with pytest.raises(MismatchError, match="fields of a sample"):
        exchange.step(empty(spec.itemsize), spec, lambda b: Assignment(rank=b.home), StatusWord(epoch=0, step=0))
    exchange.close()


def leaving(rank: int, world_size: int) -> int:
    """Rank 0 breaks out of the first epoch, the other two want one more step; then all run a second epoch."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    exchange.leave()

    def step(epoch: int, number: int) -> StepResult:
        table = table_of(0, rank, 3, lengths_of(0, rank, 3))
        plan = Assignment(rank=np.roll(np.repeat(np.arange(3), 3), 1))
        return exchange.step(table, SPEC, lambda _: plan, StatusWord(epoch=epoch, step=number))

    step(0, 0)
    if rank == 0:
        exchange.leave()
    else:
        with pytest.raises(PeerError, match="rank 0 left the loop before step 1 of epoch 0"):
            step(0, 1)
        exchange.leave()  # rank 0 said it already: nothing more to agree on
    number = step(1, 0).number
    exchange.close()
    return number


def test_after_leaving_an_epoch_the_next_one_works() -> None:
    assert shared_world(3).run(leaving) == [2, 2, 2]


def some_ranks(rank: int, world_size: int) -> list[list[int]]:
    """Ranks 0 and 2 of three share their batches; the group is theirs alone."""
    pair = dist.new_group([0, 2])
    if rank == 1:
        return []
    context = resolve(process_group=pair)
    exchange = StepExchange(context, timeout_s=PATIENCE_S)
    table = table_of(0, context.rank, 3, lengths_of(0, context.rank, 3))
    step = exchange.step(table, SPEC, lambda batch: Assignment(rank=1 - batch.home), StatusWord(epoch=0, step=0))
    exchange.close()
    assert read(step.table, 2) == sample(0, 1 - context.rank, 2, lengths_of(0, 1 - context.rank, 3))
    return step.origin.tolist()


def test_some_ranks_of_a_job_can_share_batches() -> None:
    assert shared_world(3).run(some_ranks) == [[[1, row] for row in range(3)], [], [[0, row] for row in range(3)]]
