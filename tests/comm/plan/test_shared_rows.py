"""First occurrences and row sets: the hash kernels, the sorting definition and a dictionary say the same."""

import ast
import threading
from pathlib import Path

import by_sorting
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fscomm.plan import hash_tables, shared_rows

INT64 = torch.iinfo(torch.int64)
KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(INT64.min, INT64.max),
    st.sampled_from([INT64.min, INT64.min + 1, -1, 0, 1, INT64.max - 1, INT64.max]),
    st.integers(-40, 40).map(lambda n: n << 56),  # equal low bits
)
SEGMENTS = st.lists(st.lists(KEYS, max_size=40), max_size=6)
WAYS = pytest.mark.parametrize(
    "way", [shared_rows.first_occurrences, by_sorting.first_occurrences], ids=["hashed", "sorted"]
)


def by_dictionary(segments: list[list[int]]) -> tuple[list[int], list[int], list[int]]:
    positions: list[int] = []
    slots: list[int] = []
    counts: list[int] = []
    at = 0
    for segment in segments:
        seen: dict[int, int] = {}
        for key in segment:
            if key not in seen:
                seen[key] = len(positions)
                positions.append(at)
            slots.append(seen[key])
            at += 1
        counts.append(len(seen))
    return positions, slots, counts


def flat(segments: list[list[int]]) -> tuple[torch.Tensor, list[int]]:
    keys = [key for segment in segments for key in segment]
    return torch.tensor(keys, dtype=torch.int64), [len(segment) for segment in segments]


@WAYS
@settings(max_examples=200, deadline=None)
@given(segments=SEGMENTS)
def test_first_occurrences(way, segments):
    keys, lengths = flat(segments)
    found = way(keys, lengths)
    positions, slots, counts = by_dictionary(segments)
    assert found.positions.tolist() == positions
    assert found.slots.tolist() == slots
    assert found.counts == counts
    assert found.positions.dtype == found.slots.dtype == torch.int64


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(KEYS, max_size=40), keys=st.lists(KEYS, max_size=40))
def test_row_sets(rows, keys):
    of, asked = torch.tensor(rows, dtype=torch.int64), torch.tensor(keys, dtype=torch.int64)
    expected = [key in set(rows) for key in keys]
    hashed = shared_rows.RowSet(of).contains(asked)
    by_search = by_sorting.contains(of.unique(), asked)
    assert hashed.dtype == by_search.dtype == torch.bool
    assert hashed.tolist() == expected
    assert by_search.tolist() == expected
    assert shared_rows.RowSet(of).contains(of).all()


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(torch.arange(50_000) * 4096, id="strided"),
        pytest.param(torch.arange(50_000) << 40, id="low-bits-equal"),
        pytest.param(torch.zeros(50_000, dtype=torch.int64), id="all-equal"),
        pytest.param(torch.arange(50_000).flip(0) - 25_000, id="descending"),
        pytest.param((torch.arange(50_000) * 7919) % 1009, id="many-duplicates"),
    ],
)
@pytest.mark.parametrize("segments", [[50_000], [0, 49_999, 0, 1], [1] * 1000 + [49_000], [12_500] * 4])
def test_large_segments_agree_with_sorting(keys, segments):
    hashed = shared_rows.first_occurrences(keys, segments)
    by_sort = by_sorting.first_occurrences(keys, segments)
    assert torch.equal(hashed.positions, by_sort.positions)
    assert torch.equal(hashed.slots, by_sort.slots)
    assert hashed.counts == by_sort.counts
    assert torch.equal(keys[hashed.positions][hashed.slots], keys)


@WAYS
def test_nothing_at_all(way):
    for segments in ([], [0], [0, 0, 0]):
        found = way(torch.empty(0, dtype=torch.int64), segments)
        assert found.positions.tolist() == found.slots.tolist() == []
        assert found.counts == [0] * len(segments)
    assert shared_rows.RowSet(torch.empty(0, dtype=torch.int64)).contains(torch.tensor([0, -1])).tolist() == [
        False,
        False,
    ]


def test_a_key_of_an_earlier_segment_is_new_in_the_next():
    found = shared_rows.first_occurrences(torch.tensor([5, 5, 6, 5, 6, 6]), [3, 0, 3])
    assert found.positions.tolist() == [0, 2, 3, 4]
    assert found.slots.tolist() == [0, 0, 1, 2, 3, 3]
    assert found.counts == [2, 0, 2]


def test_other_integer_types_and_strides():
    keys = torch.tensor([[3, 9], [3, 9], [-1, 9]], dtype=torch.int32)[:, 0]
    assert shared_rows.first_occurrences(keys, [3]).slots.tolist() == [0, 0, 1]
    assert shared_rows.RowSet(keys).contains(torch.tensor([3, 2, -1], dtype=torch.int32)).tolist() == [
        True,
        False,
        True,
    ]


def test_keys_are_not_kept_or_written():
    keys = torch.tensor([4, 4, 7])
    rows = shared_rows.RowSet(keys)
    found = shared_rows.first_occurrences(keys, [3])
    assert keys.tolist() == [4, 4, 7]
    keys.fill_(0)
    assert rows.contains(torch.tensor([4, 7, 0])).tolist() == [True, True, False]
    assert found.positions.tolist() == [0, 2]


@pytest.mark.parametrize("segments", [[2], [4], [], [4, -1], [-1, 4, 1]])
def test_segments_that_do_not_cut_the_keys(segments):
    with pytest.raises(ValueError, match="do not cut 3 keys"):
        shared_rows.first_occurrences(torch.arange(3), segments)


@pytest.mark.parametrize("keys", [torch.zeros(2), torch.zeros(2, 2, dtype=torch.int64), torch.tensor(3)])
def test_keys_that_are_none(keys):
    with pytest.raises(ValueError, match="1-D integer tensor"):
        shared_rows.RowSet(keys)
    with pytest.raises(ValueError, match="1-D integer tensor"):
        shared_rows.first_occurrences(keys, [2])


def test_keys_on_a_device_are_refused():
    with pytest.raises(ValueError, match=r"host memory.* on meta"):
        shared_rows.RowSet(torch.arange(3)).contains(torch.arange(3, device="meta"))
    with pytest.raises(ValueError, match=r"host memory.* on meta"):
        shared_rows.first_occurrences(torch.arange(3, device="meta"), [3])


def test_threads_do_not_disturb_each_other():
    batches = [torch.randint(0, 2000, (20_000,), generator=torch.Generator().manual_seed(n)) for n in range(4)]
    expected = [by_sorting.first_occurrences(keys, [20_000]) for keys in batches]
    wrong = []

    def work(keys, right):
        for _ in range(20):
            found = shared_rows.first_occurrences(keys, [20_000])
            if not (torch.equal(found.positions, right.positions) and torch.equal(found.slots, right.slots)):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(batches, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kernels_know_only_arrays():
    tree = ast.parse(Path(hash_tables.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} == {"numpy", "numba"}
