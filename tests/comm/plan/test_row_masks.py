"""Heads and masks between all ranks: what an owner packs for a peer is what that peer unpacks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscomm.plan import row_masks

INT64 = np.iinfo(np.int64)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, list[list[list[int]]]]:
    """(ranks, numbers in a head, [masks][W owners][W requesters] rows)."""
    world_size = draw(st.integers(1, 4))
    rows = st.lists(st.integers(0, 19), min_size=world_size, max_size=world_size)
    matrices = st.lists(rows, min_size=world_size, max_size=world_size)
    return world_size, draw(st.integers(1, 5)), draw(st.lists(matrices, max_size=3))


@given(world=worlds(), seed=st.integers(0, 2**32))
def test_every_bit_arrives_at_its_row(world: tuple[int, int, list[list[list[int]]]], seed: int) -> None:
    world_size, head, rows = world
    random = np.random.default_rng(seed)
    heads = random.integers(INT64.min, INT64.max, (world_size, head), endpoint=True)
    bits = [[[random.random(n) < 0.5 for n in of_owner] for of_owner in of_mask] for of_mask in rows]
    sent = []
    for owner in range(world_size):
        masks = [np.concatenate(of_mask[owner]) for of_mask in bits]
        lengths = [np.array(of_mask[owner]) for of_mask in rows]
        message = row_masks.pack(heads[owner], masks, lengths, world_size)
        assert message.dtype == np.uint8
        sent.append(np.split(message, np.cumsum(row_masks.sizes(head, lengths, world_size))[:-1]))
    for peer in range(world_size):
        lengths = [np.array([of_owner[peer] for of_owner in of_mask]) for of_mask in rows]
        message = np.concatenate([of_owner[peer] for of_owner in sent])
        sizes = row_masks.sizes(head, lengths, world_size).tolist()
        assert [len(of_owner[peer]) for of_owner in sent] == sizes
        got, masks = row_masks.unpack(message, head, lengths, world_size)
        assert np.array_equal(got, heads)
        for mask, of_mask in zip(masks, bits, strict=True):
            assert mask.dtype == np.bool_
            assert mask.tolist() == [bit for of_owner in of_mask for bit in of_owner[peer]]


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 9), (7, 9), (8, 9), (9, 10), (16, 10), (17, 11)])
def test_a_row_takes_one_bit(rows: int, size: int) -> None:
    lengths = [np.array([rows])]
    assert row_masks.sizes(1, lengths, 1).tolist() == [size]
    assert len(row_masks.pack(np.zeros(1, np.int64), [np.ones(rows, np.bool_)], lengths, 1)) == size


def test_no_mask_at_all() -> None:
    message = row_masks.pack(np.array([-1, 2]), [], [], 2)
    heads, masks = row_masks.unpack(message, 2, [], 2)
    assert heads.tolist() == [[-1, 2], [-1, 2]]
    assert masks == []
