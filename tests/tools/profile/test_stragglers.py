"""Simulated waiting: what is defined by hand, the paper's numbers, and what every plan has to keep to."""

from fractions import Fraction

import numpy as np
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.model.batches import METHODS, Samples, Setting, simulate_setting
from freescale_tools.profile.stragglers import max_lengths, straggler_grid
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CANDIDATES, Polynomial, Power

pytestmark = pytest.mark.usefixtures("few_samples")
EQUAL_COUNTS = ("none", "fbs", "fbs+swap", "repair", "hierarchical")


def lognormal(median=4000, sigma=0.55, longest=21_000, rows=200_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return LengthHistogram.of(np.clip(np.rint(drawn), 1, longest))


@pytest.fixture(scope="module")
def small_grid(few_samples):
    samples = Samples(histogram=lognormal(median=600, longest=5000), seed=3)
    default = Setting(max_length=5000, ranks=64, batch_size=16)
    return straggler_grid(samples, default, ranks=(2, 8), batch_sizes=(8,))


def test_equal_histories_wait_for_nothing():
    point = simulate_setting(
        Samples(histogram=LengthHistogram.of(np.full(9, 70))), Setting(max_length=70, ranks=4, batch_size=8)
    )
    assert point["straggler"] == dict.fromkeys(("none", *METHODS), 0.0)
    assert point["sparsity"] == point["lower_bound"] == 0.0


def test_by_hand():
    """Of lengths 0 and 10 only a batch size of 1 needs no guess: ranks with 10 events wait for nobody."""
    samples = Samples(histogram=LengthHistogram.of(np.array([0, 10])), seed=4)
    setting = Setting(max_length=6, ranks=2, batch_size=2, cost=Power(alpha=1))
    none, padding, bound = [], [], []
    for step in range(setting.steps):
        lengths = samples.lengths(setting, step)["sequence"]
        assert set(lengths.tolist()) <= {0, 6}
        long = [int((of_rank > 0).sum()) for of_rank in lengths.reshape(2, 2)]
        none.append(1 - Fraction(sum(long), 2 * max(long)) if any(long) else 0)
        some = [number for number in long if number]
        padding.append(sum(1 - Fraction(number, 2) for number in some) / len(some) if some else 0)
        bound.append(1 - Fraction(sum(long), 2 * -(-sum(long) // 2)) if any(long) else 0)
    point = simulate_setting(samples, setting, methods=("fbs+swap",))
    assert point["straggler"]["none"] == pytest.approx(float(np.mean(none)))
    assert point["sparsity"] == pytest.approx(float(np.mean(padding)))
    assert point["straggler"]["fbs+swap"] == pytest.approx(float(np.mean(bound)))


def test_no_plan_is_below_the_bound_and_shares_have_the_error_of_the_drawn_steps(small_grid):
    for point in [*small_grid["points"], *small_grid["wrong_model"]]:
        for method in set(EQUAL_COUNTS) & set(point["straggler"]):
            assert point["lower_bound"] <= point["straggler"][method] + 1e-12, (point, method)
        assert 0 <= point["sparsity"] < 1
        assert point["straggler"]["fbs+swap"] <= point["straggler"]["none"]
        assert point["straggler_error"].keys() == point["straggler"].keys()
    assert max(point["straggler_error"]["none"] for point in small_grid["points"]) > 0.001


def test_longer_histories_wait_longer_and_are_padded_more(small_grid):
    points = [point for point in small_grid["points"] if point["axis"] == "max_length"]
    assert [point["max_length"] for point in points] == [1000, 2000, 4000, 5000]
    for name in ("sparsity", "lower_bound"):
        # Costs are integers, so that even a bound of nothing is a few billionths.
        assert (np.diff([point[name] for point in points]) > -1e-6).all()
    none = [point["straggler"]["none"] for point in points]
    assert none == sorted(none)
    assert {point["planned_by"] for point in small_grid["wrong_model"]}.isdisjoint({small_grid["default"]["cost"]})


def test_candidates_are_drawn_and_counted():
    samples = Samples(
        histogram=LengthHistogram.of(np.array([3])), candidates=LengthHistogram.of(np.array([1, 40])), seed=1
    )
    setting = Setting(max_length=5, ranks=4, batch_size=1, cost=Polynomial(candidate=10**6))
    assert set(samples.lengths(setting, 0)[CANDIDATES].tolist()) <= {1, 40}
    assert simulate_setting(samples, setting)["straggler"]["none"] > 0.1


def test_ranks_that_fill_no_node():
    point = simulate_setting(
        Samples(histogram=lognormal(rows=1000)), Setting(max_length=21_000, ranks=12, batch_size=8)
    )
    assert point["straggler"]["hierarchical"] < point["straggler"]["none"]


def test_refused_and_lengths_to_cut_at():
    for histogram in (LengthHistogram.of(np.empty(0)), LengthHistogram.of(np.zeros(3))):
        with pytest.raises(UsageError, match=rf"no events in {histogram.rows} rows"):
            Samples(histogram=histogram)
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        Setting(max_length=9, ranks=2, batch_size=0)
    assert max_lengths(LengthHistogram.of(np.array([2000]))) == [1000, 2000]
    assert max_lengths(LengthHistogram.of(np.array([7]))) == [7]
