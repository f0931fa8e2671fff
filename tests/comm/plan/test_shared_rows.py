"""First occurrences and row sets: the hash kernels say what sorting says."""

from concurrent.futures import ThreadPoolExecutor

import by_sorting
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fscomm.plan import shared_rows
from fscomm.plan.shared_rows import OwnerRows

INT64 = np.iinfo(np.int64)
KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(INT64.min, INT64.max),
    st.sampled_from([INT64.min, INT64.min + 1, -1, 0, 1, INT64.max - 1, INT64.max]),
    st.integers(-40, 40).map(lambda n: n << 56),  # equal low bits
)
SEGMENTS = st.lists(st.lists(KEYS, max_size=40), max_size=6)


def flat(segments: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    keys = [key for segment in segments for key in segment]
    return np.array(keys, np.int64), np.array([len(segment) for segment in segments], np.int64)


def agrees_with_sorting(keys: np.ndarray, segments: np.ndarray) -> None:
    hashed = shared_rows.first_occurrences(keys, segments)
    by_sort = by_sorting.first_occurrences(keys, segments)
    assert np.array_equal(hashed.positions, by_sort.positions)
    assert np.array_equal(hashed.slots, by_sort.slots)
    assert np.array_equal(hashed.counts, by_sort.counts)
    assert np.array_equal(keys[hashed.positions][hashed.slots], keys)


@given(segments=SEGMENTS)
@example(segments=[])
@example(segments=[[], [], []])
@example(segments=[[5, 5, 6], [], [5, 6, 6]])
def test_first_occurrences(segments):
    agrees_with_sorting(*flat(segments))


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(np.arange(50_000) * 4096, id="strided"),
        pytest.param(np.arange(50_000) << 40, id="low-bits-equal"),
        pytest.param(np.zeros(50_000, np.int64), id="all-equal"),
        pytest.param((np.arange(50_000) * 7919) % 1009, id="many-duplicates"),
    ],
)
@pytest.mark.parametrize("segments", [[0, 49_999, 0, 1], [1] * 1000 + [49_000], [12_500] * 4])
def test_large_segments(keys, segments):
    agrees_with_sorting(keys, np.array(segments))


@pytest.mark.parametrize("segments", [[2], [4], [], [4, -1], [-1, 4, 1]])
def test_segments_that_do_not_cut_the_keys(segments):
    with pytest.raises(ValueError, match="do not cut 3 keys"):
        shared_rows.first_occurrences(np.arange(3), np.array(segments, np.int64))


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 9)), max_size=60)  # peer, table, row


def asked(rows: list[tuple[int, int, int]], limits: list[int]) -> tuple[list[tuple[int, int]], OwnerRows]:
    """(table, row) by id, in the order of four peers, and what is made of them."""
    rows = sorted(rows, key=lambda each: each[:2])
    lengths = np.zeros((4, len(limits)), np.int64)
    for peer, table, _ in rows:
        lengths[peer, table] += 1
    found = OwnerRows(np.array([row for _, _, row in rows], np.int64), lengths, np.array(limits))
    inside = [(table, row if 0 <= row < limits[table] else 0) for _, table, row in rows]
    assert found.irregular == (inside != [(table, row) for _, table, row in rows])
    return inside, found


@given(rows=ROWS)
def test_rows_of_an_owner_are_numbered_table_by_table(rows):
    inside, found = asked(rows, [10, 5, 9])
    numbered = list(zip(np.searchsorted(found.ends, np.arange(len(found)), side="right"), found.ids, strict=True))
    assert [numbered[number] for number in found.numbers] == inside
    assert sorted(set(inside)) == sorted(numbered)
    assert found.ends.tolist() == [len({each for each in inside if each[0] <= table}) for table in range(3)]


@given(before=ROWS, after=ROWS)
def test_rows_that_two_steps_have_in_common_are_marked_in_both(before, after):
    """In the step after as class 0, in the step before with the class that the step after says."""
    sets, both = zip(*(asked(rows, [10, 10, 10]) for rows in (after, before)), strict=True)
    marks = [np.full(len(each), 2, np.uint8) for each in both]
    later = (both[0].ids % 2).astype(np.uint8)
    both[0].mark_common(both[1], later, *marks)
    common = set(sets[0]) & set(sets[1])
    assert marks[0][both[0].numbers].tolist() == [0 if each in common else 2 for each in sets[0]]
    assert marks[1][both[1].numbers].tolist() == [each[1] % 2 if each in common else 2 for each in sets[1]]
    both[0].mark_common(both[1], np.ones_like(later), *marks)
    assert marks[1][both[1].numbers].tolist() == [each[1] % 2 if each in common else 2 for each in sets[1]]


def test_many_rows_of_one_owner():
    random = np.random.default_rng(0)
    ids = random.integers(0, 30_000, 80_000) << 20
    found = OwnerRows(ids, np.full((4, 1), 20_000), np.array([1 << 40]))
    assert np.array_equal(found.ids[found.numbers], ids)
    assert len(found) == len(np.unique(ids))
    other = OwnerRows(ids[:1000], np.array([[1000]]), np.array([1 << 40]))
    marks = np.ones(len(found), np.uint8), np.ones(len(other), np.uint8)
    found.mark_common(other, np.zeros_like(marks[0]), *marks)
    assert not marks[1].any()
    assert np.array_equal(marks[0] == 0, np.isin(found.ids, ids[:1000]))


def test_threads_do_not_disturb_each_other():
    batches = [np.random.default_rng(n % 4).integers(0, 2000, 20_000) for n in range(40)]
    whole = [np.array([20_000])] * len(batches)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(agrees_with_sorting, batches, whole))
