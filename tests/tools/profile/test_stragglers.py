"""Simulated waiting: what is defined by hand, the paper's numbers, and what every plan has to keep to."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tools_kit import in_order

from freescale_tools.console.errors import UsageError
from freescale_tools.model import batches
from freescale_tools.model.batches import METHODS, Samples, Setting, simulate_setting
from freescale_tools.profile.stragglers import max_lengths, straggler_grid
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CANDIDATES, Polynomial, Power

pytestmark = pytest.mark.usefixtures("few_samples")
EQUAL_COUNTS = ("none", "fbs", "fbs+swap", "repair", "hierarchical")


def lognormal(median=4000, sigma=0.55, longest=21_000, rows=200_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return LengthHistogram.from_lengths(np.clip(np.rint(drawn), 1, longest))


@pytest.fixture(scope="module")
def small_grid(few_samples):
    samples = Samples(histogram=lognormal(median=600, longest=5000), seed=3)
    default = Setting(max_length=5000, ranks=64, batch_size=16)
    return straggler_grid(samples, default, ranks=(2, 8))


def test_equal_histories_wait_for_nothing():
    equal = Samples(histogram=LengthHistogram.from_lengths(np.full(9, 70)))
    for ranks in (4, 12):  # 12 ranks fill no node
        point = simulate_setting(equal, Setting(max_length=70, ranks=ranks, batch_size=8))
        assert point["straggler"] == dict.fromkeys(("none", *METHODS), 0.0)
        assert point["sparsity"] == point["lower_bound"] == 0.0


def test_by_hand():
    """Of lengths 0 and 10 only a batch size of 1 needs no guess: ranks with 10 events wait for nobody."""
    samples = Samples(histogram=LengthHistogram.from_lengths(np.array([0, 10])), seed=4)
    setting = Setting(max_length=6, ranks=2, batch_size=2, cost=Power(alpha=1))
    none, padding, bound, mean, most = [], [], [], 0, 0
    for step in range(128):
        lengths = samples.lengths(setting, 0, step)["sequence"]
        assert set(lengths.tolist()) <= {0, 6}
        long = [int((of_rank > 0).sum()) for of_rank in lengths.reshape(2, 2)]
        none.append(1 - Fraction(sum(long), 2 * max(long)) if any(long) else 0)
        mean, most = mean + Fraction(sum(long), 2), most + max(long)
        some = [number for number in long if number]
        padding.append(sum(1 - Fraction(number, 2) for number in some) / len(some) if some else 0)
        bound.append(1 - Fraction(sum(long), 2 * -(-sum(long) // 2)) if any(long) else 0)
    point = simulate_setting(samples, setting, methods=("fbs+swap",))
    assert point["steps"] == 128
    assert point["straggler"]["none"] == pytest.approx(float(np.mean(none)))
    assert point["time_lost"]["none"] == pytest.approx(float(1 - mean / most))
    assert point["sparsity"] == pytest.approx(float(np.mean(padding)))
    assert point["straggler"]["fbs+swap"] == pytest.approx(float(np.mean(bound)))


def test_one_giant_history_is_little_of_the_straggler_share_and_nearly_all_of_the_time():
    """Nine steps are even, in the tenth three of four ranks wait for one sample: the two figures are far apart."""
    lengths = np.full(400, 10)
    lengths[123] = 100_000
    samples = in_order(lengths, *[50] * 8)
    for order in ("file", "shuffled"):
        setting = Setting(max_length=100_000, ranks=4, batch_size=10, cost=Power(alpha=1), order=order)
        point = simulate_setting(samples, setting, methods=("fbs+swap",))
        assert point["steps"] == 10
        giant = 100_000 + 9 * 10
        mean = (giant + 300) / 4
        assert point["straggler"]["none"] == pytest.approx((1 - mean / giant) / 10, rel=1e-6)
        assert point["time_lost"]["none"] == pytest.approx(1 - (mean + 9 * 100) / (giant + 9 * 100), rel=1e-6)
        assert point["straggler"]["none"] < 0.08 < 0.7 < point["time_lost"]["none"]
        assert point["time_lost"]["fbs+swap"] == pytest.approx(point["bound_time_lost"])


def test_rows_that_are_alike_nearby_are_dealt_as_a_loader_deals_them():
    """Of files whose rows grow, ranks get row groups of different lengths: rows drawn at random hide that."""
    lengths = np.repeat(np.arange(1, 21), 100)
    samples, setting = in_order(lengths, *[100] * 20), Setting(max_length=40, ranks=4, batch_size=10)
    drawn = Samples(histogram=samples.histogram)
    lost = {
        name: simulate_setting(of, replace(setting, order=order), methods=())["time_lost"]["none"]
        for name, of, order in (("drawn", drawn, "file"), ("file", samples, "file"), ("shuffled", samples, "shuffled"))
    }
    of_rank = lengths.reshape(5, 4, 100)[:, :, 0].astype(float)  # [round, rank]: row groups go to ranks in turn
    cost = (2000 + of_rank) * of_rank
    assert lost["file"] == pytest.approx(1 - cost.mean(axis=1).sum() / cost.max(axis=1).sum())
    assert lost["shuffled"] > 1.5 * lost["drawn"]


def test_of_many_steps_the_heaviest_are_simulated_and_the_others_stand_for_the_rest(monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 50, 4000)
    lengths[[77, 2222]] = 50_000
    monkeypatch.setattr(batches, "_SAMPLES", 4000)
    samples, setting = in_order(lengths, *[100] * 40), Setting(max_length=50_000, ranks=2, batch_size=5)
    whole = simulate_setting(samples, setting, methods=("fbs+swap",))
    assert whole["steps"] == 400
    steps, weight = samples.steps(setting, most=20)
    assert (len(steps), len(set(steps)), round(weight.sum(), 6)) == (20, 20, 400)
    monkeypatch.setattr(batches, "_STEPS", (3, 40))
    part = simulate_setting(samples, setting, methods=("fbs+swap",))
    assert part["steps"] == 40
    for method in ("none", "fbs+swap"):
        assert part["time_lost"][method] == pytest.approx(whole["time_lost"][method], rel=0.02)
        assert abs(part["straggler"][method] - whole["straggler"][method]) < 4 * part["straggler_error"][method] + 1e-3


def test_no_plan_is_below_the_bound_and_shares_have_the_error_of_the_drawn_steps(small_grid):
    for point in small_grid["points"]:
        for method in set(EQUAL_COUNTS) & set(point["straggler"]):
            assert point["lower_bound"] <= point["straggler"][method] + 1e-12, (point, method)
        assert 0 <= point["sparsity"] < 1
        assert point["straggler"]["fbs+swap"] <= point["straggler"]["none"]
        assert point["straggler"].get("hierarchical", 0) <= point["straggler"]["none"]
        assert point["straggler_error"].keys() == point["straggler"].keys()
    assert max(point["straggler_error"]["none"] for point in small_grid["points"]) > 0.001
    longer = [point for point in small_grid["points"] if point["axis"] == "max_length"]
    assert [point["max_length"] for point in longer] == [1000, 2000, 4000, 5000]
    none = [point["straggler"]["none"] for point in longer]
    assert none == sorted(none)


def test_candidates_are_drawn_and_counted():
    samples = Samples(
        histogram=LengthHistogram.from_lengths(np.array([3])),
        candidates=LengthHistogram.from_lengths(np.array([1, 40])),
        seed=1,
    )
    setting = Setting(max_length=5, ranks=4, batch_size=1, cost=Polynomial(candidate=10**6))
    assert set(samples.lengths(setting, 0, 0)[CANDIDATES].tolist()) <= {1, 40}
    assert simulate_setting(samples, setting)["straggler"]["none"] > 0.1


def test_refused_and_lengths_to_cut_at():
    for histogram in (LengthHistogram.from_lengths(np.empty(0)), LengthHistogram.from_lengths(np.zeros(3))):
        with pytest.raises(UsageError, match=rf"no events in {histogram.rows} rows"):
            Samples(histogram=histogram)
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        Setting(max_length=9, ranks=2, batch_size=0)
    assert max_lengths(LengthHistogram.from_lengths(np.array([2000]))) == [1000, 2000]
    assert max_lengths(LengthHistogram.from_lengths(np.array([7]))) == [7]
