"""Tables of histories against plain Python: order, ties, buckets, parts, updates, types and row groups."""

import datetime
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_logs import FIELDS, LOGS, SCHEMA, bucket_of, build, reference, tables, write_events, write_log
from hypothesis import given
from hypothesis import strategies as st

from freescale_tools.write.histories.events.layout import raw_numbers
from freescale_tools.write.histories.existing import open_table
from freescale_tools.write.histories.parts import assemble
from freescale_tools.write.histories.parts.keys import buckets_of
from freescale_tools.write.histories.parts.plan import MOST_PARTS, parts_wanted, plan_parts
from fsdata import AsOf, FreeScaleDataLoader, ParquetSource, Schema, Sequence

BUCKETS = st.integers(1, 5)
PART_BYTES = st.sampled_from([60, 200, 700, 1 << 20])  # from a part per event or two to one part


@given(files=LOGS, buckets=BUCKETS, part_bytes=PART_BYTES)
def test_a_table_is_what_plain_python_makes_of_the_events(files, buckets, part_bytes):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        document = build(write_log(Path(folder, "log"), files), out, buckets=buckets, part_bytes=part_bytes)
        names = [f"histories-{n:05d}-of-{buckets:05d}.parquet" for n in range(buckets)]
        assert sorted(path.name for path in out.iterdir()) == names == document["files"]
        assert [table.to_pylist() for table in tables(out)] == reference(files, buckets)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["log", "out"]
        assert document["bytes"] == sum(path.stat().st_size for path in out.iterdir())


@given(files=LOGS, more=LOGS, buckets=BUCKETS, part_bytes=PART_BYTES)
def test_an_update_is_the_same_as_building_from_all_events(files, more, buckets, part_bytes):
    with tempfile.TemporaryDirectory() as folder:
        old, new = write_log(Path(folder, "old"), files), write_log(Path(folder, "update"), more)
        whole, grown = Path(folder, "whole"), Path(folder, "grown")
        at_once = build([*old, *new], whole, buckets=buckets)
        build(old, grown, buckets=buckets, part_bytes=part_bytes)
        document = build(new, grown, update=True, part_bytes=part_bytes)
        for one, other in zip(tables(whole), tables(grown), strict=True):
            assert one.schema.equals(other.schema, check_metadata=True)
            assert one.equals(other)
        assert document["new_events"] == sum(map(len, more))
        same = ("events", "users", "lengths", "time", "ties", "future", "files")
        assert [document[key] for key in same] == [at_once[key] for key in same]


@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1)), buckets=st.integers(1, 10_000))
def test_buckets_are_those_of_the_formula(keys, buckets):
    assert buckets_of(np.array(keys, np.int64), buckets).tolist() == [bucket_of(key, buckets) for key in keys]


def test_buckets_never_change():
    """Tables on disk depend on them."""
    keys = [0, 1, 2, 3, -1, 165_838, 2**40, 2**63 - 1]
    assert buckets_of(np.array(keys), 1000).tolist() == [0, 360, 859, 173, 82, 884, 507, 448]


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint8, np.uint32, np.uint64])
def test_the_width_of_a_key_does_not_change_its_bucket(kind):
    keys = [-128, -1, 0, 1, 127] if np.dtype(kind).kind == "i" else [0, 1, 200]
    assert buckets_of(np.array(keys, kind), 997).tolist() == [bucket_of(key, 997) for key in keys]


@pytest.mark.parametrize("step", [1, 10, 2**20, 2**32, 2**44])
def test_buckets_are_even_for_regular_keys(step):
    counts = np.bincount(buckets_of(np.arange(64_000, dtype=np.int64) * step, 64), minlength=64)
    assert counts.min() > 700
    assert counts.max() < 1300


def test_raw_numbers_are_those_of_a_slice():
    array = pa.array([5, -1, 7, 9], pa.int32()).slice(1, 2)
    assert raw_numbers(array).tolist() == [-1, 7]
    assert raw_numbers(pa.array([], pa.date32())).tolist() == []


