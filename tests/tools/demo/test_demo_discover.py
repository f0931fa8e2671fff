"""Finding the sequence in folders nobody has described."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.demo.discover import DiscoveryError, discover

DATA = Path(os.environ.get("FREESCALE_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
ROWS = 64


def lists(rng, lengths, values=None, kind="int64"):
    values = rng.integers(0, 40, lengths.sum()) if values is None else values
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values).cast(pa.type_for_alias(kind)))


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
    data = discover(folder, batch_size=4)
    assert data.fields == ("item_ids", "kinds", "when")
    assert [feature.kind for feature in data.history] == ["item", "id", "time"]
    assert [path.name for path in data.tables[0].paths] == ["events-0.parquet", "events-1.parquet"]
    notes = "\n".join(data.notes)
    assert "items.parquet" in notes
    assert os.path.join("users", "users.parquet") in notes
    assert "not aligned with 'item_ids': tags" in notes


def test_takes_the_named_columns_in_their_order(folder):
    data = discover(folder, sequence=("kinds", "when"), batch_size=4)
    assert data.fields == ("kinds", "when")
    assert data.history[0].kind == "item"


def test_batch_size_leaves_steps_enough(folder):
    assert discover(folder).batch_size == 4  # 128 rows, 2 ranks, 16 steps


def refuse(folder, match, **options):
    with pytest.raises(DiscoveryError, match=match):
        discover(folder, **options)


def test_refuses_what_cannot_be_trained_on(folder, tmp_path):
    refuse(tmp_path / "nowhere", "no such folder")
    refuse(folder, "no file with rows has all of nope.*found: item_ids, kinds, related, tags, when", sequence=("nope",))
    refuse(folder, "prices", sequence=("prices",))
    refuse(folder, "tags: lists are not of the same length", sequence=("item_ids", "tags"))
    refuse(folder, "128 samples .* do not fill one step of 2 x 100", batch_size=100)
    refuse(folder / "users", "none of its 1 Parquet files")
    (folder / "empty").mkdir()
    refuse(folder / "empty", "no \\*.parquet file")
    (folder / "broken.parquet").write_bytes(b"not parquet at all")
    refuse(folder, "broken.parquet: cannot read its footer")


def test_histories_that_are_all_empty_are_no_sequence_but_no_crash(tmp_path):
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"item_ids": lists(rng, np.zeros(64, int))}), tmp_path / "a.parquet")
    data = discover(tmp_path)
    assert data.fields == ("item_ids",)


@pytest.mark.parametrize(
    ("name", "fields", "kinds"),
    [
        ("oss_events", ("item_ids", "timestamps", "actions"), ["item", "time", "id"]),
        ("online_retail", ("item_ids", "timestamps"), ["item", "time"]),
    ],
)
def test_real_sets(name, fields, kinds):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not there; FREESCALE_DATA names the folder of the real sets")
    data = discover(DATA / name)
    assert data.fields == fields
    assert [feature.kind for feature in data.history] == kinds
    assert all(path.name.startswith("requests") for path in data.tables[0].paths)
    histories = data.histories
    assert (histories.on, histories.at, histories.time) == ("user_id", "ts", "timestamps")
    assert all(path.name.startswith("interactions") for path in histories.paths)
    assert any(note.startswith("ignored") and "users" in note and "requests" not in note for note in data.notes)
    whole = discover(DATA / name, requests=False)
    assert whole.histories is None
    assert all(path.name.startswith("interactions") for path in whole.tables[0].paths)
