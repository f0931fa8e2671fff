"""The plan of an epoch: every row once, even quotas, the same on every machine, resumable on other ranks."""

from dataclasses import fields, replace

import deal_reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata.order import deal
from fsdata.order.progress import Progress
from fsdata.order.stream import SmallUnits, coalesced

units = st.lists(st.integers(0, 40), min_size=0, max_size=12)
ranks = st.integers(1, 5)


def rows_of(stream, *, shuffle, seed, epoch):
    """(unit, row) in the order in which a stream yields them, written the slow way."""
    out = []
    for window in stream:
        rows = [(piece.unit, row) for piece in window.pieces for row in range(piece.start, piece.stop)]
        order = deal.window_order(window, seed=seed, epoch=epoch) if shuffle else range(len(rows))
        out += [rows[i] for i in order][window.start : window.stop]
    return out


@given(units, ranks, st.data())
def test_small_units_that_follow_each_other_become_one_piece(unit_rows, world_size, data):
    """The same rows; units of other files, parts of units and the first window stay alone."""
    rows = np.array(unit_rows, np.int64)
    file = np.array([data.draw(st.sampled_from([-1, 0, 0, 0, 1])) for _ in unit_rows], np.int64)
    share = np.where(file < 0, 0, np.minimum(rows / 50, 0.5))
    small = SmallUnits(file=file, share=share, rows=rows)
    for stream in deal.epoch_streams(rows, world_size=world_size, shuffle=False, shuffle_window=1, seed=0, epoch=0):
        left = stream.after(data.draw(st.integers(0, stream.rows)))
        windows, first = list(coalesced(left, small)), next(iter(left), None)
        assert windows[:1] == ([] if first is None else [first])
        found = []
        for window in windows:
            (piece,) = window.pieces
            numbers = [piece.unit, *piece.more]
            if piece.more:
                assert (window.start, window.stop, piece.start, piece.stop) == (0, rows[numbers].sum(), 0, window.stop)
                assert len(set(file[numbers])) == 1
                assert file[piece.unit] >= 0
                assert share[numbers].sum() < 1.5
                found += [(unit, row) for unit in numbers for row in range(rows[unit])]
            else:
                found += [(piece.unit, row) for row in range(piece.start, piece.stop)][window.start : window.stop]
        assert found == rows_of(left, shuffle=False, seed=0, epoch=0)


def test_as_many_small_units_become_one_piece_as_have_a_share_of_one():
    rows = np.full(21, 10)
    small = SmallUnits(file=np.zeros(21, np.int64), share=np.full(21, 0.25), rows=rows)
    (stream,) = deal.epoch_streams(rows, world_size=1, shuffle=False, shuffle_window=1, seed=0, epoch=0)
    assert [1 + len(window.pieces[0].more) for window in coalesced(stream, small)] == [1, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(("share", "size"), [(0.01, 1), (0.3, 3), (1.0, 10)])
def test_a_share_of_the_epoch_is_shuffled_together_in_the_order_of_the_units(share: float, size: int) -> None:
    """Of 20 units each of two ranks has 10."""
    options = {"world_size": 2, "shuffle": True, "shuffle_window": share, "seed": 0, "epoch": 0}
    streams = deal.epoch_streams([5] * 20, first_unit=100, **options)
    for rank, stream in enumerate(streams):
        units = [[piece.unit for piece in window.pieces] for window in stream]
        assert [unit for of in units for unit in of] == [100 + rank + 2 * n for n in range(10)]
        assert {len(of) for of in units[:-1]} <= {size}


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 70_000])
def test_permutations_are_by_definition(count):
    """States and shuffled orders of before stay what they are, whatever sorts."""
    bits = np.random.Philox(key=np.random.SeedSequence((3, 1, 4)).generate_state(2, np.uint64)).random_raw(count)
    np.testing.assert_array_equal(deal.permutation(count, 3, 1, 4), np.argsort(bits, kind="stable"))


def windows(stream):
    return [
        (tuple((piece.unit, piece.start, piece.stop) for piece in window.pieces), window.start, window.stop)
        for window in stream
    ]


@given(
    unit_rows=units,
    world_size=ranks,
    later=st.lists(ranks, max_size=3),
    shuffle=st.booleans(),
    size=st.integers(1, 4),
    data=st.data(),
)
@pytest.mark.parametrize("compiled_from", [0, 100])
def test_streams_are_those_of_the_reference(
    compiled_from, monkeypatch, unit_rows, world_size, later, shuffle, size, data
):
    monkeypatch.setattr(deal, "COMPILED_FROM", compiled_from)
    options = {"world_size": world_size, "shuffle": shuffle, "shuffle_window": size, "seed": 3, "epoch": 1}
    expected, found = deal_reference.epoch_streams(unit_rows, **options), deal.epoch_streams(unit_rows, **options)
    for number in later:
        assert list(map(windows, found)) == expected
        positions = [data.draw(st.integers(0, stream.rows)) for stream in found]
        rests = [windows(stream.after(position)) for stream, position in zip(found, positions, strict=True)]
        assert rests == list(map(deal_reference.rest, expected, positions))
        expected = deal_reference.deal_again(expected, positions, number)
        found = deal.deal_again(found, positions, number)
    assert list(map(windows, found)) == expected


def test_a_piece_costs_few_bytes():
    streams = deal.epoch_streams([7] * 100_000, world_size=8, shuffle=True, shuffle_window=1, seed=0, epoch=0)
    arrays = [getattr(stream, field.name) for stream in streams for field in fields(stream)]
    assert sum(array.nbytes for array in arrays) <= 60 * 100_000


def test_every_change_of_the_number_of_ranks_is_remembered() -> None:
    of_two = replace(Progress.start(0, 2), positions=(3, 4))
    of_three = replace(of_two.on(3), positions=(1, 0, 2))
    again = of_three.on(2)
    assert (again.history, again.positions) == (((3, 4), (1, 0, 2)), (0, 0))
    assert again.first_world_size == 2
    assert of_three.on(3) is of_three


def test_a_change_before_the_first_row_leaves_nothing_behind() -> None:
    assert Progress.start(0, 2).on(3) == Progress.start(0, 3)
