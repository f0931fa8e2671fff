"""`freescale profile --stochastic-length`: events by the expectation of the rule, waits and compute by simulation."""

import json

import numpy as np
import pytest
from tools_kit import in_order, ran, refused, write

from freescale_tools.model.batches import Samples, Setting
from freescale_tools.profile.sampled import sampled_lengths
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial

MOST, ALPHA, SHORT = 400, 1.5, 89  # floor(400^0.75)


def lengths_of(rows):
    return np.random.default_rng(1).integers(0, 500, rows)


def setting(**options):
    return Setting(**{"max_length": MOST, "ranks": 4, "batch_size": 16, **options})


def test_events_are_the_expectation_over_the_histogram():
    lengths = lengths_of(2000)
    found = sampled_lengths(in_order(lengths, 500, 500, 500, 500), setting(), alpha=ALPHA, method="fbs")
    truncated, sampled, short = found["points"]
    assert (found["alpha"], found["short"]) == (ALPHA, SHORT)
    events, touched = [], []
    for length in np.minimum(lengths, MOST).tolist():
        whole = 1.0 if length <= SHORT else min(1.0, MOST**ALPHA / length**2)
        events.append(whole * length + (1 - whole) * SHORT)
        touched.append(1 - whole)
    touched = np.where(lengths > MOST, 1, touched)
    assert sampled["events"] == pytest.approx(np.mean(events))
    assert sampled["rows_touched"] == pytest.approx(np.mean(touched))
    assert sampled["events_lost"] == pytest.approx(1 - np.sum(events) / lengths.sum())
    assert truncated["events"] == pytest.approx(np.minimum(lengths, MOST).mean())
    assert truncated["rows_touched"] == pytest.approx((lengths > MOST).mean())
    cut = short["max_length"]
    assert np.minimum(lengths, cut - 1).mean() < sampled["events"] <= np.minimum(lengths, cut).mean() == short["events"]


def test_waits_and_compute_are_those_of_drawn_batches():
    """Sampled histories have heavier tails than truncated ones, so ranks
    wait longer for as many events; and cost less than whole ones."""
    cost = Polynomial(linear=1, quadratic=1)
    samples = Samples(histogram=LengthHistogram.from_lengths(lengths_of(50_000)))
    points = sampled_lengths(samples, setting(cost=cost, batch_size=64), alpha=ALPHA, method="fbs")["points"]
    truncated, sampled, short = points
    lengths = np.minimum(samples.histogram.lengths, MOST).astype(float)
    whole = np.where(lengths <= SHORT, 1, np.minimum(1, MOST**ALPHA / np.maximum(lengths, 1) ** 2))
    counts, paid = samples.histogram.counts, lengths + lengths**2
    expected = counts @ (whole * paid + (1 - whole) * (SHORT + SHORT**2)) / (counts @ paid)
    assert sampled["compute"] == pytest.approx(expected, rel=0.05)
    assert short["compute"] < sampled["compute"] < truncated["compute"] == 1
    assert short["straggler"]["none"] < sampled["straggler"]["none"]
    for point in points:
        assert point["straggler"]["balanced"] < point["straggler"]["none"]
        assert point["time_lost"]["balanced"] < point["time_lost"]["none"]


def test_alpha_2_is_plain_truncation():
    points = sampled_lengths(in_order(lengths_of(900), 900), setting(), alpha=2, method="fbs")["points"]
    keys = ("events", "straggler", "time_lost", "compute")
    assert [points[1][key] for key in keys] == [points[0][key] for key in keys]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    return write(folder / "a.parquet", {"items": [list(range(length)) for length in lengths_of(600)]}, group=100)


def test_the_command_shows_a_table(files, tmp_path):
    shown = ran(
        "profile", files, "--sequence", "items", "--ranks", 2, "--batch-size", 16, "--stochastic-length", ALPHA,
        "--max-length", MOST, "--out", tmp_path, "--full",
    ).stdout  # fmt: skip
    found = json.loads((tmp_path / "profile.json").read_text())["tradeoff"]["sampled"]
    assert [point["max_length"] for point in found["points"]][:2] == [MOST, MOST]
    table = shown.partition("Stochastic length")[2]
    assert "cut to as many" in table
    assert "sample=StochasticLength(alpha=1.5)" in table
    assert "Stochastic length" in (tmp_path / "profile.html").read_text()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--stochastic-length", 1), "must be above 1 and at most 2, got 1.0"),
        (("--stochastic-length", 1.7, "--quick"), "and --stochastic-length, or --quick"),
    ],
)
def test_what_cannot_be_compared_is_refused(files, options, match):
    assert match in refused("profile", files, "--sequence", "items", *options)
