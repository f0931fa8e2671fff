"""What the demo trains on, found in folders nobody has described, and read by the loader."""

import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from demo_folders import REQUESTS, request_folder
from tools_kit import ragged, write

from freescale_tools.console.errors import UsageError
from freescale_tools.demo.data import some_lengths, synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.write.synth import presets as synth
from fsdata import FreeScaleDataLoader

ROWS = 64
HISTORY = ("item_ids", "actions", "timestamps")


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
        items = ragged(lengths)
        table = {
            "user_id": np.arange(ROWS),
            "kinds": items.cast(pa.list_(pa.int32())),
            "item_ids": items,
            "when": ragged(lengths, 1_700_000_000 + np.arange(lengths.sum())),
            "prices": items.cast(pa.list_(pa.float32())),
            "tags": ragged(rng.integers(0, 3, ROWS)),
        }
        write(tmp_path / f"events-{file}.parquet", table, group=32)
    write(tmp_path / "items.parquet", {"related": ragged([2] * 8)})
    write(tmp_path / "users" / "users.parquet", {"user_id": [1, 2]})
    return tmp_path


def test_takes_the_aligned_integer_lists_of_the_largest_table(folder):
    data = discover(folder)
    assert [(one.name, one.divide) for one in data.history] == [("item_ids", 1), ("kinds", 1), ("when", 3_600)]
    assert [feature.rows for feature in data.history] == [128, 128, 168]
    assert paths_of(data.sources[0]) == ["events-0.parquet", "events-1.parquet"]
    assert data.batch_size == 4, "128 rows, 2 ranks, 16 steps"
    notes = "\n".join(data.notes)
    for text in ("items.parquet", os.path.join("users", "users.parquet"), "not aligned with 'item_ids': tags"):
        assert text in notes
    named = discover(folder, sequence=("kinds", "when"), batch_size=4)
    assert [(feature.name, feature.divide) for feature in named.history] == [("kinds", 1), ("when", 3_600)]
    assert discover(folder, sequence=("when",), batch_size=4).history[0].divide == 1, "the item is no time"


def test_a_picture_belongs_to_one_data_set(folder):
    for other in ("here", "there"):
        (folder / other / "data").mkdir(parents=True)
        shutil.copy(folder / "events-0.parquet", folder / other / "data")
    here, there = (discover(folder / other / "data", batch_size=4).picture for other in ("here", "there"))
    assert here != there
    assert here == discover(folder / "here" / "data", batch_size=8).picture


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
    for other in ("empty", "broken"):
        (folder / other).mkdir()
    if name == "broken":
        (folder / "broken" / "broken.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match=match):
        discover(folder / name, **options)


def test_lists_may_all_be_empty_or_have_a_fixed_size(tmp_path):
    write(tmp_path / "empty" / "a.parquet", {"item_ids": ragged([0] * 64)})
    assert [feature.name for feature in discover(tmp_path / "empty").history] == ["item_ids"]
    values = {"item_ids": np.arange(200), "when": 1_700_000_000 + np.arange(200)}
    table = {name: pa.FixedSizeListArray.from_arrays(pa.array(each), 4) for name, each in values.items()}
    write(tmp_path / "fixed" / "a.parquet", table)
    data = discover(tmp_path / "fixed")
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


def test_the_synthetic_set_is_the_rows_of_both_sources_in_time_order(tmp_path):
    files = synth.demo_set(tmp_path, rows=300, row_group_rows=32, seed=5)
    site = pl.read_parquet(files.site).select("request_ts", "user_id", "country", *HISTORY)
    partner = pl.read_parquet(files.partner).select("when", "uid", pl.lit(0), "items", "events", "times")
    samples = sorted([*site.iter_rows(), *partner.iter_rows()], key=lambda sample: sample[0])
    _, users, countries, *histories = zip(*samples, strict=True)
    segments = dict(pl.read_parquet(files.users).select("user_id", "segment").iter_rows())
    data = synthetic(files, batch_size=25, max_length=100)
    assert data.rows == len(samples)
    context = (users, countries, map(segments.get, users))
    assert rows_of(data, "user_id", "country", "segment") == [[[value] for value in field] for field in context]
    assert rows_of(data, *HISTORY) == [[row[-100:] for row in field] for field in histories]
