"""The exchange of ids on threads: what all ranks agree on, and that the plans of all ranks fit one another."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import simulated
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from patience import PATIENCE_S
from simulated import Asked, Shape, check_gradients, check_rows, shapes, used

from fscomm.device import Host
from fscomm.exchange.handed_over import ExchangedIds, Verdict
from fscomm.exchange.id_exchange import BATCH, END, FAILED, IdExchange
from fscomm.exchange.wire_gate import CHUNKS_UNDER_WAY, WireGate
from fscomm.plan.masks import mask_sizes
from fscomm.plan.row_plan import RowPlan
from fscomm.plan.sharding_group import GroupLayout, chunk_bytes
from fscomm.report.recorder import Recorder
from fscomm.tables.forward_guard import ForwardGuard

BUSY = Shape(world_size=3, runs=((2, 1), (), (1,)), rows=((4, 2), (), (5,)), longest=5, silent=3, seed=5)


class Wires:
    """In the place of the sockets between `world_size` threads."""

    def __init__(self, world_size: int) -> None:
        self._sent: list[Any] = [None] * world_size
        self._barrier = threading.Barrier(world_size, timeout=PATIENCE_S)
        self.cut = self._barrier.abort

    def swap(self, rank: int, mine: Any) -> list[Any]:
        """What every rank gave in the same exchange."""
        self._sent[rank] = mine
        self._barrier.wait()
        given = list(self._sent)
        self._barrier.wait()
        return given


class PlayedChannel:
    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires = wires
        self._rank = rank
        self.exchanges = 0
        self.fails_at: int | None = None

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        self.exchanges += 1
        if self.exchanges == self.fails_at:
            raise ConnectionError("a peer is gone")
        assert (len(out), len(mine)) == (sum(received), sum(sent))
        given = self._wires.swap(self._rank, mine.clone().split(sent))
        for piece, of_peer in zip(out.split(received), given, strict=True):
            assert len(piece) == len(of_peer[self._rank]), "a size that gloo would abort at"
            piece.copy_(of_peer[self._rank])


def served_by(layouts: Sequence[GroupLayout], modules: list[int]) -> Any:
    """As `ServedModules` has it, with groups of a module in any place."""
    return SimpleNamespace(
        layouts=layouts,
        module_of=modules,
        same_tables=lambda group: [group],
        modules=[SimpleNamespace(guard=ForwardGuard(), tells_rows=False)] * (max(modules) + 1),
    )


class Ranks:
    """The `IdExchange` of all ranks with groups `shapes`, of which group g belongs to `modules[g]`."""

    def __init__(self, shapes: list[Shape], modules: list[int]) -> None:
        self.shapes = shapes
        self.modules = modules
        self.world_size = shapes[0].world_size
        layouts = [shape.layouts(f"module {m}") for shape, m in zip(shapes, modules, strict=True)]
        self.layouts = list(zip(*layouts, strict=True))  # [W][G]
        self.wires = Wires(self.world_size)
        self.gates = [Mock(WireGate, us_per_mb=0) for _ in self.layouts]
        self.channels = [PlayedChannel(self.wires, rank) for rank in range(self.world_size)]
        self.exchanges = [
            IdExchange(channel, gate, served_by(of_rank, modules), Host(), Recorder())
            for channel, gate, of_rank in zip(self.channels, self.gates, self.layouts, strict=True)
        ]

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """`work(rank)` in a thread per rank; an error of one gets the others out."""

        def guarded(rank: int) -> Any:
            try:
                return work(rank)
            except BaseException:
                self.wires.cut()
                raise

        with ThreadPoolExecutor(self.world_size) as pool:
            futures = [pool.submit(guarded, rank) for rank in range(self.world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # a broken barrier is what the others hear
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [future.result() for future in futures]

    def step(
        self,
        before: list[ExchangedIds] | None,
        number: int,
        asked: list[Asked],
        says: Callable[[int], tuple[int, int]] | None = None,
    ) -> list[ExchangedIds]:
        """One round on all ranks. says: status and number of a rank, where they are not BATCH and `number`."""

        def work(rank: int) -> ExchangedIds:
            status, own_number = says(rank) if says is not None else (BATCH, number)
            requests = [
                simulated.request(shape, asked[g], rank, self.layouts[rank][g]) if status == BATCH else None
                for g, shape in enumerate(self.shapes)
            ]
            parts = asked[0].number_of_parts
            return self.exchanges[rank].exchange(own_number, before[rank] if before else None, status, requests, parts)

        return self.each(work)

    def says(
        self, before: list[ExchangedIds] | None, statuses: list[int], numbers: list[int] | None = None
    ) -> list[ExchangedIds]:
        """One round in which each rank has a batch of its own making, or none."""
        number = before[0].number + 1 if before else 0
        asked = [shape.asked(0) for shape in self.shapes]
        return self.step(
            before, number, asked, says=lambda rank: (statuses[rank], numbers[rank] if numbers else number)
        )


def verdicts(of_ranks: list[ExchangedIds]) -> list[Verdict]:
    return [ids.verdict for ids in of_ranks]


def check_ahead(shape: Shape, asked: Asked, shared: set[int], steps: list[ExchangedIds], g: int) -> None:
    groups = [group for step in steps if (group := step.groups[g]) is not None]
    assert len(groups) == len(steps)
    check_rows(shape, asked, shared, groups)


def check_back(
    shape: Shape, asked: Asked, urgent: set[int], later: set[int], after: list[ExchangedIds], g: int
) -> None:
    """`after`: what the ranks exchanged for the step after that of the gradients."""
    backs = [back for ids in after if (back := ids.back[g]) is not None]
    assert len(backs) == len(after)
    check_gradients(shape, asked, urgent, later, backs)


def another(shape: Shape) -> Shape:
    """A second group on the same ranks, with its owners the other way round."""
    return replace(shape, runs=shape.runs[::-1], rows=shape.rows[::-1], seed=shape.seed + 1)


def check_plans(shape: Shape, modules: list[int]) -> None:
    """Three steps and the end of data: both ways of every step, with rows shared as a set of rows says."""
    ranks = Ranks([shape, another(shape)], modules)
    asked = [[of.asked(n) for of in ranks.shapes] for n in range(3)]
    steps: list[list[ExchangedIds]] = []
    for n in range(3):
        made = ranks.step(steps[-1] if steps else None, n, asked[n])
        assert verdicts(made) == [Verdict(served=3 if modules == [0, 1] else 1)] * ranks.world_size
        steps.append(made)
    steps.append(ranks.says(steps[-1], [END] * ranks.world_size))
    assert verdicts(steps[-1]) == [Verdict(ended=True)] * ranks.world_size
    for g, of in enumerate(ranks.shapes):
        sets = [set(), *(used(of, asked[n][g]) for n in range(3)), set()]
        for n in range(3):
            check_ahead(of, asked[n][g], sets[n] & sets[n + 1], steps[n], g)
            shared = sets[n + 1] & sets[n + 2]
            soon = used(of, asked[n + 1][g], 0) if n < 2 else set()
            check_back(of, asked[n][g], shared & soon, shared - soon, steps[n + 1], g)
    assert not any(ids.irregular for made in steps for ids in made)
    assert {(gate.enter.call_count, gate.leave.call_count) for gate in ranks.gates} == {(8, 8)}


@given(shape=shapes([(size, 1) for size in (1, 2, 3, 4)]), modules=st.sampled_from([[0, 0], [0, 1]]))
@example(shape=BUSY, modules=[0, 1])
@example(shape=replace(BUSY, chunk_rows=1), modules=[0, 0])
@example(shape=replace(BUSY, parts=(4,)), modules=[0, 1])
@example(shape=replace(BUSY, parts=(3, 1, 2), chunk_rows=1), modules=[0, 0])
def test_plans_of_all_ranks_fit(shape: Shape, modules: list[int]) -> None:
    check_plans(shape, modules)


def test_after_a_rank_had_no_batch_the_step_before_still_gets_its_way_back() -> None:
    """All get the same words, also of a rank that failed where another one only ended."""
    ranks = Ranks([BUSY, another(BUSY)], [0, 1])
    asked = [of.asked(0) for of in ranks.shapes]
    after = ranks.says(ranks.step(None, 0, asked), [END, BATCH, FAILED])
    assert len({str(verdict) for verdict in verdicts(after)}) == 1
    assert "the loader of rank 2 failed at batch 1" in str(after[0].verdict.stop)
    for g, of in enumerate(ranks.shapes):
        check_back(of, asked[g], set(), set(), after, g)


@pytest.mark.parametrize(
    ("statuses", "numbers", "text"),
    [
        ([BATCH] * 3, [4, 5, 4], "the ranks are at different steps: [4, 5, 4] by rank"),
        ([END] * 3, [7, 7, 6], "the ranks are at different steps: [7, 7, 6] by rank"),
        ([FAILED, END, END], [0, 1, 1], "the ranks are at different steps: [0, 1, 1] by rank"),
        ([END, BATCH, END], [7] * 3, "the loader of ranks 0, 2 ended at batch 7, the others have more"),
        ([END] * 3, [0] * 3, ""),
    ],
)
def test_without_any_step_the_given_number_counts(statuses: list[int], numbers: list[int], text: str) -> None:
    """As after a block that was left early, or at the start of a later loader: nothing else says where a rank is."""
    (verdict, *others) = verdicts(Ranks([BUSY], [0]).says(None, statuses, numbers))
    assert others == [verdict] * 2
    assert text in str(verdict.stop)
    assert verdict.ended == (not text)


@pytest.mark.parametrize("exchange", [2, 3])
def test_the_wire_is_given_free_where_an_exchange_fails(exchange: int) -> None:
    ranks = Ranks([BUSY], [0])
    for channel in ranks.channels:
        channel.fails_at = exchange
    with pytest.raises(ConnectionError, match="a peer is gone"):
        ranks.step(None, 0, [BUSY.asked(0)])
    entered = [gate.enter.call_count for gate in ranks.gates]
    assert [gate.leave.call_count for gate in ranks.gates] == entered
    assert max(entered) == exchange - 1  # or a rank heard of an error earlier


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="module 0: 1 owners with 2 tables here for world size 3"):
        replace(BUSY.layouts("module 0")[0], runs=((1, 1),))


def test_a_chunk_has_a_row_at_least_and_a_row_takes_one_bit() -> None:
    layout = BUSY.layouts()[0]
    plans = [RowPlan(replace(layout, chunk_bytes=nbytes)) for nbytes in (11, 60 * 12)]
    assert [plan.chunks([0, 0, 121]) for plan in plans] == [121, 3]
    assert [mask_sizes(1, [np.array([rows])], 1).tolist() for rows in (0, 1, 8, 9)] == [[8], [9], [9], [10]]


def test_chunks_are_cut_by_the_pace_of_the_slowest_link() -> None:
    """The same on all ranks, which have measured it, or not."""
    ranks = Ranks([BUSY], [0])
    for gate, pace in zip(ranks.gates, (0, 2_000, 10_000), strict=True):
        gate.us_per_mb = pace
    ranks.step(None, 0, [BUSY.asked(0)])
    assert {gate.budget_bytes for gate in ranks.gates} == {CHUNKS_UNDER_WAY * 1_000_000}


@pytest.mark.parametrize(("pace", "nbytes"), [(0, 512 << 10), (40_000, 512 << 10), (5_000, 2_000_000), (1, 16 << 20)])
def test_a_chunk_takes_as_long_as_a_collision_exchange_may_wait(pace: int, nbytes: int) -> None:
    """And it is never smaller than what pays for its own cost, nor larger than what a GPU's chunk is."""
    assert chunk_bytes(512 << 10, pace) == nbytes
