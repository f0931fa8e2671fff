"""Recommended settings: no cut without need and none that is not worth its events, and never one without its price."""

import dataclasses
import functools

import numpy as np
import pytest
from tools_kit import in_order

from freescale_tools.model.batches import Samples, Setting, simulate_setting
from freescale_tools.profile.recommend import EvenCut, cut_sentences, even_cut, recommend
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial
from fsdata.balance.packing import pack

pytestmark = pytest.mark.usefixtures("few_samples")


def lognormal(median, sigma, rows=50_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return Samples(histogram=LengthHistogram.from_lengths(np.clip(np.rint(drawn), 0, 21_000)))


def uncut(samples, ranks=16, batch_size=64):
    return Setting(max_length=samples.histogram.longest, ranks=ranks, batch_size=batch_size)


@functools.cache
def advice(samples, *size):
    return recommend(samples, even_cut(samples, uncut(samples, *size)))


EVEN = lognormal(4000, 0.55)
NEARLY_EVEN = lognormal(300, 1.1)
"""A cut that loses few events makes plans even."""
UNEVEN = Samples(histogram=LengthHistogram.from_lengths(np.array([20] * 995 + [200] + [20_000] * 4)))
"""Such a cut loses most of them."""


def test_nothing_is_cut_where_plans_can_be_even():
    found = advice(EVEN)
    assert (found["max_length"], found["events_cut"], found["method"]) == (EVEN.histogram.longest, 0.0, "fbs+swap")
    assert found["cost_model"] == "Polynomial(linear=2000, quadratic=1, candidate=0)"
    assert found["straggler"] < 0.001 < found["straggler_none"]
    assert found["even_cut"] is None
    assert "Nothing is cut off" in found["why"][0]
    assert cut_sentences(found) == []


def test_variable_counts_are_proposed_only_where_they_bring_something():
    """They need another mean of the loss. A quarter of the samples is worth dozens of the others."""
    tail = Samples(histogram=LengthHistogram.from_lengths(np.array([2] * 75 + [110] * 25)))
    for samples, size, method in ((EVEN, (16, 64), "fbs+swap"), (tail, (4, 16), "vbs")):
        shares = simulate_setting(samples, uncut(samples, *size), methods=("fbs+swap", "vbs"))["time_lost"]
        assert advice(samples, *size)["method"] == method
        assert shares["vbs"] < shares["fbs+swap"] - (0.01 if method == "vbs" else 0)


def test_the_even_cut_is_the_longest_at_which_plans_can_be_even():
    setting = uncut(NEARLY_EVEN)
    cut = even_cut(NEARLY_EVEN, setting)

    def bound(length):
        """Time that plans with equal counts lose at least: of long steps more counts than of short ones."""
        costs = [
            setting.cost({"x": np.minimum(NEARLY_EVEN.lengths(setting, *step)["sequence"], length)})
            for step in NEARLY_EVEN.steps(setting, most=64)[0]
        ]
        slowest = [cost.sum() / (1 - pack(cost, 16, method="fbs").lower_bound) for cost in costs]
        return 1 - sum(cost.sum() for cost in costs) / sum(slowest)

    assert 1000 < cut.max_length < NEARLY_EVEN.histogram.longest
    assert bound(cut.max_length) < 0.01 <= bound(cut.max_length + 10)
    assert cut.bound == pytest.approx(bound(cut.uncut.max_length))
    lengths = NEARLY_EVEN.histogram.lengths
    assert cut.touched == NEARLY_EVEN.histogram.counts[lengths > cut.max_length].sum() / NEARLY_EVEN.histogram.rows
    assert cut.lost == pytest.approx(1 - NEARLY_EVEN.histogram.kept_share(cut.max_length))


def test_candidates_are_never_cut():
    """Candidates outweigh a rank, and a cut of the histories mends nothing."""
    histogram = LengthHistogram.from_lengths(np.full(50, 10))
    candidates = LengthHistogram.from_lengths(np.array([1] * 99 + [100_000]))
    samples = Samples(histogram=histogram, candidates=candidates)
    found = even_cut(samples, dataclasses.replace(uncut(samples), cost=Polynomial(candidate=1000)))
    assert found.recommended == 10


def test_a_cut_that_loses_little_is_recommended_with_its_price():
    found = advice(NEARLY_EVEN)
    price = found["even_cut"]
    assert found["max_length"] == price["max_length"] < NEARLY_EVEN.histogram.longest
    assert 0 < found["events_cut"] == price["events_lost"] < 0.05
    assert found["lower_bound"] < 0.011, "the mean over steps; of the time it is below 1 %"
    assert found["time_lost"] < 0.03 < price["time_lost_uncut"]
    said = f"max_length={price['max_length']} cuts off {100 * price['events_lost']:.2f} % of the events, in "
    assert cut_sentences(found)[0].startswith(said)


def test_a_cut_that_loses_much_is_named_and_not_recommended():
    found = advice(UNEVEN)
    price = found["even_cut"]
    assert (found["max_length"], found["events_cut"]) == (UNEVEN.histogram.longest, 0.0)
    assert price["events_lost"] > 0.05
    assert price["time_lost"] < 0.03 < price["time_lost_uncut"]
    assert found["why"][:2] == cut_sentences(found)
    assert "Nothing is cut off" in found["why"][0]
    assert f"max_length={price['max_length']} would leave" in found["why"][0]
    assert f"lose {100 * price['events_lost']:.1f} % of the events" in found["why"][0]
    assert "trade-off table" in found["why"][1]


@pytest.mark.parametrize(
    ("lost", "touched", "bound", "recommended"),
    [
        pytest.param(0.0, 0.0, 0.0, 100, id="none needed"),
        pytest.param(0.04, 0.1, 0.5, 100, id="loses little"),
        pytest.param(0.06, 0.1, 0.5, 900, id="loses much"),
        pytest.param(0.03, 0.1, 0.02, 900, id="loses more than it wins"),
        pytest.param(0.02, 0.1, 0.03, 100, id="wins more than it loses"),
        pytest.param(0.3, 0.0001, 0.5, 100, id="of a giant row"),
        pytest.param(0.3, 0.0002, 0.5, 900, id="of some rows"),
    ],
)
def test_when_a_cut_is_recommended(lost, touched, bound, recommended):
    setting = Setting(max_length=900, ranks=2, batch_size=2)
    assert EvenCut(uncut=setting, max_length=100, lost=lost, touched=touched, bound=bound).recommended == recommended


def test_every_simulated_step_fits_into_max_tokens():
    found = advice(NEARLY_EVEN)
    setting = dataclasses.replace(uncut(NEARLY_EVEN), max_length=found["max_length"])
    method = found["method"]
    fullest = simulate_setting(NEARLY_EVEN, setting, methods=(method,))["fullest"][method]
    assert found["max_tokens"] >= 1.25 * fullest, "there is room for a quarter more"
    for step in range(setting.steps, setting.steps + 10):
        tokens = NEARLY_EVEN.lengths(setting, 0, step)["sequence"]
        plan = pack(
            setting.cost({"x": tokens}), 16, method=found["method"], tokens=tokens, max_tokens=found["max_tokens"]
        )
        assert np.bincount(plan.rank, tokens, 16).max() <= found["max_tokens"]


def test_a_length_that_was_asked_for_is_taken_with_its_price():
    cut = even_cut(NEARLY_EVEN, uncut(NEARLY_EVEN))
    found = recommend(NEARLY_EVEN, cut, max_length=500)
    assert (found["max_length"], found["even_cut"]["max_length"]) == (500, cut.max_length)
    assert found["events_cut"] == 1 - NEARLY_EVEN.histogram.kept_share(500) > cut.lost
    assert found["rows_cut"] == NEARLY_EVEN.histogram.longer_share(500) > cut.touched
    assert found["why"][0].startswith("max_length=500 as asked for: whole histories lose ")


def test_what_single_samples_cause_of_the_wait():
    """One row of 20,000 events among rows of 20 is nearly all that ranks wait for; of lengths that are alike, none."""
    lengths = np.array([20] * 1000 + [20_000] + [20] * 1047)
    assert advice(in_order(lengths, 1024, 1024))["single"] > 0.999
    assert advice(EVEN)["single"] < 0.01


def test_max_tokens_has_room_for_rows_that_are_long_together():
    """In file order the last steps hold the longest histories; shuffled, they are spread over the epoch."""
    lengths = np.sort(np.random.default_rng(1).integers(1, 400, 2048))
    samples = in_order(lengths, *[16] * 128)
    setting = uncut(samples, 4, 16)
    found = recommend(samples, even_cut(samples, setting))
    last = lengths.reshape(32, 64)[-1]  # a step: row groups go to ranks in turn
    assert found["max_tokens"] >= 1.25 * last.sum() / 4
    shuffled = simulate_setting(samples, setting, methods=(found["method"],))["fullest"][found["method"]]
    assert shuffled < 0.9 * last.sum() / 4


def test_the_longest_sample_fits_although_no_step_drew_it():
    rare = Samples(
        histogram=LengthHistogram(lengths=np.array([10, 15_000]), counts=np.array([10**9, 1])),
        candidates=LengthHistogram(lengths=np.array([5, 400]), counts=np.array([10**9, 1])),
    )
    found = advice(rare)
    assert found["max_length"] == 15_000
    assert found["max_tokens"] == 15_400
