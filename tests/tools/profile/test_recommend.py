"""Recommended settings: no cut without need, none too few, and code that runs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.profile import recommend as module
from freescale_tools.profile.loader_code import LoaderFiles, loader_files
from freescale_tools.profile.measure import Columns, full
from freescale_tools.profile.recommend import fullest_rank, longest_balanced, recommend
from freescale_tools.profile.stragglers import Samples, Setting, simulate_setting
from freescale_tools.scan.files import open_files
from freescale_tools.scan.histogram import LengthHistogram
from fsdata import Balance
from fsdata.balance.packing import pack


def lognormal(median, sigma, rows=50_000):
    drawn = np.random.default_rng(5).lognormal(np.log(median), sigma, rows)
    return LengthHistogram.of(np.clip(np.rint(drawn), 0, 21_000))


def advice(histogram, **options):
    grid = {"default": {"ranks": 16, "batch_size": 64, "max_length": histogram.longest}}
    return recommend(histogram, grid, files=LoaderFiles(paths=("data/*.parquet",), column="item_ids"), **options)


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


def run(profiled, paths, check=""):
    """The code for what `profiled` says, run with `check` as the training step; what it made."""
    files = open_files(paths)
    histogram = profiled.histograms[next(iter(profiled.document["sequences"]))]
    candidates = next(iter(profiled.document["candidates"]), None)
    grid = {"default": {"ranks": 4, "batch_size": 16, "max_length": histogram.longest}}
    found = recommend(
        histogram,
        grid,
        files=loader_files(files, profiled.document, paths=paths),
        candidates=profiled.histograms.get(candidates),
    )
    scope: dict = {"samples": 0, "events": 0}
    count = f"samples += len(batch.origin); {check}  #"
    exec(found["code"].replace("...  #", count), scope)
    balance = scope["balance"]
    assert (balance.method, balance.max_tokens) == (found["method"], found["max_tokens"])
    assert repr(balance.cost) == found["cost_model"]
    assert scope["schema"].sequences[0].max_length == found["max_length"]
    return scope


def histories(rows=200, kind=None):
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, 99, size).tolist() for size in generator.integers(0, 60, rows)]
    return pa.array(drawn, pa.list_(kind or pa.int64()))


@pytest.mark.parametrize("inside", [False, True], ids=["columns", "struct"])
def test_the_code_runs(tmp_path, inside):
    items, shown = histories(), pa.array([[1, 2]] * 200, pa.list_(pa.int64()))
    table = {"items": pa.StructArray.from_arrays([items], ["ids"]) if inside else items, "shown": shown}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    paths = [str(tmp_path / "a.parquet")]
    columns = Columns(sequences=("items.ids" if inside else "items",), candidates="shown")
    found = full(open_files(paths), columns, paths=paths)
    scope = run(found, paths, "assert batch.features.keys() == [schema.sequences[0].name, 'shown']")
    assert len(scope["loader"]) == 13
    assert scope["samples"] == 200


def test_the_code_reads_what_was_profiled_of_a_mixed_folder(tmp_path):
    good = pa.table({"items": histories(64), "shown": histories(64, pa.float32())})
    pq.write_table(good, tmp_path / "a.parquet")
    pq.write_table(good, tmp_path / "b.parquet", row_group_size=32)
    pq.write_table(pa.table({"user": [1, 2]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"items": [1, 2], "shown": [1, 2]}), tmp_path / "old.parquet")
    paths, columns = [str(tmp_path)], Columns(sequences=("items",), candidates="shown")
    assert run(full(open_files(paths), columns, paths=paths), paths)["samples"] == 128
    nulls = pa.table({"items": pa.array([None, [1, None]], good["items"].type), "shown": good["shown"][:2]})
    pq.write_table(nulls, tmp_path / "c.parquet")
    page = pq.read_metadata(tmp_path / "b.parquet").row_group(1).column(0)
    raw = bytearray((tmp_path / "b.parquet").read_bytes())
    start = page.dictionary_page_offset
    raw[start : start + page.total_compressed_size] = bytes(page.total_compressed_size)
    (tmp_path / "b.parquet").write_bytes(raw)
    assert run(full(open_files(paths), columns, paths=paths), paths)["samples"] == 64 + 32 + 2


def test_a_path_that_cannot_be_read_whole_stays_as_it_was_given(tmp_path):
    pq.write_table(pa.table({"items": histories(64)}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    paths = [str(tmp_path / "a*"), str(tmp_path / "b*")]
    found = full(open_files(paths), Columns(sequences=("items",)), paths=paths)
    files = loader_files(open_files(paths), found.document, paths=paths)
    assert (files.paths, files.damaged) == (tuple(paths), True)
    assert run(found, paths)["samples"] == 64


def test_what_is_simulated_is_what_balance_does():
    """One sample is worth all others: only free counts leave its rank without any other."""
    histogram = LengthHistogram.of(np.array([4000] + [10] * 127))
    setting = Setting(max_length=4000, ranks=4, batch_size=32)
    samples = Samples(histogram=histogram)
    shares = []
    for step in range(setting.steps):
        lengths = samples.lengths(setting, step)
        balance = Balance("vbs", cost=setting.cost)
        plan = pack(setting.cost(lengths), 4, method=balance.method, max_tokens=balance.max_tokens)
        shares.append(plan.straggler)
    simulated = simulate_setting(samples, setting, methods=("vbs",))["straggler"]["vbs"]
    assert simulated == pytest.approx(np.mean(shares))
