"""Tables of histories against plain Python: order, ties, buckets, parts, updates, types and row groups."""

import datetime
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_logs import FIELDS, LOGS, SCHEMA, bucket_of, build, reference, tables, write_events, write_log
from hypothesis import example, given
from hypothesis import strategies as st
from tools_kit import write

from freescale_tools.write.histories.build import MOST_PARTS, buckets_of, parts_wanted, plan_parts

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
@example(files=[[]], more=[[(1, 7, 2, None, "x")]], buckets=2, part_bytes=60)
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
    """Tables on disk depend on them, and the width of a key does not count."""
    for kind in (np.int64, np.int16, np.uint64, np.uint8):
        wrapped = np.array(keys, np.int64).astype(kind)
        assert buckets_of(wrapped, buckets).tolist() == [bucket_of(key, buckets) for key in wrapped.tolist()]


def of_type(kind, values):
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array(values, width).cast(kind)


@pytest.mark.parametrize(
    ("key", "time"),
    [(pa.int8(), pa.uint64()), (pa.uint16(), pa.timestamp("ns", "UTC")), (pa.int64(), pa.date32())],
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
    write(tmp_path / "a.parquet", events)
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


def test_fields_are_chosen_keep_their_order_and_come_in_any_order_in_an_update(tmp_path):
    path = write_events(tmp_path / "a.parquet", [(1, 7, 2, None, "x"), (2, 7, 1, None, "y")])
    build([path], tmp_path / "some", fields=("word", "item"))
    (table,) = tables(tmp_path / "some")
    assert table.to_pydict() == {"user": [7], "ts": [[1, 2]], "word": [["y", "x"]], "item": [[2, 1]]}
    build([path], tmp_path / "all")
    assert tables(tmp_path / "all")[0].schema.names == ["user", "ts", *FIELDS]
    turned = pa.schema([SCHEMA.field(name) for name in ["word", "ts", "price", "user", "item"]])
    second = write_events(tmp_path / "b.parquet", [("z", 0, 0.5, 7, 3)], turned)
    assert build([second], tmp_path / "all", update=True)["fields"] == FIELDS
    (row,) = tables(tmp_path / "all")[0].to_pylist()
    assert row == {
        "user": 7, "ts": [0, 1, 2], "item": [3, 2, 1], "price": [0.5, None, None], "word": ["z", "y", "x"],
    }  # fmt: skip


def test_row_groups_end_before_they_are_large(tmp_path):
    """At 2^20 events, or at 65,536 users, unless one history alone is longer."""
    lengths = np.ones(140_000, np.int64)
    lengths[70_000:70_007] = [400_000, 1_200_000, 3, 300_000, 300_000, 300_000, 300_000]
    users = np.random.default_rng(0).permutation(np.repeat(np.arange(140_000), lengths))
    build([write(tmp_path / "a.parquet", {"user": users, "ts": np.zeros(len(users), np.int8)})], tmp_path / "out")
    with pq.ParquetFile(next((tmp_path / "out").iterdir())) as file:
        groups = [file.read_row_group(n)["ts"] for n in range(file.num_row_groups)]
    found = [group.combine_chunks().value_lengths().to_numpy() for group in groups]
    assert np.array_equal(np.concatenate(found), lengths)
    assert [(len(each), int(each.sum())) for each in found] == [
        (65_536, 65_536), (4_465, 404_464), (1, 1_200_000), (4, 900_003), (65_536, 365_535), (4_458, 4_458),
    ]  # fmt: skip


def test_parts_are_even_consecutive_pieces_of_the_table():
    rng = np.random.default_rng(1)
    keys = rng.integers(-(2**40), 2**40, 20_000)
    for buckets, wanted in [(1, 7), (3, 8), (8, 8), (50, 8), (1000, 1)]:
        parts = plan_parts(wanted, buckets, keys[:2000])
        of = parts.of(keys)
        order = np.lexsort((keys, buckets_of(keys, buckets)))
        assert (np.diff(of[order].astype(int)) >= 0).all()
        assert of.max() < parts.count <= max(2 * wanted, buckets)
        assert np.bincount(of, minlength=parts.count).max() < 2 * len(keys) / parts.count
        assert parts.groups == min(buckets, wanted)
    assert [parts_wanted(events, 20.0, 100) for events in (0, 10, 11, 10**9)] == [1, 2, 3, MOST_PARTS]


@pytest.mark.parametrize("part_bytes", [100, 1 << 20])
def test_statistics_are_those_of_the_table(tmp_path, part_bytes):
    now = int(datetime.datetime.now().timestamp())
    times = {1: [now - 9, now - 9, now - 9, now - 5], 2: [now - 9], 3: [now + 1000, now + 1000, now - 9]}
    rows = [(0, user, ts, 0.0, "") for user in times for ts in times[user]]
    document = build(write_log(tmp_path, [rows[:3], rows[3:]]), tmp_path / "out", part_bytes=part_bytes)
    assert (document["events"], document["users"], document["new_events"]) == (8, 3, None)
    assert document["lengths"] == {"mean": 8 / 3, "p50": 3, "p99": 4, "max": 4}
    assert document["ties"] == {"events": 3, "share": 3 / 8}
    assert (document["time"]["first"], document["time"]["last"]) == (now - 9, now + 1000)
    at = datetime.datetime.fromtimestamp(now - 9, datetime.UTC)
    assert document["time"]["first_utc"] == at.isoformat()
    assert document["future"] == 2
    assert document["seconds"] > 0


def test_events_of_the_future_are_counted_in_every_unit(tmp_path):
    """Timestamps have a unit however far they are, from 1969 to 5138, and small integers have none."""
    now = datetime.datetime.now().timestamp()

    def times(kind, per_second):
        return of_type(kind, [int((now + days * 86_400) * per_second) for days in (-9, -2, -1, 2, 3)])

    columns = {
        "s": times(pa.int32(), 1),
        "us": times(pa.int64(), 10**6),
        "ms": times(pa.timestamp("ms", "UTC"), 10**3),
        "days": times(pa.date32(), 1 / 86_400),
        "far": of_type(pa.timestamp("ms"), [-86_400_000, 0, 1, 10**14, 10**14]),
        "none": range(5),
    }
    path = write(tmp_path / "a.parquet", {"user": range(5), **columns})
    units = {"far": ("ms", 2), "none": (None, None)}
    for name in columns:
        document = build([path], tmp_path / name, time=name)
        assert (document["time"]["unit"], document["future"]) == units.get(name, (name, 2))
        if name == "far":
            assert document["time"]["first_utc"] == "1969-12-31T00:00:00+00:00"
