"""Windows of requests against a search through all events, and the lengths that are counted of them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_once_data import Samples, opened
from tools_kit import damage, write

from freescale_tools.console.errors import UsageError
from freescale_tools.profile.measure import Columns, full
from freescale_tools.scan.engines import Threads
from freescale_tools.scan.files import open_files

WINDOWS = {"seed": st.integers(0, 10**6), "files": st.integers(1, 3), "group": st.integers(1, 40)}


@given(**WINDOWS)
def test_windows_are_what_happened_before(tmp_path_factory, seed, files, group):
    folder = tmp_path_factory.mktemp("windows")
    samples = Samples.drawn(seed, requests=60)
    samples.write(folder, files=files, group=group)
    found, times = [], []
    with opened(folder) as requests:
        events = requests.values("item").tolist()
        assert (requests.keys, requests.events) == (len(samples.histories), len(events))
        for file, footer in enumerate(requests.files.footers):
            for number, rows in enumerate(footer.row_groups):
                seen = requests.windows(file, number, rows)
                found += [events[at : at + size] for at, size in zip(seen.place, seen.length, strict=True)]
                times += seen.time.tolist()
                half = requests.windows(file, number, (rows + 1) // 2)
                assert half.length.tolist() == seen.length[: (rows + 1) // 2].tolist()
                assert half.time.tolist() == seen.time[: (rows + 1) // 2].tolist()
    assert found == samples.windows
    assert times == [at for _, at in samples.requests]


@given(calendar=st.booleans(), threads=st.integers(1, 3), **WINDOWS)
def test_lengths_are_those_of_the_same_samples_in_rows(tmp_path_factory, seed, files, group, calendar, threads):
    folder = tmp_path_factory.mktemp("lengths")
    samples = Samples.drawn(seed)
    samples.write(folder, files=files, group=group, time=pa.timestamp("ms") if calendar else None)
    columns = Columns(sequences=("item",), candidates="shown", time="at")
    rows = full(open_files([str(folder / "rows")]), columns, paths=["x"])
    lists = ("item", "price", "when")
    with opened(folder, *lists) as requests:
        all_lists = Columns(sequences=lists, candidates="shown", time="at")
        found = full(requests.files, all_lists, paths=["x"], engine=Threads(threads), requests=requests)
    assert found["sequences"] == dict.fromkeys(lists, rows["sequences"]["item"])
    assert found["candidates"] == rows["candidates"]
    for same in ("files", "rows", "row_groups", "skipped"):
        assert found[same] == rows[same]
    assert rows["histories"] is None
    assert found["histories"]["events"] == sum(len(items) for _, items in samples.histories.values())
    lengths = sorted(map(len, samples.windows))
    item = found["sequences"]["item"]
    assert (item["events"], item["max"], item["empty"]) == (sum(lengths), lengths[-1], lengths.count(0))


def test_a_damaged_row_group_is_left_out_and_named(tmp_path):
    samples = Samples.drawn(3, requests=40)
    samples.write(tmp_path, files=2, group=5)
    damage(tmp_path / "requests" / "1.parquet", 2, 0, 1, 2)
    (tmp_path / "requests" / "2.parquet").write_bytes(b"PAR1 and no more")
    columns = Columns(sequences=("item",), candidates="shown")
    with opened(tmp_path) as requests:
        document = full(requests.files, columns, paths=["x"], requests=requests)
    assert [(one["file"], one["row_group"], one["rows"]) for one in document["skipped"]] == [
        ("2.parquet", None, 0),
        ("1.parquet", 2, 5),
    ]
    kept = samples.windows[:30] + samples.windows[35:]
    assert document["sequences"]["item"]["rows"] == 35
    assert document["sequences"]["item"]["events"] == sum(map(len, kept))
    assert [one["rows"] for one in document["sequences"]["item"]["per_file"]] == [20, 15]


@pytest.mark.parametrize(
    ("names", "lists", "message"),
    [
        ({"on": "uid"}, [], "uid"),
        ({"time": "ts"}, [], "ts"),
        ({"event_time": "ts"}, [], "ts"),
        ({"time": "day"}, [], "Bring one to the other with an expression"),
        ({"on": "name"}, [], "text is never turned into numbers"),
        ({}, ["itms"], "no file has a column 'itms'; .*has user, when, item"),
        ({}, ["user"], "user is int64, one value per row"),
    ],
)
def test_what_a_loader_refuses_is_refused(tmp_path, names, lists, message):
    Samples.drawn(1, requests=20).write(tmp_path, files=1)
    for name in ("requests", "histories"):
        path = tmp_path / name / "0.parquet"
        table = pq.read_table(path)
        table = table.append_column("name", pa.array(["a"] * len(table)))
        write(path, table.append_column("day", pa.array([1] * len(table), pa.timestamp("s"))))
    with pytest.raises(UsageError, match=message), opened(tmp_path, *lists, **names):
        pass


def test_requests_without_a_time_and_histories_that_a_loader_refuses_are_refused(tmp_path):
    Samples.drawn(1, requests=20).write(tmp_path / "null", files=1, group=5)
    path = tmp_path / "null" / "requests" / "0.parquet"
    table = pq.read_table(path)
    times = table["at"].to_pylist()
    write(path, table.set_column(1, "at", pa.array([*times[:7], None, *times[8:]])), group=5)
    columns, message = Columns(sequences=("item",)), r"0\.parquet, row group 1, row 2: at is null"
    with opened(tmp_path / "null") as requests, pytest.raises(UsageError, match=message):
        full(requests.files, columns, paths=["x"], requests=requests)
    samples = Samples(requests=[(1, 5)], histories={1: ([3, 2], [4, 4])})
    samples.write(tmp_path / "order", files=1)
    message = r"the history of user 1 is not ascending"
    with pytest.raises(UsageError, match=message), opened(tmp_path / "order"):
        pass
