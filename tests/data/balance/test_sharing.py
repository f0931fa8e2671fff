"""Groups of samples that share a history."""

import numpy as np
import pytest
from global_batches import global_batch
from hypothesis import given
from hypothesis import strategies as st

from fsdata import Balance, Polynomial, Segmented
from fsdata.balance.options import StepPlanner
from fsdata.balance.sharing import GROUPS_OF_A_RANK, events_shared, sharing_groups
from fsdata.balance.step_plan import GlobalBatch


def connected(begin: np.ndarray, end: np.ndarray) -> list[int]:
    """The smallest sample that each is connected with by overlaps."""
    found = list(range(len(begin)))
    for a in range(len(begin)):
        for b in range(a):
            if max(begin[a], begin[b]) < min(end[a], end[b]):
                found = [found[b] if each == found[a] else each for each in found]
    return found


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(0, 50)), max_size=30),
    ranks=st.integers(1, 4),
)
def test_groups_hold_samples_that_overlap_and_are_not_too_large(spans: list[tuple[int, int, int]], ranks: int) -> None:
    place, length, cost = (
        (np.array(each, np.int64) for each in zip(*spans, strict=True)) if spans else np.empty((3, 0), int)
    )
    groups = sharing_groups(place, length, cost, ranks)
    component = connected(place, place + length)
    assert sorted(set(groups.tolist())) == list(range(len(set(groups.tolist()))))
    limit = max(cost.sum() // (ranks * GROUPS_OF_A_RANK), 1)
    for group in set(groups.tolist()):
        members = np.flatnonzero(groups == group)
        assert cost[members].sum() <= limit + cost[members].max()
        if not length[members].all():
            assert len(members) == 1
        assert len({component[n] for n in members}) == 1
    if not cost.any():  # nothing is cut for being large
        assert len(set(groups.tolist())) == len(set(component))


def test_a_long_history_is_cut_in_order() -> None:
    place, length = np.arange(64) * 2, np.full(64, 10)
    groups = sharing_groups(place, length, np.ones(64, np.int64), 2)
    assert groups.tolist() == [n // 2 for n in range(64)]
    assert sharing_groups(place, length, np.ones(64, np.int64) * 0, 2).tolist() == [0] * 64


def test_histories_that_only_touch_are_apart() -> None:
    assert sharing_groups(np.array([5, 0, 3]), np.array([2, 3, 2]), np.zeros(3, np.int64), 1).tolist() == [2, 0, 1]


def sharing(place: np.ndarray, ranks: int = 2) -> GlobalBatch:
    """Samples that see ten events each, from `place` on; every rank has read equally many."""
    home = np.repeat(np.arange(ranks), len(place) // ranks)
    return global_batch(np.full(len(place), 10), home, first_events={"uih": place})


def test_groups_that_do_not_fit_under_the_cap_are_taken_apart() -> None:
    """The first 8 samples have one history and cost next to nothing: a group of 80 tokens, above the cap."""
    place = np.concatenate([np.zeros(8, np.int64), [100, 200]])
    cost = np.array([1] * 8 + [1000] * 2)
    apart, together = (StepPlanner(Balance(cost=lambda _: cost, max_tokens=most), 2) for most in (50, 90))
    assert np.bincount(apart(sharing(place)).rank).tolist() == [5, 5]
    assert len(set(together(sharing(place)).rank[:8].tolist())) == 1


@given(
    spans=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 3), st.integers(0, 2)), max_size=25),
)
def test_events_that_several_samples_of_an_owner_see(spans: list[tuple[int, int, int, int]]) -> None:
    """Ranks of a plan take 32 bits, and events of different sources are numbered far apart."""
    place, length, owner, source = (
        (np.array(each, np.int64) for each in zip(*spans, strict=True)) if spans else np.empty((4, 0), np.int64)
    )
    wanted = []
    for of in range(4):
        seen = [(in_, start + n) for start, size, number, in_ in spans if number == of for n in range(size)]
        wanted.append(len(seen) - len(set(seen)))
    assert events_shared(source << 61 | place, length, owner.astype(np.int32), 4).tolist() == wanted


def test_only_models_with_shared_or_sample_show_them() -> None:
    """The text of a cost model stands in states and profiles."""
    assert repr(Polynomial()) == "Polynomial(linear=2000, quadratic=1, candidate=0)"
    assert repr(Polynomial(shared=3)) == "Polynomial(linear=2000, quadratic=1, candidate=0, shared=3)"
    assert repr(Polynomial(sample=4)) == "Polynomial(linear=2000, quadratic=1, candidate=0, sample=4)"
    parts = {"recent": 1, "segment": 2, "tokens": 3}
    segmented = "Segmented(recent=1, segment=2, tokens=3, linear=2000, quadratic=1, candidate=0"
    assert repr(Segmented(**parts)) == f"{segmented})"
    assert repr(Segmented(**parts, sample=4)) == f"{segmented}, sample=4)"
    lengths = {"uih": np.array([0, 7])}
    assert Polynomial(shared=3)(lengths).tolist() == Polynomial(linear=2003)(lengths).tolist()


def test_samples_without_events_weigh_what_a_sample_costs() -> None:
    """One sample of 30 events and 30 without: by events alone, the empty ones may go to either rank."""
    lengths = np.array([30] + [0] * 30)
    batch = global_batch(lengths, np.arange(31) % 2)
    found = StepPlanner(Balance("vbs", cost=Polynomial(linear=1, quadratic=0, sample=2)), 2)(batch)
    assert np.bincount(found.rank, weights=lengths + 2, minlength=2).tolist() == [46, 46]
    batch = global_batch({"uih": np.zeros(6, np.int64), "candidates": [9, 1, 1, 1, 1, 1]}, np.arange(6) % 2)
    found = StepPlanner(Balance("vbs", cost=Polynomial(sample=2)), 2)(batch)
    assert np.bincount(found.rank).tolist() == [3, 3], "by the model, not by candidates"


@pytest.mark.parametrize("method", ["fbs+swap", "repair"])
def test_straggler_shares_count_shared_events_once(method: str) -> None:
    """At first 8 samples of one history on rank 0, 8 of others on rank 1. Both shares count alike, in every method."""
    place = np.concatenate([np.zeros(8, np.int64), 100 * np.arange(1, 9)])
    planner = StepPlanner(Balance(method, cost=Polynomial(linear=0, quadratic=0, shared=5)), 2)
    found = planner(sharing(place))
    load = [5 * 10 * len(set(place[found.rank == rank].tolist())) for rank in range(2)]
    assert found.straggler_before == pytest.approx(1 - 225 / 400)
    assert found.straggler_after == pytest.approx(1 - sum(load) / 2 / max(load))
