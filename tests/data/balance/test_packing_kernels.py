"""Every packing kernel gives what its plain Python reference gives."""

import nano
import numpy as np
import packing_reference
from hypothesis import given
from hypothesis import strategies as st

from fsdata.balance.kernels import packing as kernels

NO_CAP = np.iinfo(np.int64).max
costs = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10**4), st.integers(0, 2**56)), max_size=40)
ranks = st.integers(1, 7)


def int64(values):
    return np.array(values, np.int64)


@given(costs)
def test_descending(cost):
    assert kernels.descending(int64(cost)).tolist() == packing_reference.descending(cost)


def test_descending_beyond_one_digit_and_with_ties():
    cost = np.random.default_rng(0).integers(0, 3000, 5000) * (2**40 + 1)
    assert np.array_equal(kernels.descending(cost), np.argsort(-cost, kind="stable"))


@given(costs, ranks)
def test_zigzag(cost, num_ranks):
    """Equal costs are dealt in order, and no swap helps."""
    order = kernels.descending(int64(cost))
    expected = nano.balance(np.ones(len(cost), np.int64), num_ranks)
    assert np.array_equal(kernels.zigzag(order, num_ranks)[order], expected)


@given(costs, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_contiguous(cost, shares):
    target = [share * max(sum(cost), 1) / sum(shares) for share in shares]
    least = min(1, len(cost) // len(shares))
    found = kernels.contiguous(int64(cost), np.array(target), least)
    assert found.tolist() == packing_reference.contiguous(cost, target, least)


@st.composite
def dealing(draw):
    cost = draw(costs)
    target = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    tokens = draw(st.lists(st.integers(0, 50), min_size=len(cost), max_size=len(cost)))
    least = draw(st.integers(0, len(cost) // len(target)))
    most = draw(st.integers(-(-len(cost) // len(target)), len(cost) + 1))
    cap = draw(st.sampled_from([NO_CAP, max(tokens, default=0) + sum(tokens) // len(target)]))
    return cost, tokens, [float(t) for t in target], cap, least, max(most, 1)


@given(dealing())
def test_lightest_first(case):
    cost, tokens, target, cap, least, most = case
    order = packing_reference.descending(cost)
    expected, done = packing_reference.lightest_first(order, cost, tokens, target, cap, least, most)
    rank, failed = kernels.lightest_first(
        np.array(order, np.int32), int64(cost), int64(tokens), np.array(target), cap, least, most
    )
    assert failed == done
    for sample in order[:done]:
        assert rank[sample] == expected[sample]


@st.composite
def exchanging(draw):
    cost = draw(costs)
    span = draw(st.integers(1, 5))
    groups = span * draw(st.integers(1, 2))
    rank = draw(st.lists(st.integers(0, groups - 1), min_size=len(cost), max_size=len(cost)))
    tokens = draw(st.lists(st.integers(0, 50), min_size=len(cost), max_size=len(cost)))
    shares = draw(st.one_of(st.just([1] * groups), st.lists(st.integers(1, 4), min_size=groups, max_size=groups)))
    target = np.array(shares) * (max(sum(cost), 1) / sum(shares))
    cap = draw(st.sampled_from([NO_CAP, 2 * sum(tokens) // groups, sum(tokens) // groups]))
    most = draw(st.sampled_from([0, len(cost)]))
    limit = 1 + draw(st.sampled_from([0.0, 1e-5, 1e-2, 0.3]))
    rules = kernels.Rules(target * limit, target, cap, 1, most, draw(st.sampled_from([1, 24])))
    return cost, rank, tokens, rules, span


@given(exchanging())
def test_improve(case):
    cost, rank, tokens, rules, span = case
    order = packing_reference.descending(cost)
    expected = packing_reference.improve(order, rank, cost, tokens, rules, span=span)
    found = np.array(rank, np.int32)
    rows = kernels.fill_rows(np.array(order, np.int32), found, int64(cost), int64(tokens), rules.target.size)
    kernels.improve(rows, rules, found, int64(tokens), span)
    assert found.tolist() == expected
    assert np.array_equal(rows.load, kernels.sums(found, int64(cost), rules.target.size))
    assert np.array_equal(rows.used, kernels.sums(found, int64(tokens), rules.target.size))
    assert rows.size.tolist() == np.bincount(found, minlength=rules.target.size).tolist()
