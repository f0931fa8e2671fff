"""Recommended settings: no cut without need, none too few, and code that runs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools import recommend as module
from freescale_tools.recommend import fullest_rank, longest_balanced, recommend
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.stragglers import Samples, Setting, simulate_setting, straggler_grid
from fsdata.packing import pack


def lognormal(median, sigma, rows=50_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return LengthHistogram.of(np.clip(np.rint(drawn), 0, 21_000))


def advice(histogram, **options):
    grid = {"default": {"ranks": 16, "batch_size": 64, "max_length": histogram.longest}}
    return recommend(histogram, grid, **{"column": "item_ids", "paths": ["data/*.parquet"], **options})


def test_nothing_is_cut_where_plans_can_be_even():
    histogram = lognormal(4000, 0.55)
    found = advice(histogram)
    assert (found["max_length"], found["events_cut"], found["method"]) == (histogram.longest, 0.0, "fbs+swap")
    assert found["cost_model"] == "Polynomial(linear=2000, quadratic=1, candidate=0)"
    assert found["straggler"] < 0.001 < found["straggler_none"]
    assert "Nothing is cut off" in " ".join(found["why"])


def test_histories_that_outweigh_a_rank_are_cut_and_no_more_than_that():
    histogram = lognormal(180, 1.3)
    samples = Samples(histogram=histogram)
    uncut = Setting(max_length=histogram.longest, ranks=16, batch_size=64)
    found = advice(histogram)
    cut = found["max_length"]
    assert 1000 < cut < histogram.longest
    assert found["lower_bound"] < 0.01
    assert found["events_cut"] == pytest.approx(1 - histogram.kept_share(cut))
    assert 0 < found["events_cut"] < 0.2
    assert simulate_setting(samples, uncut, methods=())["lower_bound"] > 0.05
    assert longest_balanced(samples, uncut) == cut

    def bound(length):
        batches = [np.minimum(samples.lengths(uncut, step)["sequence"], length) for step in range(uncut.steps)]
        return np.mean([pack(uncut.cost({"x": one}), 16, method="fbs").lower_bound for one in batches])

    assert bound(cut) < 0.01 <= bound(cut + 10)


def test_every_simulated_step_fits_into_max_tokens():
    histogram = lognormal(180, 1.3)
    found = advice(histogram)
    setting = Setting(max_length=found["max_length"], ranks=16, batch_size=64)
    samples = Samples(histogram=histogram)
    peak, longest = fullest_rank(samples, setting, found["method"])
    assert peak < found["max_tokens"] < 1.35 * peak
    assert found["max_tokens"] >= longest
    for step in range(100, 110):
        tokens = samples.lengths(setting, step)["sequence"]
        plan = pack(
            setting.cost({"x": tokens}), 16, method=found["method"], tokens=tokens, max_tokens=found["max_tokens"]
        )
        assert np.bincount(plan.rank, tokens, 16).max() <= found["max_tokens"]


def test_one_long_sample_raises_max_tokens(monkeypatch):
    monkeypatch.setattr(module, "fullest_rank", lambda *_: (100, 5000))
    assert advice(lognormal(100, 0.5))["max_tokens"] == 5000


def test_variable_counts_are_proposed_only_where_they_bring_something():
    shares = {"none": 0.5, "fbs+swap": 0.03, "vbs": 0.021, "hierarchical": 0.03}
    assert module._method(shares) == "fbs+swap"
    assert module._method({**shares, "vbs": 0.01}) == "vbs"


@pytest.mark.parametrize("inside", [False, True], ids=["columns", "struct"])
def test_the_code_runs(tmp_path, inside):
    generator = np.random.default_rng(0)
    histories = [generator.integers(0, 99, size).tolist() for size in generator.integers(0, 60, 200)]
    items = pa.array(histories, pa.list_(pa.int64()))
    shown = pa.array([[1, 2]] * 200, pa.list_(pa.int64()))
    table = {"items": pa.StructArray.from_arrays([items], ["ids"]) if inside else items, "shown": shown}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    histogram = LengthHistogram.of(np.array([len(history) for history in histories]))
    candidates = LengthHistogram.of(np.full(200, 2))
    grid = straggler_grid(
        histogram, candidates=candidates, ranks=(2,), batch_sizes=(8,), batch_size=16, default_ranks=4
    )
    found = recommend(
        histogram,
        grid,
        column="items.ids" if inside else "items",
        paths=[str(tmp_path / "a.parquet")],
        candidates=candidates,
        candidate_column="shown",
    )
    scope: dict = {}
    exec(
        found["code"].replace("...  #", "assert batch.features.keys() == [schema.sequences[0].name, 'shown']  #"), scope
    )
    loader, balance = scope["loader"], scope["balance"]
    assert len(loader) == 13
    assert scope["schema"].sequences[0].max_length == found["max_length"]
    assert (balance.method, balance.max_tokens, repr(balance.cost)) == (
        found["method"],
        found["max_tokens"],
        found["cost_model"],
    )


def test_several_paths_and_the_default_grid_go_into_the_code():
    found = advice(lognormal(100, 0.5), paths=["a", "b"])
    assert "ParquetSource(['a', 'b'])" in found["code"]
    compile(found["code"], "code", "exec")
