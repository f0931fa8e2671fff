"""What travels where, of random groups on up to four ranks: rows reach the outputs, gradients the rows, in order."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from unittest import mock

import pytest
import simulated
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated import Asked, Shape, as_ids, check_backward, check_forward, codes_at, codes_of, shapes

from fscomm.plan import routes
from fscomm.plan.sharding_group import GroupLayout

ROW_BYTES = 12
ALL = 10**6  # rows
LIMITS = st.sampled_from([None, 1, 2, 5])  # rows in a chunk, None: all fit
BUSY = Shape(
    world_size=3, runs=((2, 1), (), (1, 3)), rows=((4, 2), (), (5, 7)), longest=6, silent=3, seed=1
)  # an owner of nothing among others, tables with several features


def in_chunks(limit: int | None) -> AbstractContextManager[object]:
    """At most `limit` rows between two ranks."""
    return nullcontext() if limit is None else mock.patch.object(GroupLayout, "chunk_rows", limit)


def requests(shape: Shape, asked: Asked) -> list[routes.Request]:
    return [simulated.request(shape, asked, rank, layout) for rank, layout in enumerate(shape.layouts())]


def served(shape: Shape, asked: Asked) -> list[routes.Served]:
    """What every owner gets from all requesters."""
    result = []
    for owner, layout in enumerate(shape.layouts()):
        parts = [of_rank[owner] for of_rank in asked.ids]
        ids = [row for part in parts for samples in part for row in samples]
        result.append(routes.serve(as_ids(ids), [[len(samples) for samples in part] for part in parts], layout))
    return result


def mask(rows: Iterable[int], chosen: set[int]) -> torch.Tensor:
    return torch.tensor([row in chosen for row in rows], dtype=torch.bool)


def distinct(parts: Iterable[list[int]]) -> list[int]:
    """By first occurrence inside each part."""
    return [row for part in parts for row in dict.fromkeys(part)]


def distinct_of(shape: Shape, asked: Asked, rank: int) -> list[int]:
    return distinct(simulated.codes_to(shape, asked, rank, owner) for owner in range(shape.world_size))


def distinct_at(shape: Shape, asked: Asked, owner: int) -> list[int]:
    return distinct(simulated.codes_to(shape, asked, rank, owner) for rank in range(shape.world_size))


def by_owner(shape: Shape, asked: Asked, chosen: set[int], *, once: bool) -> int:
    """The most rows of a class between any owner and all others."""

    def rows(rank: int, owner: int) -> int:
        asked_for = simulated.codes_to(shape, asked, rank, owner)
        return len([row for row in (set(asked_for) if once else asked_for) if row in chosen])

    ranks = range(shape.world_size)
    return max(sum(rows(rank, owner) for rank in ranks if rank != owner) for owner in ranks)


@settings(max_examples=150, deadline=None)
@given(shape=shapes(), limit=LIMITS)
@example(shape=BUSY, limit=None)
@example(shape=BUSY, limit=1)
def test_rows_reach_the_outputs_that_asked_for_them(shape: Shape, limit: int | None) -> None:
    before, asked = shape.asked(0), shape.asked(1)
    here = simulated.used(shape, asked)
    shared = simulated.used(shape, before) & here
    largest = by_owner(shape, asked, here - shared, once=True)
    step = limit or ALL
    with in_chunks(limit):
        masks = [mask(distinct_at(shape, asked, owner), shared) for owner in range(shape.world_size)]
        owners = list(zip(served(shape, asked), masks, shape.layouts(), strict=True))
        exclusive = [routes.lookup(owner, ~rows, largest, layout) for owner, rows, layout in owners]
        collision = [routes.lookup(owner, rows, None, layout) for owner, rows, layout in owners]
        merges = [
            routes.merge(asking, mask(distinct_of(shape, asked, rank), shared), largest, step)
            for rank, asking in enumerate(requests(shape, asked))
        ]
    check_forward(shape, asked, shared, (exclusive, collision), merges, limit)


@settings(max_examples=150, deadline=None)
@given(shape=shapes(), limit=LIMITS)
@example(shape=BUSY, limit=None)
@example(shape=BUSY, limit=1)
def test_gradients_reach_their_rows_in_the_order_of_the_plain_update(shape: Shape, limit: int | None) -> None:
    asked, after = shape.asked(0), shape.asked(1)
    here = simulated.used(shape, asked)
    shared = here & simulated.used(shape, after)
    step = limit or ALL
    for chosen, most in ((shared, None), (here - shared, by_owner(shape, asked, here - shared, once=False))):
        sends = [
            routes.send_gradients(asking, mask(codes_of(shape, asked, rank), chosen), most, step)
            for rank, asking in enumerate(requests(shape, asked))
        ]
        applies = [
            routes.apply(owner, mask(codes_at(shape, asked, rank), chosen), most, step)
            for rank, owner in enumerate(served(shape, asked))
        ]
        check_backward(shape, asked, chosen, sends, applies, None if most is None else limit)


@settings(max_examples=100, deadline=None)
@given(shape=shapes())
@example(shape=BUSY)
def test_both_sides_of_a_pair_number_its_rows_alike(shape: Shape) -> None:
    asked = shape.asked(0)
    for rank, asking in enumerate(requests(shape, asked)):
        codes = as_ids(codes_of(shape, asked, rank))
        assert codes[asking.wire.positions].tolist() == distinct_of(shape, asked, rank)
        assert codes[asking.wire.positions][asking.wire.slots].tolist() == codes.tolist()
        assert asking.wire.occurrences == [sum(map(len, part)) for part in asked.ids[rank]]
    for rank, owner in enumerate(served(shape, asked)):
        codes = as_ids(codes_at(shape, asked, rank))
        assert codes[owner.wire.positions].tolist() == distinct_at(shape, asked, rank)
        assert codes[owner.wire.positions][owner.wire.slots].tolist() == codes.tolist()
        asked_here = [len(set(simulated.codes_to(shape, asked, peer, rank))) for peer in range(shape.world_size)]
        assert owner.wire.rows == asked_here


@settings(max_examples=100, deadline=None)
@given(shape=shapes())
@example(shape=BUSY)
def test_an_owner_numbers_rows_over_all_its_tables_and_knows_the_order_of_the_lookup(shape: Shape) -> None:
    asked = shape.asked(0)
    for rank, owner in enumerate(served(shape, asked)):
        sizes = shape.rows[rank]
        keys = [code // 100 % 10 for code in codes_at(shape, asked, rank)]  # tables
        rows = [code % 100 for code in codes_at(shape, asked, rank)]
        assert owner.keys.tolist() == [sum(sizes[:table]) + row for table, row in zip(keys, rows, strict=True)]
        assert not owner.irregular
        by_feature = simulated.torchrec_order(shape, asked, rank)
        codes = as_ids(codes_at(shape, asked, rank))
        assert codes[owner.order].tolist() == [code for of_feature in by_feature for code, _ in of_feature]
        assert owner.ends.diff().tolist() == [len(of_feature) for of_feature in by_feature]


def test_inverse_of_the_local_order() -> None:
    layout = two_tables(rank=0)
    order = torch.tensor([2, 0, 1], dtype=torch.int32)
    asking = routes.request(as_ids([5, 6, 7]), [[1, 1], [1]], order, layout)
    assert asking.from_wire is not None
    assert asking.to_wire is not None
    assert asking.from_wire.tolist() == [2, 0, 1]
    assert asking.to_wire.tolist() == [1, 2, 0]
    straight = routes.request(as_ids([5, 6, 7]), [[1, 1], [1]], None, layout)
    assert straight.from_wire is None
    assert straight.to_wire is None


@pytest.mark.parametrize(("ids", "irregular"), [([9, 3], False), ([10, 0], True), ([0, 4], True), ([-1, 0], True)])
def test_ids_outside_their_table_are_told(ids: list[int], irregular: bool) -> None:
    owner = routes.serve(as_ids(ids), [[1, 0], [0, 1]], two_tables(rank=0))
    assert owner.irregular is irregular
    assert bool(((owner.keys >= 0) & (owner.keys < 14)).all())
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


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), more=st.integers(0, 9), limit=st.integers(1, 4))
def test_chunks_keep_the_order_of_each_peer_and_are_as_many_everywhere(
    counts: list[int], more: int, limit: int
) -> None:
    largest = sum(counts) + more
    cut = routes.chunks(counts, largest, limit)
    assert len(cut.splits) == max(-(-largest // limit), 1)
    assert [sum(of_peer) for of_peer in zip(*cut.splits, strict=True)] == counts
    rows = [(peer, i) for peer, count in enumerate(counts) for i in range(count)]
    sent = rows if cut.order is None else [rows[i] for i in cut.order.tolist()]
    expected, taken = [], [0] * len(counts)
    for sizes in cut.splits:
        assert sum(sizes) < limit + len(counts)
        for peer, size in enumerate(sizes):
            expected += [(peer, taken[peer] + i) for i in range(size)]
            taken[peer] += size
    assert sent == expected


def test_a_row_larger_than_a_chunk_travels_alone() -> None:
    rows = replace(two_tables(0), chunk_bytes=ROW_BYTES - 1).chunk_rows
    assert routes.chunks([2, 1], 3, rows).splits == [[0, 0], [1, 0], [1, 1]]


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
        cut = routes.chunks(counts, sum(counts), step)
        assert len(cut.splits) == 64
        assert max(map(sum, cut.splits)) <= step + ranks


def test_what_nothing_waits_for_stays_in_one_piece() -> None:
    cut = routes.chunks([7, 9], None, 1)
    assert cut.order is None
    assert cut.splits == [[7, 9]]


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="world size"):
        GroupLayout(module="m", sharding="s", rank=0, world_size=2, dim=1, dtype=torch.float32, runs=((1,),), rows=(3,))
    layout = two_tables(rank=1)
    assert layout.features_to == [2, 1]
    assert layout.row_bytes == ROW_BYTES
