"""The trade-off table: what its cells mean, that they agree with the rest of the profile, and where it is shown."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_calibrate_run import run as write_run

from freescale_tools.profile.advice.cuts import even_cut
from freescale_tools.profile.advice.tradeoff import batch_sizes, lengths
from freescale_tools.profile.diff import differences
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.batches import Samples, Setting
from freescale_tools.simulate.schedule.step import BALANCED

COMMAND = "profile"
pytestmark = pytest.mark.usefixtures("few_samples")
ROWS, RANKS, BATCH = 3000, 4, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Some histories are so long that their rank is waited for."""
    generator = np.random.default_rng(3)
    sizes = np.where(generator.random(ROWS) < 0.004, 2000, generator.integers(1, 40, ROWS))
    items = pa.ListArray.from_arrays(np.concatenate([[0], sizes.cumsum()]), generator.integers(0, 500, sizes.sum()))
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(pa.table({"items": items}), path)
    return path


@pytest.fixture
def profiled(data, tmp_path, call):
    def run(*more):
        options = ("--ranks", RANKS, "--batch-size", BATCH, "--out", tmp_path / "out", *more)
        return call(data, "--sequence", "items", *options)

    return run


def test_every_cell_agrees_with_the_rest_of_the_profile(profiled):
    document = json.loads(profiled("--json", "--gpu-hour-price", 2.5).stdout)
    found, advice = document["tradeoff"], document["recommended"]
    histogram = LengthHistogram.from_dict(document["sequences"]["items"]["histogram"])
    assert {point["batch_size"] for point in found["points"]} == {4, 8, 16, 32, 64}
    (usual,) = (
        point
        for point in found["points"]
        if (point["batch_size"], point["max_length"]) == (BATCH, advice["max_length"])
    )
    assert usual["straggler"] == pytest.approx(advice["straggler"])
    assert usual["straggler_error"] == pytest.approx(advice["straggler_error"])
    assert usual["events_lost"] == advice["events_cut"]
    step = next(point for point in document["simulation"]["points"] if point["way"] == BALANCED)
    assert usual["step_ms"] == pytest.approx(step["step_ms"])
    counted = {point["batch_size"]: point for point in document["collisions"]["points"] if point["axis"] == "default"}
    assert usual["collisions"] == counted[BATCH]["by_occurrence"]["mean"]
    assert found["collisions_max_length"] == document["collisions"]["max_length"]
    for point in found["points"]:
        assert point["steps"] == math.ceil(ROWS / (RANKS * point["batch_size"]))
        assert point["events_lost"] == pytest.approx(1 - histogram.kept_share(point["max_length"]))
        assert point["bytes"] == point["tokens"] * (8 + 8 * found["dim"])
        assert point["gpu_hours"] == pytest.approx(point["steps"] * RANKS * point["step_ms"] / 3.6e6)
        assert point["money"] == pytest.approx(2.5 * point["gpu_hours"])
    assert not any(one.change for one in differences(document, {**document, "tradeoff": None}))


def test_it_is_shown_with_money_only_where_an_hour_has_a_price(profiled, tmp_path):
    free = profiled()
    assert free.exit_code == 0, free.output
    assert "Trade-off table: 4 ranks" in free.stdout
    assert "--gpu-hour-price shows money" in free.stdout
    assert "simulated on h100-ib; --calibration takes those of your run" in free.stdout
    page = (tmp_path / "out" / "profile.html").read_text()
    assert "What batch size and longest history cost" in page
    assert "Money an epoch" not in page
    priced = profiled("--gpu-hour-price", 2.5, "--calibration", write_run(tmp_path / "run.json"))
    assert "money" in priced.stdout.partition("Trade-off table")[2].partition("Steps, GPU-hours")[0]
    assert "calibration: run.json" in priced.stdout
    assert "Money an epoch" in (tmp_path / "out" / "profile.html").read_text()


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf"])
def test_an_hour_costs_something(profiled, price):
    refused = profiled("--gpu-hour-price", price)
    assert refused.exit_code == 2
    assert "--gpu-hour-price must be above 0" in refused.stderr


def test_batch_sizes_are_those_that_the_rows_make_a_global_batch_for():
    asked = Setting(max_length=9, ranks=4, batch_size=16)
    assert batch_sizes(10_000, asked) == [4, 8, 16, 32, 64]
    assert batch_sizes(128, asked) == [4, 8, 16, 32]
    assert batch_sizes(10, asked) == [16]
    assert batch_sizes(10_000, Setting(max_length=9, ranks=4, batch_size=1)) == [1, 2, 4]


def test_lengths_end_uncut_and_lose_no_more_than_they_say():
    histogram = LengthHistogram.of(np.array([10] * 950 + [400] * 50))
    cut = even_cut(Samples(histogram=histogram), Setting(max_length=400, ranks=4, batch_size=4))
    found = lengths(histogram, cut)
    assert found[-1] == 400
    assert cut.max_length in found
    for lost in (0.05, 0.2):
        shortest = min(length for length in range(1, 401) if 1 - histogram.kept_share(length) <= lost)
        assert shortest in found
