"""What the demo trains on, found in folders nobody has described, and read by the loader."""

import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_folders import REQUESTS, lists, request_folder

from freescale_tools.console.errors import UsageError
from freescale_tools.demo.data import some_lengths, synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.write.synth import presets as synth
from fsdata import FreeScaleDataLoader

DATA = Path(os.environ.get("FREESCALE_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
ROWS = 64


def rows_of(data, *names):
    """The lists of each field, of all batches."""
    options = {"batch_size": data.batch_size, "mix": data.mix, "rank": 0, "world_size": 1}
    with FreeScaleDataLoader(data.sources, data.schema(), **options) as loader:
        batches = list(loader)
    return [[row.tolist() for batch in batches for row in batch.features[name].to_dense()] for name in names]


def paths_of(source):
    return [Path(path).name for path in source.paths]


@pytest.fixture
def folder(tmp_path):
    """Two history files, a smaller table with a list, and tables without lists."""
    rng = np.random.default_rng(0)
    for file in range(2):
        lengths = rng.integers(0, 30, ROWS)
        times = np.concatenate([1_700_000_000 + np.sort(rng.integers(0, 10**6, n)) for n in lengths])
        table = {
            "user_id": pa.array(np.arange(ROWS)),
            "kinds": lists(rng, lengths, kind="int32"),
            "item_ids": lists(rng, lengths),
            "when": lists(rng, lengths, times),
            "prices": lists(rng, lengths, kind="float"),
            "tags": lists(rng, rng.integers(0, 3, ROWS)),
        }
        pq.write_table(pa.table(table), tmp_path / f"events-{file}.parquet", row_group_size=32)
    pq.write_table(pa.table({"related": lists(rng, np.full(8, 2))}), tmp_path / "items.parquet")
    (tmp_path / "users").mkdir()
    pq.write_table(pa.table({"user_id": [1, 2]}), tmp_path / "users" / "users.parquet")
    return tmp_path


def test_takes_the_aligned_integer_lists_of_the_largest_table(folder):
    data = discover(folder)
    assert [feature.name for feature in data.history] == ["item_ids", "kinds", "when"]
    assert [feature.rows for feature in data.history] == [64, 64, 168]
    assert [feature.divide for feature in data.history] == [1, 1, 3_600]
    assert paths_of(data.sources[0]) == ["events-0.parquet", "events-1.parquet"]
    assert data.batch_size == 4, "128 rows, 2 ranks, 16 steps"
    notes = "\n".join(data.notes)
    for text in ("items.parquet", os.path.join("users", "users.parquet"), "not aligned with 'item_ids': tags"):
        assert text in notes
    named = discover(folder, sequence=("kinds", "when"), batch_size=4)
    assert [(feature.name, feature.divide) for feature in named.history] == [("kinds", 1), ("when", 3_600)]
    assert discover(folder, sequence=("when",), batch_size=4).history[0].divide == 1, "the item is no time"


def test_a_picture_belongs_to_one_data_set(folder, tmp_path):
    for other in ("here", "there"):
        (tmp_path / other / "data").mkdir(parents=True)
        shutil.copy(folder / "events-0.parquet", tmp_path / other / "data")
    here, there = (discover(tmp_path / other / "data", batch_size=4).picture for other in ("here", "there"))
    assert here != there
    assert here == discover(tmp_path / "here" / "data", batch_size=8).picture


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("", {"sequence": ("nope",)}, "no file with rows has all of nope.*found: item_ids, kinds, related, tags, when"),
        ("", {"sequence": ("prices",)}, "prices"),
        ("", {"sequence": ("item_ids", "tags")}, "tags: lists are not of the same length"),
        ("", {"batch_size": 100}, "128 samples .* do not fill one step of 2 x 100"),
        ("users", {}, "none of its 1 Parquet files .* column of integer lists"),
        ("empty", {}, "no \\*.parquet file"),
        ("nowhere", {}, "no such folder"),
        ("broken", {}, "broken.parquet: cannot read its footer"),
    ],
)
def test_refuses_what_cannot_be_trained_on(folder, name, options, match):
    (folder / "empty").mkdir()
    if name == "broken":
        (folder / "broken").mkdir()
        (folder / "broken" / "broken.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match=match):
        discover(folder / name, **options)


def test_histories_that_are_all_empty_are_no_sequence_but_no_crash(tmp_path):
    table = {"item_ids": lists(np.random.default_rng(0), np.zeros(64, int))}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert [feature.name for feature in discover(tmp_path).history] == ["item_ids"]


def test_lists_may_have_a_fixed_size(tmp_path):
    values = {"item_ids": np.arange(200), "when": 1_700_000_000 + np.arange(200)}
    table = {name: pa.FixedSizeListArray.from_arrays(pa.array(each), 4) for name, each in values.items()}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    data = discover(tmp_path)
    assert [feature.divide for feature in data.history] == [1, 3_600]
    assert rows_of(data, "item_ids") == [np.arange(200).reshape(-1, 4).tolist()]


def wanted(folder, max_length):
    """What each request sees, field by field, by comparing the times of all events of its user."""
    histories = {row[0]: row[1:] for row in pl.read_parquet(folder / "histories.parquet").iter_rows()}
    found = []
    for _, user, at in pl.read_parquet(folder / "requests.parquet").iter_rows():
        items, times, kinds = histories.get(user, ([], [], []))
        number = sum(time < at for time in times)
        found.append([each[:number][-max_length:] for each in (items, times, kinds)])
    return found


def test_finds_the_requests_and_what_they_see(tmp_path):
    folder = request_folder(tmp_path)
    data = discover(folder, max_length=20, batch_size=8)
    (join,) = data.sources[0].join
    assert paths_of(data.sources[0]) == ["requests.parquet"]
    assert (data.key, join.on, join.at, join.time) == ("user_id", "user_id", "ts", "when")
    assert "users.parquet" in "\n".join(data.notes)
    seen = wanted(folder, 20)
    assert len(seen) == REQUESTS == data.rows
    assert sorted(some_lengths(data).tolist()) == sorted(len(items) for items, _, _ in seen)
    assert rows_of(data, "item_ids", "when", "kinds") == [list(field) for field in zip(*seen, strict=True)]
    whole = discover(folder, batch_size=2, requests=False)
    assert (whole.key, paths_of(whole.sources[0])) == (None, ["histories.parquet"])
    assert whole.picture != data.picture
    (folder / "requests.parquet").unlink()
    assert discover(folder, batch_size=2).key is None, "no key comes back in the table of users"


def test_files_may_differ_in_their_integers(tmp_path):
    """Keys and times of 32 and 64 bits, and a column that one file has alone."""
    folder, other = request_folder(tmp_path), tmp_path / "other"
    other.mkdir()
    histories, requests = (pl.read_parquet(folder / f"{name}.parquet") for name in ("histories", "requests"))
    narrow = {"user_id": pl.Int16, "item_ids": pl.List(pl.Int32), "when": pl.List(pl.Int32)}
    histories[:3].with_columns(age=pl.lit(3)).write_parquet(other / "h0.parquet")
    histories[3:].cast(narrow).write_parquet(other / "h1.parquet")
    requests.cast({"user_id": pl.Int32, "ts": pl.Int32}).write_parquet(other / "r.parquet")
    data = discover(other, max_length=20, batch_size=8)
    assert paths_of(data.sources[0].join[0].source) == ["h0.parquet", "h1.parquet"]
    assert rows_of(data, "item_ids") == [[items for items, _, _ in wanted(folder, 20)]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return synth.demo_set(tmp_path_factory.mktemp("demo"), rows=300, row_group_rows=32, seed=5)


def rows_by_time(files):
    """Every sample of both sources under common names, in order of their time."""
    site = pl.read_parquet(files.site)
    partner = pl.read_parquet(files.partner).select(
        user_id=pl.col("uid").cast(pl.Int64),
        item_ids=pl.col("items").cast(pl.List(pl.Int64)),
        actions=pl.col("events").cast(pl.List(pl.Int64)),
        timestamps="times",
        country=pl.lit(0, pl.Int64),
        age_days=pl.col("age").cast(pl.Float32),
        hour=pl.lit(12.0, pl.Float32),
        request_ts="when",
    )
    both = pl.concat([site, partner]).sort("request_ts", maintain_order=True)
    return both.join(pl.read_parquet(files.users), on="user_id", how="left", maintain_order="left")


def test_the_synthetic_set_is_the_rows_of_both_sources_in_time_order(files):
    data = synthetic(files, batch_size=25, max_length=100)
    found = rows_by_time(files)
    names = ("item_ids", "actions", "timestamps")
    assert rows_of(data, *names) == [[row[-100:] for row in found[name].to_list()] for name in names]
    names = ("user_id", "country", "segment")
    assert rows_of(data, *names) == [[[value] for value in found[name].to_list()] for name in names]
    assert data.rows == len(found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fields"),
    [("oss_events", ["item_ids", "timestamps", "actions"]), ("online_retail", ["item_ids", "timestamps"])],
)
def test_real_sets(name, fields):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not there; FREESCALE_DATA names the folder of the real sets")
    data = discover(DATA / name)
    assert [feature.name for feature in data.history] == fields
    assert [feature.name for feature in data.history if feature.divide > 1] == ["timestamps"]
    (join,) = data.sources[0].join
    assert all(path.startswith("requests") for path in paths_of(data.sources[0]))
    assert (join.on, join.at, join.time) == ("user_id", "ts", "timestamps")
    assert all(path.startswith("interactions") for path in paths_of(join.source))
