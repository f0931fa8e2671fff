"""Small parts of a plan: how rows are cut into exchanges, what owners tell of rows, and who passes a row on.

That all plans of a step fit, and bring every row and gradient where it belongs, is in
`tests/comm/exchange/test_id_exchange.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscomm.plan import ways, wire_kernels
from fscomm.plan.group_plan import mask_sizes, pack_masks, unpack_masks
from fscomm.plan.routes import RowPlan
from fscomm.plan.sharding_group import GroupLayout

INT64 = np.iinfo(np.int64)
SEEDS = st.integers(0, 2**32)
LAYOUT = GroupLayout(
    module="m", sharding="table_wise", rank=0, world_size=2, dim=3, dtype=torch.float32, runs=((1, 1), (1,)),
    rows=(10, 4),
)  # fmt: skip


@pytest.mark.parametrize(("ids", "irregular"), [([9, 3], False), ([10, 0], True), ([0, 4], True), ([-1, 0], True)])
def test_ids_outside_their_table_are_told(ids: list[int], irregular: bool) -> None:
    owner = RowPlan(LAYOUT).serve(np.array(ids), np.array([[1, 0], [0, 1]]), 1)
    assert owner.irregular is irregular
    assert owner.rows.ids.tolist() == [ids[0] if 0 <= ids[0] < 10 else 0, ids[1] if ids[1] < 4 else 0]


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="m: 1 owners with 2 tables here for world size 2"):
        replace(LAYOUT, runs=((1, 1),))


def deferred(counts: list[int], largest: int, limit: int) -> ways.Cut:
    """Nothing is shared."""
    return ways.cut(np.ones(sum(counts), np.uint8), 1, np.array(counts), largest, limit)


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), more=st.integers(0, 9), limit=st.integers(1, 4))
def test_chunks_keep_the_order_of_each_peer_and_are_as_many_everywhere(
    counts: list[int], more: int, limit: int
) -> None:
    largest = sum(counts) + more
    cut = deferred(counts, largest, limit)
    assert len(cut.splits[-1]) == max(-(-largest // limit), 1)
    assert [sum(of_peer) for of_peer in zip(*cut.splits[-1], strict=True)] == counts
    rows = [(peer, i) for peer, count in enumerate(counts) for i in range(count)]
    expected, taken = [], [0] * len(counts)
    for sizes in cut.splits[-1]:
        assert sum(sizes) < limit + len(counts)
        for peer, size in enumerate(sizes):
            expected += [(peer, taken[peer] + i) for i in range(size)]
            taken[peer] += size
    assert [rows[i] for i in np.argsort(cut.places)] == expected


def test_a_chunk_is_what_a_rank_sends_to_all_others_and_has_a_row_at_least() -> None:
    sixty = replace(LAYOUT, chunk_bytes=60 * 12, world_size=5, runs=(*LAYOUT.runs, (), (), ()))
    assert sixty.chunk_rows == 60
    assert replace(LAYOUT, chunk_bytes=11).chunk_rows == 1
    assert deferred([2, 1], 3, 1).splits[-1] == [[0, 0], [1, 0], [1, 1]]


def test_what_nothing_waits_for_stays_in_one_piece() -> None:
    cut = ways.cut(np.zeros(16, np.uint8), 1, np.array([7, 9]), 1, 1)
    assert cut.places.tolist() == list(range(16))
    assert cut.splits == [[[7, 9]], [[0, 0]]]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, list[list[list[int]]]]:
    """(ranks, numbers in a head, [masks][W owners][W requesters] rows)."""
    world_size = draw(st.integers(1, 4))
    rows = st.lists(st.integers(0, 19), min_size=world_size, max_size=world_size)
    matrices = st.lists(rows, min_size=world_size, max_size=world_size)
    return world_size, draw(st.integers(1, 5)), draw(st.lists(matrices, max_size=3))


@given(world=worlds(), seed=SEEDS)
def test_every_bit_that_an_owner_tells_arrives_at_its_row(
    world: tuple[int, int, list[list[list[int]]]], seed: int
) -> None:
    world_size, head, rows = world
    random = np.random.default_rng(seed)
    heads = random.integers(INT64.min, INT64.max, (world_size, head), endpoint=True)
    bits = [[[random.random(n) < 0.5 for n in of_owner] for of_owner in of_mask] for of_mask in rows]
    sent = []
    for owner in range(world_size):
        masks = [np.concatenate(of_mask[owner]) for of_mask in bits]
        lengths = [np.array(of_mask[owner]) for of_mask in rows]
        message = pack_masks(heads[owner], masks, lengths, world_size)
        sent.append(np.split(message, np.cumsum(mask_sizes(head, lengths, world_size))[:-1]))
    for peer in range(world_size):
        lengths = [np.array([of_owner[peer] for of_owner in of_mask]) for of_mask in rows]
        message = np.concatenate([of_owner[peer] for of_owner in sent])
        sizes = mask_sizes(head, lengths, world_size).tolist()
        assert [len(of_owner[peer]) for of_owner in sent] == sizes
        got, masks = unpack_masks(message, head, lengths, world_size)
        assert np.array_equal(got, heads)
        for mask, of_mask in zip(masks, bits, strict=True):
            assert mask.tolist() == [bit for of_owner in of_mask for bit in of_owner[peer]]


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 9), (8, 9), (9, 10)])
def test_a_row_takes_one_bit(rows: int, size: int) -> None:
    assert mask_sizes(1, [np.array([rows])], 1).tolist() == [size]


def test_the_ranks_of_a_host_share_the_work_of_passing_rows_on() -> None:
    found = np.empty(8000, np.int32)
    wire_kernels.carriers(np.ones((8000, 8), np.bool_), np.arange(8000), found)
    assert np.bincount(found).tolist() == [1000] * 8


def test_all_tensors_of_a_plan_are_placed() -> None:
    """Wherever they lie in it; all else stays as it is."""
    three = torch.arange(3)
    bags = ways.KernelBags(first=0, last=3, offsets=three)
    plan = ways.Back(
        ends=[3],
        pieces=[ways.GoBack(index=three, sent=[[3]], received=[[3]], most=3) for _ in range(2)],
        starts=[0, 3, 6],
        applies=[ways.Apply(index=three, ids=three, bags=[bags]) for _ in range(2)],
    )
    names: list[str] = []
    placed = ways.with_tensors(plan, lambda name, tensor: names.append(name) or tensor.int())
    assert names == ["index"] * 2 + ["index", "ids", "offsets"] * 2
    assert (placed.ends, placed.starts) == ([3], [0, 3, 6])
    for way, apply in zip(placed.pieces, placed.applies, strict=True):
        assert (way.index.dtype, way.sent) == (torch.int32, [[3]])
        assert {each.dtype for each in (apply.index, apply.ids, apply.bags[0].offsets)} == {torch.int32}
        assert (apply.bags[0].last, apply.weights) == (3, None)
    assert ways.with_tensors(None, lambda *_: pytest.fail("called")) is None
