"""Fields with one value per row: their kernels against numpy, and how pyarrow decodes them."""

import numpy as np
import pyarrow as pa
import pytest
from data_kit import DECODERS, assert_same, rows_of, write
from hypothesis import given
from hypothesis import strategies as st
from random_files import batches

from fsdata.decode.block import Block, Blocks, Column, RowRefs, Scalars
from fsdata.kernels import scalars


def flat_block(rng: np.random.Generator, rows: int, *, constant: bool, rowwise: bool) -> tuple[Block, list[np.ndarray]]:
    """A block of an int64, a float32, a dense field of 3 and one that all rows may have alike; what each row has.

    rowwise: the int64 and the float32 of a row stand next to each other, in any order.
    """
    ids, floats = rng.integers(0, 1 << 40, rows), rng.random(rows, np.float32)
    dense, alike = rng.random((rows, 3), np.float32), rng.integers(0, 9, 1)
    at, step = np.array([ids.ctypes.data, floats.ctypes.data]), np.array([1, 1])
    memory = np.zeros((rows, 16), np.uint8)
    if rowwise:
        places = np.array([[0, 8], [8, 0]])[rng.integers(0, 2)]
        target, sizes = memory.ctypes.data + places, np.array([8, 4])
        scalars.spread(at, sizes, rows, target, np.array([16, 16]))
        at, step = target, 16 // sizes
    owners = ids, floats, memory
    found = Scalars(slots=np.array([0, 1]), at=at, step=step, rows=rows, owners=owners, bytes=12 * rows)
    last = Column.constant(alike) if constant else Column.of(np.repeat(alike, rows))
    fields = [None, None, Column.of(dense.reshape(-1), width=3), last]
    return Block.of(fields, rows, 0, found), [ids, floats, dense, np.repeat(alike, rows)]


@given(seed=st.integers(0, 1 << 30), how=st.sampled_from(["in order", "in stretches", "here and there"]))
def test_rows_of_flat_fields_are_those_of_numpy(seed, how):
    rng = np.random.default_rng(seed)
    constant, rowwise = rng.random((2, 3)) < rng.choice([0.3, 1])
    made = [
        flat_block(rng, int(rng.integers(1, 1200)), constant=constant[n], rowwise=rowwise[n])
        for n in range(rng.integers(1, 4))
    ]
    blocks = Blocks([block for block, _ in made], 4)
    block = np.repeat(np.arange(len(made), dtype=np.int32), [each.rows for each, _ in made])
    row = np.concatenate([np.arange(each.rows, dtype=np.int32) for each, _ in made])
    some = np.arange(len(row))
    if how == "in stretches":
        first = rng.integers(0, len(row), 9)
        some = np.concatenate([np.arange(each, min(each + rng.integers(0, 90), len(row))) for each in first])
    elif how == "here and there":
        some = rng.integers(0, len(row), int(rng.integers(0, 1500)))
    spans = RowRefs(blocks, block[some], row[some]).spans()
    wanted = [np.concatenate([values[f] for _, values in made])[some] for f in range(4)]
    found = [np.empty_like(each) for each in wanted]
    itemsize = np.array([8, 4, 4, 8])
    spans.gather(itemsize, np.array([each.ctypes.data for each in found]))
    for ours, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, right)
    assert blocks.flat.all()
    assert spans.counts.tolist() == [each.size for each in wanted] == spans.length.sum(axis=1).tolist()
    order = rng.permutation(len(some))
    target = np.array([each.ctypes.data + each.nbytes // max(len(some), 1) * np.arange(len(some)) for each in found])
    spans.gather_each(itemsize, order, np.ascontiguousarray(target))
    for ours, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, right[order])


def test_numbers_that_are_not_finite_are_found():
    rows = np.zeros((5, 37), np.float32)
    rows[1, 0], rows[2, 36], rows[3, 17], rows[4, 5] = np.nan, -np.inf, np.inf, np.finfo(np.float32).max
    found = np.empty(5, np.uint8)
    scalars.find_not_finite(np.array([each.ctypes.data for each in rows]), 37, found)
    assert found.tolist() == [0, 1, 1, 1, 0]


def test_columns_become_rows():
    rng = np.random.default_rng(0)
    ids, floats = rng.integers(0, 9, (2, 777)), rng.random((4, 777), np.float32)
    rows = np.full((777, 10), -1, np.float32)
    places, sizes = np.array([8, 4, 7, 1, 3, 2]), np.array([8, 8, 4, 4, 4, 4])
    at = np.array([each.ctypes.data for each in (*ids, *floats)])
    scalars.spread(at, sizes, 777, rows.ctypes.data + 4 * places, np.full(6, rows.strides[0]))
    np.testing.assert_array_equal(rows[:, 8:].view(np.int64)[:, 0], ids[0])
    np.testing.assert_array_equal(rows[:, 4:6].view(np.int64)[:, 0], ids[1])
    np.testing.assert_array_equal(rows[:, places[2:]], floats.T)
    assert (rows[:, [0, 6]] == -1).all()
    alone = np.zeros(777, np.int64)
    scalars.spread(at[:1], sizes[:1], 777, np.array([alone.ctypes.data]), sizes[:1])
    np.testing.assert_array_equal(alone, ids[0])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("part", [{}, {"skip": 7, "limit": 20}])
def test_values_of_several_batches_of_a_row_group(tmp_path, monkeypatch, decoder, part):
    """They are copied to one place, with defaults where values are null or not finite."""
    numbers = np.arange(60)
    user = [None if n == 33 else n for n in range(60)]
    price = np.where(numbers == 21, np.nan, numbers / 4)
    lists = pa.array([[n, n + 1] for n in range(60)])
    made = {"user": user, "at": numbers, "price": price, "items": lists, "kinds": lists, "costs": lists}
    path = write(tmp_path / "a.parquet", made)
    whole, _ = batches(path, decoder, source=part)
    monkeypatch.setattr("fsdata.decode.arrow.record_batches._MAX_FLAT_ROWS", 16)
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: 16)
    assert_same(batches(path, decoder, source=part)[0], whole)
    assert rows_of(whole, "user")[0] == part.get("skip", 0)
