"""Simulated waiting: what is defined by hand, the paper's numbers, and what every plan has to keep to."""

import json
from fractions import Fraction

import numpy as np
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.profile.stragglers import max_lengths, straggler_grid
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.batches import METHODS, Samples, Setting, simulate_setting
from fsdata.balance.cost import CANDIDATES, Polynomial, Power

EQUAL_COUNTS = ("none", "fbs", "fbs+swap", "repair", "hierarchical")


def lognormal(median=4000, sigma=0.55, longest=21_000, rows=200_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return LengthHistogram.of(np.clip(np.rint(drawn), 1, longest))


@pytest.fixture(scope="module")
def small_grid():
    return straggler_grid(lognormal(median=600, longest=5000), ranks=(2, 8), batch_sizes=(8,), batch_size=16, seed=3)


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


def test_the_papers_shares():
    """Figure 8: 22 % falls to 2.4 % at 64 ranks of 128 samples, histories of up to 21,000 events."""
    samples = Samples(histogram=lognormal())
    point = simulate_setting(samples, Setting(max_length=21_000, ranks=64, batch_size=128), methods=("fbs", "fbs+swap"))
    assert point["straggler"]["none"] == pytest.approx(0.22, abs=0.015)
    assert point["straggler"]["fbs"] == pytest.approx(0.024, abs=0.004)
    assert point["straggler"]["fbs+swap"] < 0.0005
    assert point["sparsity"] == pytest.approx(0.71, abs=0.02)


def test_a_wrong_model_costs():
    setting = Setting(max_length=21_000, ranks=64, batch_size=128, planned_by=Power(alpha=1))
    point = simulate_setting(Samples(histogram=lognormal()), setting, methods=("fbs+swap", "repair"))
    assert point["cost"] == repr(Polynomial())
    assert point["planned_by"] == "Power(alpha=1)"
    assert point["straggler"]["fbs+swap"] == pytest.approx(0.021, abs=0.006)
    assert point["straggler"]["repair"] > 0.05
    assert point["lower_bound"] < 1e-6


def test_no_plan_is_below_the_bound(small_grid):
    for point in [*small_grid["points"], *small_grid["wrong_model"]]:
        for method in set(EQUAL_COUNTS) & set(point["straggler"]):
            assert point["lower_bound"] <= point["straggler"][method] + 1e-12, (point, method)
        assert 0 <= point["sparsity"] < 1
        assert point["straggler"]["fbs+swap"] <= point["straggler"]["none"]


def test_longer_histories_wait_longer_and_are_padded_more(small_grid):
    points = [point for point in small_grid["points"] if point["axis"] == "max_length"]
    assert [point["max_length"] for point in points] == [1000, 2000, 4000, 5000]
    for name in ("sparsity", "lower_bound"):
        # Costs are integers, so that even a bound of nothing is a few billionths.
        assert (np.diff([point[name] for point in points]) > -1e-6).all()
    none = [point["straggler"]["none"] for point in points]
    assert none == sorted(none)


def test_the_document(small_grid):
    assert json.loads(json.dumps(small_grid)) == small_grid
    assert small_grid["default"] == {
        "ranks": 64,
        "batch_size": 16,
        "max_length": 5000,
        "cost": "Polynomial(linear=2000, quadratic=1, candidate=0)",
    }
    assert (small_grid["ranks"], small_grid["batch_sizes"]) == ([2, 8, 64], [8, 16])
    by_axis: dict[str, list] = {}
    for point in small_grid["points"]:
        by_axis.setdefault(point["axis"], []).append(point)
    assert [point["ranks"] for point in by_axis["ranks"]] == [2, 8, 64]
    assert [point["batch_size"] for point in by_axis["batch_size"]] == [8, 16]
    assert [point["cost"][:10] for point in by_axis["cost"]] == ["Polynomial", *["Power(alph"] * 3]
    assert {(point["max_length"], point["ranks"]) for point in by_axis["two-way"]} == {
        (length, ranks) for length in (1000, 2000, 4000, 5000) for ranks in (8, 64)
    }
    full = [point for axis in ("max_length", "ranks", "batch_size", "cost") for point in by_axis[axis]]
    assert all(list(point["straggler"]) == small_grid["methods"] for point in full)
    assert {point["planned_by"] for point in small_grid["wrong_model"]}.isdisjoint({small_grid["default"]["cost"]})


def test_the_error_of_a_share_is_that_of_the_drawn_steps(small_grid):
    for point in small_grid["points"]:
        assert point["straggler_error"].keys() == point["straggler"].keys()
        assert all((error is not None) == (point["steps"] > 1) for error in point["straggler_error"].values())
    assert max(point["straggler_error"]["none"] or 0 for point in small_grid["points"]) > 0.001


@pytest.mark.long
def test_the_seed_decides(small_grid):
    def grid(seed):
        histogram = lognormal(median=600, longest=5000)
        return straggler_grid(histogram, ranks=(2, 8), batch_sizes=(8,), batch_size=16, seed=seed)

    assert grid(3) == small_grid
    assert grid(4)["points"] != small_grid["points"]


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


def test_refused():
    for histogram in (LengthHistogram.of(np.empty(0)), LengthHistogram.of(np.zeros(3))):
        with pytest.raises(UsageError, match=rf"no events in {histogram.rows} rows"):
            straggler_grid(histogram)
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        straggler_grid(lognormal(), batch_size=0)


def test_lengths_to_cut_at():
    assert max_lengths(LengthHistogram.of(np.array([2000]))) == [1000, 2000]
    assert max_lengths(LengthHistogram.of(np.array([7]))) == [7]