def of_type(kind, values):
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array(values, width).cast(kind)


@pytest.mark.parametrize(
    ("key", "time"),
    [
        (pa.int8(), pa.int32()),
        (pa.uint64(), pa.uint64()),
        (pa.int32(), pa.timestamp("ms")),
        (pa.uint16(), pa.timestamp("ns", "UTC")),
        (pa.int64(), pa.date32()),
    ],
    ids=str,
)
def test_types_stay_as_they_are_stored(tmp_path, key, time):
    columns = {
        "u": of_type(key, [5, 4, 5, 4, 5]),
        "t": of_type(time, [3, 9, 1, 2, 2]),
        "small": pa.array([1, 2, 3, 4, None], pa.int16()),
        "flag": pa.array([True, False, None, True, False]),
        "word": pa.array(["x", "y", "x", None, "z"]).dictionary_encode(),
        "large": pa.array(["x", "y", "x", "w", "z"], pa.large_string()),
        "raw": pa.array([b"aa", b"bb", b"cc", b"dd", b"ee"], pa.binary(2)),
        "at": pa.array([1, 2, 3, 4, 5], pa.timestamp("us", "Europe/Berlin")),
        "cost": pa.array([1, 2, 3, 4, 5], pa.decimal128(7, 2)),
    }
    events = pa.table(columns)
    pq.write_table(events, tmp_path / "a.parquet")
    for update in (False, True):  # an update reads the table's own types
        build([tmp_path / "a.parquet"], tmp_path / "out", by="u", time="t", buckets=None, update=update)
    (table,) = tables(tmp_path / "out")
    assert table.schema.field("u").type == key
    order = [3, 3, 1, 1, 2, 2, 4, 4, 0, 0]
    for name in events.schema.names[1:]:
        expected = events[name].cast(pa.string()) if name in ("word", "large") else events[name]
        found = table[name].combine_chunks().flatten()
        assert found.equals(expected.take(order).combine_chunks()), name
    assert table["u"].to_pylist() == [4, 5]


def test_unsigned_keys_beyond_int64_are_in_order(tmp_path):
    keys = [2**64 - 1, 3, 2**63, 2**63 - 1, 3]
    schema = pa.schema([("u", pa.uint64()), ("t", pa.int64())])
    path = write_events(tmp_path / "a.parquet", [(key, n) for n, key in enumerate(keys)], schema)
    build([path], tmp_path / "out", by="u", time="t", part_bytes=16)
    (table,) = tables(tmp_path / "out")
    assert table.to_pydict() == {"u": sorted(set(keys)), "t": [[1, 4], [3], [2], [0]]}


def test_fields_are_chosen_and_keep_their_order(tmp_path):
    path = write_events(tmp_path / "a.parquet", [(1, 7, 2, None, "x"), (2, 7, 1, None, "y")])
    build([path], tmp_path / "some", fields=("word", "item"))
    (table,) = tables(tmp_path / "some")
    assert table.to_pydict() == {"user": [7], "ts": [[1, 2]], "word": [["y", "x"]], "item": [[2, 1]]}
    build([path], tmp_path / "all")
    assert tables(tmp_path / "all")[0].schema.names == ["user", "ts", *FIELDS]


def test_a_table_knows_how_many_events_it_has(tmp_path):
    rows = [(n, n % 3, n, None, "") for n in range(20)]
    build(write_log(tmp_path / "log", [rows]), tmp_path / "out", buckets=2)
    source = open_table(tmp_path / "out").source
    assert source.events == sum(batch.num_rows for batch in source.batches(["user"])) == 20


