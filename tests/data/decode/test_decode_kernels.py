"""The index kernel on arrays with offsets of every kind, which files alone do not produce."""

import ctypes

import numpy as np
import pyarrow as pa
import pytest

from fsdata.decode.slices import _pointer_of
from fsdata.kernels import index

KINDS = {
    "list": (index.LIST32, lambda child: pa.list_(child)),
    "large_list": (index.LIST64, lambda child: pa.large_list(child)),
    "fixed": (index.FIXED, lambda child: pa.list_(child, 3)),
}


def run(array: pa.Array, shape: int, *, policy: int = index.DROP, width: int = 0):
    """address, length, drop, refill, fault after indexing one column."""
    rows = len(array)
    itemsize = 4 if "float" in str(array.type) else 8
    fields = np.zeros(1, index.FIELD)
    for name, value in {"shape": shape, "width": width, "itemsize": itemsize, "policy": policy}.items():
        fields[name] = value
    fields["is_float"] = itemsize == 4
    address, length = np.full((1, rows), -7, np.int64), np.full((1, rows), -7, np.int64)
    drop, refill, fault = np.zeros(rows, np.uint8), np.zeros(1, np.uint8), np.zeros(1, index.FAULT)
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    capsules = batch.__arrow_c_array__()
    pointer = _pointer_of(capsules[1], b"arrow_array")
    index.index_batch(pointer, rows, fields, 0, index.References(address, length, drop), refill, fault)
    return address[0], length[0], drop, int(refill[0]), fault[0].item()


def contents(address, length, itemsize):
    kind = np.int64 if itemsize == 8 else np.float32
    return [
        None if count < 0 else np.frombuffer(ctypes.string_at(at, count * itemsize), kind).tolist() if count else []
        for at, count in zip(address.tolist(), length.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("child", [pa.int64(), pa.float32()], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_lists_at_any_offset(name, child, seed):
    rng = np.random.default_rng(seed)
    kind, of = KINDS[name]
    rows = 40
    counts = np.full(rows, 3) if name == "fixed" else rng.integers(0, 6, rows)
    data = [None if rng.random() < 0.2 else rng.integers(0, 99, count).tolist() for count in counts]
    whole = pa.array([[5, 6, 7], *data], of(child))
    array = whole.slice(1 + 3, rows - 7)
    address, length, drop, refill, fault = run(array, kind, width=3)
    assert fault[0] == index.OK
    assert refill == 0
    expected = array.to_pylist()
    assert contents(address, length, 4 if child == pa.float32() else 8) == expected
    assert drop.tolist() == [row is None for row in expected]


def test_a_child_that_starts_in_the_middle_of_its_buffer():
    child = pa.array([9, 9, 9, 1, 2, None, 4, 5]).slice(3)
    array = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 5], pa.int32()), child)
    address, length, drop, _, fault = run(array, index.LIST32)
    assert fault[0] == index.OK
    assert drop.tolist() == [0, 0, 1, 0]
    address, length, drop = address[[0, 1, 3]], length[[0, 1, 3]], drop
    assert contents(address, length, 8) == [[1, 2], [], [4, 5]]


@pytest.mark.parametrize("policy", [index.ERROR, index.DEFAULT, index.DROP])
def test_a_null_element_is_reported_refilled_or_dropped(policy):
    array = pa.array([[1], [2, 3, None], []], pa.list_(pa.int64()))
    _, _, drop, refill, fault = run(array, index.LIST32, policy=policy)
    assert refill == (policy == index.DEFAULT)
    assert drop.tolist() == [0, int(policy == index.DROP), 0]
    assert fault == ((index.NULL_ELEMENT, 0, 1, 2) if policy == index.ERROR else (0, 0, 0, 0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad):
    array = pa.array([[1.0, 3.4028235e38], [2.0, bad]], pa.list_(pa.float32()))
    *_, fault = run(array, index.LIST32, policy=index.ERROR)
    assert fault == (index.NOT_FINITE, 0, 1, 1)


def test_scalars_at_any_offset():
    array = pa.array([7, 1, None, 3, 4, None, 6]).slice(1)
    address, length, drop, _, _ = run(array, index.SCALAR)
    assert drop.tolist() == [0, 1, 0, 0, 1, 0]
    assert length.tolist() == [1] * 6
    assert contents(address[[0, 2, 3, 5]], length[[0, 2, 3, 5]], 8) == [[1], [3], [4], [6]]


def align(length, *, limit=-1, keep_last=1, drop=None):
    length = np.array(length, np.int64)
    address = np.where(length < 0, 0, 1000).astype(np.int64)
    fields, rows = length.shape
    needed, fault = np.zeros(fields, np.int64), np.zeros(1, index.FAULT)
    groups = np.zeros(1, index.GROUP)
    groups["stop"], groups["max_length"], groups["keep_last"] = fields, limit, keep_last
    drop = np.zeros(rows, np.uint8) if drop is None else np.array(drop, np.uint8)
    table = index.References(address, length, drop)
    index.align_groups(table, np.full(fields, 8), np.arange(fields), groups, needed, fault)
    return address.tolist(), length.tolist(), needed.tolist(), fault[0].item()


def test_null_lists_take_their_groups_length():
    address, length, needed, fault = align([[3, -1, 2, -1], [3, 5, -1, -1]])
    assert length == [[3, 5, 2, 0], [3, 5, 2, 0]]
    assert address == [[1000, 0, 1000, 0], [1000, 1000, 0, 0]]
    assert needed == [5, 2]
    assert fault[0] == index.OK


@pytest.mark.parametrize(("keep_last", "skip"), [(1, 16), (0, 0)])
def test_truncation_keeps_one_end(keep_last, skip):
    address, length, _, _ = align([[5, 2, 3]], limit=3, keep_last=keep_last)
    assert length == [[3, 2, 3]]
    assert address == [[1000 + skip, 1000, 1000]]


def test_lengths_are_compared_before_truncation_and_not_in_dropped_rows():
    *_, fault = align([[5, 5], [5, 4]], limit=3)
    assert fault[:3] == (index.RAGGED, 0, 1)
    *_, fault = align([[5, 5], [5, 4]], limit=3, drop=[0, 1])
    assert fault[0] == index.OK
