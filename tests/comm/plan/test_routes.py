"""What travels where, of random groups on up to four ranks: rows reach the outputs, gradients the rows, in order."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import routes_reference
import simulated
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from simulated import Asked, Shape, as_ids, check_backward, check_forward, codes_at, codes_of, shapes

from fscomm.plan import routes, ways
from fscomm.plan.group_plan import RowPlan, RowsAhead, Shared, WayBack
from fscomm.plan.sharding_group import GroupLayout

ROW_BYTES = 12
LIMITS = st.sampled_from([None, 1, 2, 5])  # rows in a chunk, None: all fit
BUSY = Shape(
    world_size=3, runs=((2, 1), (), (1, 3)), rows=((4, 2), (), (5, 7)), longest=6, silent=3, seed=1
)  # an owner of nothing among others, tables with several features


def in_chunks(limit: int | None) -> AbstractContextManager[object]:
    """At most `limit` rows between two ranks."""
    return nullcontext() if limit is None else mock.patch.object(GroupLayout, "chunk_rows", limit)


@dataclass(frozen=True, kw_only=True)
class World:
    """Lists are by rank."""

    plans: list[RowPlan]
    requests: list[routes.Request]
    served: list[routes.Served]
    shared: list[Shared]
    told: list[np.ndarray]  # bool[U] which rows that a rank asked for are shared, as their owners said

    def ahead(self) -> list[RowsAhead]:
        most = max(plan.sent_ahead(*each) for plan, *each in self._owners())
        return [plan.ahead(*each, most) for plan, *each in self._ranks()]

    def back(self) -> list[WayBack]:
        most = max(plan.sent_back(*each) for plan, *each in self._owners())
        return [plan.back(*each, most) for plan, *each in self._ranks()]

    def _owners(self) -> Any:
        return zip(self.plans, self.served, self.shared, strict=True)

    def _ranks(self) -> Any:
        return zip(self.plans, self.requests, self.served, self.shared, self.told, strict=True)


def world(shape: Shape, asked: Asked, shared: set[int]) -> World:
    plans = [RowPlan(layout) for layout in shape.layouts()]
    requests = [simulated.request(shape, asked, rank, plan.layout) for rank, plan in enumerate(plans)]
    served, common = [], []
    for owner, plan in enumerate(plans):
        parts = [of_rank[owner] for of_rank in asked.ids]
        ids = [row for part in parts for samples in part for row in samples]
        counts = np.array([[len(samples) for samples in part] for part in parts], np.int64)
        served.append(plan.serve(np.array(ids, np.int64), counts.reshape(shape.world_size, -1)))
        common.append(plan.shared(served[-1], flags(codes_of_rows(served[-1], owner), shared)))
    units = [np.split(each.units, np.cumsum(of.wire.rows)[:-1]) for each, of in zip(common, served, strict=True)]
    told = [np.concatenate([of_owner[rank] for of_owner in units]) for rank in range(shape.world_size)]
    return World(plans=plans, requests=requests, served=served, shared=common, told=told)


def codes_of_rows(served: routes.Served, owner: int) -> list[int]:
    """Of the distinct rows of an owner."""
    tables = np.searchsorted(served.rows.ends, np.arange(len(served.rows)), side="right")
    return [simulated.code(owner, table, row) for table, row in zip(tables, served.rows.ids, strict=True)]


def flags(rows: Iterable[int], chosen: set[int]) -> np.ndarray:
    return np.array([row in chosen for row in rows], np.bool_)


def distinct(parts: Iterable[list[int]]) -> list[int]:
    """By first occurrence inside each part."""
    return [row for part in parts for row in dict.fromkeys(part)]


def distinct_of(shape: Shape, asked: Asked, rank: int) -> list[int]:
    return distinct(simulated.codes_to(shape, asked, rank, owner) for owner in range(shape.world_size))


def distinct_at(shape: Shape, asked: Asked, owner: int) -> list[int]:
    return distinct(simulated.codes_to(shape, asked, rank, owner) for rank in range(shape.world_size))


def most_of_an_owner(shape: Shape, asked: Asked, chosen: set[int], *, once: bool) -> int:
    """The most rows of a class between any owner and all others."""

    def rows(rank: int, owner: int) -> int:
        asked_for = simulated.codes_to(shape, asked, rank, owner)
        return len([row for row in (set(asked_for) if once else asked_for) if row in chosen])

    ranks = range(shape.world_size)
    return max(sum(rows(rank, owner) for rank in ranks if rank != owner) for owner in ranks)


@given(shape=shapes(), limit=LIMITS)
@example(shape=BUSY, limit=None)
@example(shape=BUSY, limit=1)
def test_rows_reach_the_outputs_that_asked_for_them(shape: Shape, limit: int | None) -> None:
    before, asked = shape.asked(0), shape.asked(1)
    here = simulated.used(shape, asked)
    shared = simulated.used(shape, before) & here
    with in_chunks(limit):
        found = world(shape, asked, shared)
        ahead = found.ahead()
    most = max(plan.sent_ahead(*each) for plan, *each in zip(found.plans, found.served, found.shared, strict=True))
    assert most == most_of_an_owner(shape, asked, here - shared, once=True)
    lookups = [each.exclusive for each in ahead], [each.collision for each in ahead]
    check_forward(shape, asked, shared, lookups, [each.merge for each in ahead], limit)


@given(shape=shapes(), limit=LIMITS)
@example(shape=BUSY, limit=None)
@example(shape=BUSY, limit=1)
def test_gradients_reach_their_rows_in_the_order_of_the_plain_update(shape: Shape, limit: int | None) -> None:
    asked, after = shape.asked(0), shape.asked(1)
    here = simulated.used(shape, asked)
    shared = here & simulated.used(shape, after)
    with in_chunks(limit):
        found = world(shape, asked, shared)
        back = found.back()
    most = max(plan.sent_back(*each) for plan, *each in zip(found.plans, found.served, found.shared, strict=True))
    assert most == most_of_an_owner(shape, asked, here - shared, once=False)
    collision = [each.collision_send for each in back], [each.collision_apply for each in back]
    exclusive = [each.exclusive_send for each in back], [each.exclusive_apply for each in back]
    check_backward(shape, asked, shared, *collision, None)
    check_backward(shape, asked, here - shared, *exclusive, limit)


@given(shape=shapes(), limit=LIMITS)
@example(shape=BUSY, limit=None)
@example(shape=BUSY, limit=2)
def test_the_kernels_plan_what_the_reference_plans(shape: Shape, limit: int | None) -> None:
    asked, after = shape.asked(0), shape.asked(1)
    shared = simulated.used(shape, asked) & simulated.used(shape, after)
    step = limit or 10**6
    with in_chunks(limit):
        found = world(shape, asked, shared)
        ahead, back = found.ahead(), found.back()
        aheads, backs = (
            max(sent(plan)(*each) for plan, *each in zip(found.plans, found.served, found.shared, strict=True))
            for sent in (lambda plan: plan.sent_ahead, lambda plan: plan.sent_back)
        )
        for rank, layout in enumerate(shape.layouts()):
            asking = routes_reference.request(
                as_ids(simulated.flat(asked.ids[rank])),
                [[len(samples) for samples in of_owner] for of_owner in asked.ids[rank]],
                asked.orders[rank],
                layout,
            )
            parts = [of_rank[rank] for of_rank in asked.ids]
            owner = routes_reference.serve(
                as_ids([row for part in parts for samples in part for row in samples]),
                [[len(samples) for samples in part] for part in parts],
                layout,
            )
            asked_rows, rows = (
                torch.from_numpy(flags(codes, shared))
                for codes in (distinct_of(shape, asked, rank), distinct_at(shape, asked, rank))
            )
            sent, came = (
                torch.from_numpy(flags(codes, shared))
                for codes in (codes_of(shape, asked, rank), codes_at(shape, asked, rank))
            )
            same(ahead[rank].merge, routes_reference.merge(asking, asked_rows, aheads, step))
            same_rows(ahead[rank].exclusive, routes_reference.lookup(owner, ~rows, aheads, layout))
            same_rows(ahead[rank].collision, routes_reference.lookup(owner, rows, None, layout))
            same(back[rank].exclusive_send, routes_reference.send_gradients(asking, ~sent, backs, step))
            same(back[rank].collision_send, routes_reference.send_gradients(asking, sent, None, step))
            same(back[rank].exclusive_apply, routes_reference.apply(owner, ~came, backs, step))
            same(back[rank].collision_apply, routes_reference.apply(owner, came, None, step))


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for name in expected.__dataclass_fields__:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs, name


def same_rows(found: Any, expected: Any) -> None:
    """The same rows go to the same places; inside a table they may be looked up in another order."""
    assert found.splits == expected.splits
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.ids[found.index], expected.ids[expected.index])


@given(shape=shapes())
@example(shape=BUSY)
def test_both_sides_of_a_pair_number_its_rows_alike(shape: Shape) -> None:
    asked = shape.asked(0)
    found = world(shape, asked, set())
    for rank, asking in enumerate(found.requests):
        codes = as_ids(codes_of(shape, asked, rank))
        assert codes[asking.wire.positions].tolist() == distinct_of(shape, asked, rank)
        assert codes[asking.wire.positions][asking.wire.slots].tolist() == codes.tolist()
        assert asking.wire.occurrences.tolist() == [sum(map(len, part)) for part in asked.ids[rank]]
    for rank, owner in enumerate(found.served):
        codes = as_ids(codes_at(shape, asked, rank))
        assert codes[owner.wire.positions].tolist() == distinct_at(shape, asked, rank)
        assert codes[owner.wire.positions][owner.wire.slots].tolist() == codes.tolist()
        asked_here = [len(set(simulated.codes_to(shape, asked, peer, rank))) for peer in range(shape.world_size)]
        assert owner.wire.rows.tolist() == asked_here


@given(shape=shapes())
@example(shape=BUSY)
def test_an_owner_numbers_each_row_of_its_tables_once(shape: Shape) -> None:
    asked = shape.asked(0)
    for rank, owner in enumerate(world(shape, asked, set()).served):
        codes = codes_of_rows(owner, rank)
        assert len(set(codes)) == len(codes)
        assert [codes[number] for number in owner.rows.numbers] == distinct_at(shape, asked, rank)
        assert not owner.irregular


def test_the_local_order() -> None:
    layout = two_tables(rank=0)
    order = torch.tensor([2, 0, 1], dtype=torch.int32)
    assert routes.request(as_ids([5, 6, 7]), [1, 1, 1], order, layout).from_wire.tolist() == [2, 0, 1]
    assert routes.request(as_ids([5, 6, 7]), [1, 1, 1], None, layout).from_wire.tolist() == []


@pytest.mark.parametrize(("ids", "irregular"), [([9, 3], False), ([10, 0], True), ([0, 4], True), ([-1, 0], True)])
def test_ids_outside_their_table_are_told(ids: list[int], irregular: bool) -> None:
    owner = routes.serve(np.array(ids), np.array([[1, 0], [0, 1]]), two_tables(rank=0))
    assert owner.irregular is irregular
    assert owner.rows.ids.tolist() == [ids[0] if 0 <= ids[0] < 10 else 0, ids[1] if ids[1] < 4 else 0]
    assert owner.wire.ids.tolist() == ids


def two_tables(rank: int) -> GroupLayout:
    return GroupLayout(
        module="m",
        sharding="table_wise",
        rank=rank,
        world_size=2,
        dim=3,
        dtype=torch.float32,
        runs=((1, 1), (1,)),
        rows=((10, 4), (8,))[rank],
    )


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), more=st.integers(0, 9), limit=st.integers(1, 4))
def test_chunks_keep_the_order_of_each_peer_and_are_as_many_everywhere(
    counts: list[int], more: int, limit: int
) -> None:
    largest = sum(counts) + more
    cut = deferred(counts, largest, limit)
    assert len(cut.exclusive) == max(-(-largest // limit), 1)
    assert [sum(of_peer) for of_peer in zip(*cut.exclusive, strict=True)] == counts
    rows = [(peer, i) for peer, count in enumerate(counts) for i in range(count)]
    sent = [rows[i] for i in np.argsort(cut.places)]
    expected, taken = [], [0] * len(counts)
    for sizes in cut.exclusive:
        assert sum(sizes) < limit + len(counts)
        for peer, size in enumerate(sizes):
            expected += [(peer, taken[peer] + i) for i in range(size)]
            taken[peer] += size
    assert sent == expected


def deferred(counts: list[int], largest: int, limit: int) -> ways.Cut:
    """Nothing is shared."""
    return ways.cut(np.zeros(sum(counts), np.bool_), np.array(counts), largest, limit)


def test_a_row_larger_than_a_chunk_travels_alone() -> None:
    rows = replace(two_tables(0), chunk_bytes=ROW_BYTES - 1).chunk_rows
    assert deferred([2, 1], 3, rows).exclusive == [[0, 0], [1, 0], [1, 1]]


def test_a_chunk_is_what_a_rank_sends_to_all_others() -> None:
    layout = replace(two_tables(0), chunk_bytes=60 * ROW_BYTES)
    assert layout.chunk_rows == 60
    of_five = replace(layout, world_size=5, runs=(*layout.runs, (), (), ()))
    assert of_five.chunk_rows == 60


@pytest.mark.parametrize("ranks", [2, 16, 256, 1024])
def test_the_number_of_exchanges_depends_on_bytes_and_not_on_ranks_or_skew(ranks: int) -> None:
    """1 GiB of rows of 512 bytes from a rank, 16 MiB in an exchange; once as even as can be, once to one peer."""
    rows, step = (1 << 30) // 512, (16 << 20) // 512
    even = [rows // ranks] * ranks
    skewed = [rows - (ranks - 1) * 20, *[20] * (ranks - 1)]
    for counts in (even, skewed):
        cut = deferred(counts, sum(counts), step)
        assert len(cut.exclusive) == 64
        assert max(map(sum, cut.exclusive)) <= step + ranks


def test_what_nothing_waits_for_stays_in_one_piece() -> None:
    cut = ways.cut(np.ones(16, np.bool_), np.array([7, 9]), 1, 1)
    assert cut.places.tolist() == list(range(16))
    assert cut.collision == [[7, 9]]


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="world size"):
        GroupLayout(module="m", sharding="s", rank=0, world_size=2, dim=1, dtype=torch.float32, runs=((1,),), rows=(3,))
    layout = two_tables(rank=1)
    assert layout.features.tolist() == [2, 1]
    assert layout.tables.tolist() == [2, 1]
    assert layout.flat_runs.tolist() == [1, 1, 1]
    assert layout.row_bytes == ROW_BYTES