def test_an_update_takes_fields_in_any_order(tmp_path):
    first = write_events(tmp_path / "a.parquet", [(1, 7, 2, None, "x")])
    turned = pa.schema([SCHEMA.field(name) for name in ["word", "ts", "price", "user", "item"]])
    second = write_events(tmp_path / "b.parquet", [("y", 1, 0.5, 7, 2)], turned)
    build([first], tmp_path / "out")
    assert build([second], tmp_path / "out", update=True)["fields"] == FIELDS
    (row,) = tables(tmp_path / "out")[0].to_pylist()
    assert row == {"user": 7, "ts": [1, 2], "item": [2, 1], "price": [0.5, None], "word": ["y", "x"]}


@pytest.mark.parametrize(("most_events", "most_users"), [(5, 100), (100, 3), (1, 1)])
@pytest.mark.parametrize("buckets", [1, 3])
def test_row_groups_end_before_they_are_large(tmp_path, monkeypatch, most_events, most_users, buckets):
    monkeypatch.setattr(assemble, "GROUP_EVENTS", most_events)
    monkeypatch.setattr(assemble, "GROUP_USERS", most_users)
    rows = [(n, user, n, 0.0, "") for user in range(12) for n in range([1, 2, 9][user % 3])]
    out = tmp_path / "out"
    build(write_log(tmp_path, [rows]), out, buckets=buckets)
    assert [table.to_pylist() for table in tables(out)] == reference([rows], buckets)
    for path in out.iterdir():
        with pq.ParquetFile(path) as file:
            groups = [file.read_row_group(n)["ts"] for n in range(file.num_row_groups)]
        sizes = [(len(group), sum(map(len, group.to_pylist()))) for group in groups]
        assert all(users == 1 or (users <= most_users and events <= most_events) for users, events in sizes)
        longest = 9  # the history that did not fit
        assert all(one[0] == most_users or one[1] + longest > most_events for one in sizes[:-1])


def test_parts_are_consecutive_pieces_of_the_table():
    rng = np.random.default_rng(1)
    keys = rng.integers(-(2**40), 2**40, 20_000)
    for buckets, wanted in [(1, 7), (3, 8), (8, 8), (50, 8), (1000, 1)]:
        parts = plan_parts(wanted, buckets, keys[:2000])
        of = parts.of(keys)
        order = np.lexsort((keys, buckets_of(keys, buckets)))
        assert (np.diff(of[order].astype(int)) >= 0).all()
        assert of.max() < parts.count <= max(2 * wanted, buckets)
        assert np.bincount(of, minlength=parts.count).max() < 2 * len(keys) / parts.count
        assert parts.mixed or buckets <= wanted


def test_a_key_with_many_events_makes_no_empty_ranges():
    sample = np.concatenate([np.full(900, 5), np.arange(100)])
    parts = plan_parts(10, 1, sample)
    assert parts.bounds.tolist() == sorted(set(parts.bounds.tolist()))
    assert parts.count < 10
    assert parts.of(parts.bounds).tolist() == list(range(1, parts.count))
    assert parts.of(parts.bounds - 1).tolist() == list(range(parts.count - 1))


def test_parts_grow_when_there_would_be_too_many():
    assert parts_wanted(0, 0.0, 100) == 1
    assert parts_wanted(10, 20.0, 100) == 2
    assert parts_wanted(11, 20.0, 100) == 3
    assert parts_wanted(10**9, 20.0, 100) == MOST_PARTS


def test_no_events_make_an_empty_table_that_can_grow(tmp_path):
    (empty,) = write_log(tmp_path / "none", [[]])
    document = build([empty], tmp_path / "out", buckets=2)
    assert [document[key] for key in ("events", "users", "future")] == [0, 0, None]
    assert [table.num_rows for table in tables(tmp_path / "out")] == [0, 0]
    rows = [(1, 7, 2, None, "x"), (1, 8, 2, None, "x")]
    build(write_log(tmp_path / "some", [rows]), tmp_path / "out", update=True)
    assert [table.to_pylist() for table in tables(tmp_path / "out")] == reference([rows], 2)


def test_a_loader_takes_the_table_as_of_the_time_of_a_row(tmp_path):
    rows = [(n, n % 3, 50 - n, 0.5, "w") for n in range(20)]
    build(write_log(tmp_path / "log", [rows]), tmp_path / "out", buckets=2)
    pq.write_table(pa.table({"user": [0, 1, 2, 9], "at": [40, 45, 60, 60]}), tmp_path / "asked.parquet")
    table = ParquetSource(str(tmp_path / "out"))
    join = AsOf(table, on="user", at="at", time="ts", fields=("item",))
    schema = Schema(sequences=(Sequence("history", ("item",), max_length=9),), context=("user",))
    source = ParquetSource(str(tmp_path / "asked.parquet"), join=join)
    with FreeScaleDataLoader(source, schema, batch_size=4, shuffle=False, num_threads=1) as loader:
        (batch,) = loader
    asked = [(0, 40), (1, 45), (2, 60)]
    expected = [row[0] for user, at in asked for row in reversed(rows) if row[1] == user and row[2] < at]
    assert batch.features["item"].values().tolist() == expected


def test_statistics_are_those_of_the_table(tmp_path):
    now = int(datetime.datetime.now().timestamp())
    times = {1: [now - 9, now - 9, now - 9, now - 5], 2: [now - 9], 3: [now + 1000, now + 1000, now - 9]}
    rows = [(0, user, ts, 0.0, "") for user in times for ts in times[user]]
    document = build(write_log(tmp_path, [rows[:3], rows[3:]]), tmp_path / "out", part_bytes=100)
    assert (document["events"], document["users"], document["new_events"]) == (8, 3, None)
    assert document["lengths"] == {"mean": 8 / 3, "p50": 3, "p99": 4, "max": 4}
    assert document["ties"] == {"events": 3, "share": 3 / 8}
    assert document["time"]["unit"] == "s"
    assert (document["time"]["first"], document["time"]["last"]) == (now - 9, now + 1000)
    at = datetime.datetime.fromtimestamp(now - 9, datetime.UTC)
    assert document["time"]["first_utc"] == at.isoformat()
    assert document["future"] == 2
    assert document["seconds"] > 0


@pytest.mark.parametrize(
    ("kind", "per_second", "unit"),
    [
        (pa.int32(), 1, "s"),
        (pa.int64(), 10**3, "ms"),
        (pa.int64(), 10**6, "us"),
        (pa.uint64(), 10**9, "ns"),
        (pa.timestamp("ms", "UTC"), 10**3, "ms"),
        (pa.timestamp("ns"), 10**9, "ns"),
        (pa.date32(), 1 / 86_400, "days"),
    ],
    ids=str,
)
def test_events_of_the_future_are_counted_in_every_unit(tmp_path, kind, per_second, unit):
    now = datetime.datetime.now().timestamp()
    schema = pa.schema([("user", pa.int64()), ("ts", kind)])
    times = of_type(kind, [int((now + days * 86_400) * per_second) for days in (-9, -2, -1, 2, 3)])
    pq.write_table(pa.table([pa.array(range(5)), times], schema=schema), tmp_path / "a.parquet")
    document = build([tmp_path / "a.parquet"], tmp_path / "out")
    assert (document["time"]["unit"], document["future"]) == (unit, 2)


def test_timestamps_have_a_unit_however_far_they_are(tmp_path):
    schema = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("ms"))])
    times = [-86_400_000, 0, 10**14]  # 1969, 1970, the year 5138
    pq.write_table(
        pa.table([pa.array(range(3)), of_type(schema.field("ts").type, times)], schema), tmp_path / "a.parquet"
    )
    document = build([tmp_path / "a.parquet"], tmp_path / "out")
    assert (document["time"]["unit"], document["future"]) == ("ms", 1)
    assert document["time"]["first_utc"] == "1969-12-31T00:00:00+00:00"


def test_small_integers_are_no_epoch(tmp_path):
    document = build(write_log(tmp_path, [[(0, 1, n, 0.0, "") for n in range(9)]]), tmp_path / "out")
    assert (document["time"]["unit"], document["future"]) == (None, None)
