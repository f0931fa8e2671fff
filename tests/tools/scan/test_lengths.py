"""Files of a command and the lengths of their list columns, against what Python lists say."""

import collections
import functools
import itertools
import json

import compact_thrift as thrift
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from footers import change_page
from hypothesis import given
from hypothesis import strategies as st
from tools_kit import damage, ragged
from tools_kit import write as write_file

from freescale_tools.console.errors import UsageError
from freescale_tools.profile.measure import Columns, full, quick
from freescale_tools.scan import rows as scan_rows
from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.columns import bind, leaf
from freescale_tools.scan.engines import Threads
from freescale_tools.scan.files import open_files
from freescale_tools.scan.lengths import kept_runs
from freescale_tools.scan.times import even_edges
from fsdata.catalog.footers import open_file
from fsdata.catalog.remote_file import RemoteFile
from fsdata.catalog.retry import Retrying

readinto = RemoteFile.readinto
ROWS = [[1, 2, 3], [], None, [4], [5, None], [7] * 12]


def write(path, rows, *, kind=None, group=2, column="items", **more):
    items = rows if isinstance(rows, pa.Array) else pa.array(rows, kind or pa.list_(pa.int64()))
    return write_file(path, {column: items, **more}, group=group)


def profiled(paths, column="items", *, way=full, **options):
    names = [str(path) for path in paths]
    found = way(open_files(names), Columns(sequences=(column,), **options), paths=names)
    return found, found["sequences"][column]


def times(kind, *values):
    return pa.array(values, pa.int64()).cast(kind)


def counted(rows):
    return dict(collections.Counter(len(row or ()) for row in rows))


def histogram(found):
    return dict(zip(found["histogram"]["lengths"], found["histogram"]["counts"], strict=True))


def test_readable_files_are_opened_and_others_named(tmp_path):
    write(tmp_path / "day=1" / "a.parquet", [[1], [2], [3]], group=9)
    write(tmp_path / "day=2" / "b.parquet", [[4]])
    (tmp_path / "day=2" / "c.parquet").write_bytes(b"PAR1 and nothing else in it")
    found = open_files([str(tmp_path)])
    assert [footer.file.partitions for footer in found.footers] == [{"day": "1"}, {"day": "2"}]
    assert (found.rows, found.row_groups) == (4, 2)
    assert found.bytes == sum(path.stat().st_size for path in tmp_path.glob("*/[ab].parquet"))
    assert [one.file for one in found.skipped] == ["day=2/c.parquet"]
    assert "no footer" in found.skipped[0].reason
    with pytest.raises(UsageError, match="no such file"):
        open_files([str(tmp_path / "no.parquet")])
    (tmp_path / "c.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"none of 1 files is readable: .*begins with"):
        open_files([str(tmp_path / "*.parquet")])


def test_leaves(tmp_path):
    struct, nested = pa.array([{"a": 1, "b": [1.0]}]), pa.array([[[1]]])
    path = write(tmp_path / "f.parquet", [[1, 2]], user=[1], struct=struct, nested=nested)
    footer = open_files([str(path)]).footers[0]
    items, user, inside = (leaf(footer, name) for name in ("items", "user", "struct.b"))
    assert (user.index, user.is_list) == (1, False)
    assert (items.path, items.is_list) == ("items.list.element", True)
    assert inside.is_list
    assert leaf(footer, "item") == "no column item"
    assert leaf(footer, "struct") == "struct has 2 leaf columns: name one of struct.a, struct.b"
    with pytest.raises(
        UsageError, match=r"column 'struct.c'; .* has items, user, struct.a, struct.b.* Did you mean 'struct.b'"
    ):
        bind(open_files([str(path)]), ["struct.c"])
    assert "lists in lists" in leaf(footer, "nested")


def test_lists_inside_structs_and_of_structs(tmp_path):
    inside = pa.array([{"ids": [1, 2]}, None, {"ids": None}, {"ids": []}])
    _, found = profiled([write(tmp_path / "a.parquet", inside)], "items.ids")
    assert (histogram(found), found["null"], found["empty"]) == ({0: 3, 2: 1}, 2, 1)
    of = pa.array([[{"id": 1}, {"id": None}, None], []], pa.list_(pa.struct([("id", pa.int64())])))
    _, found = profiled([write(tmp_path / "b.parquet", of)])
    assert (histogram(found), found["null_elements"]) == ({0: 1, 3: 1}, 2)
    # A leaf may be named in full, too, and dots may be part of a name.
    _, found = profiled([write(tmp_path / "c.parquet", [[1]])], "items.list.element")
    assert found["events"] == 1
    _, found = profiled([write(tmp_path / "d.parquet", [[1, 2]], column="a.b")], "a.b")
    assert found["events"] == 2


def test_files_without_row_groups(tmp_path):
    pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("items", pa.list_(pa.int64()))])).close()
    for way in (full, quick):
        _, found = profiled([tmp_path], way=way)
        assert (found["rows"], found["events"], found["mean"]) == (0, 0, 0)
        assert [one["file"] for one in found["per_file"]] == ["a.parquet"]
    assert found["histogram"] is None


def test_drift_of_types_between_files_is_fine(tmp_path):
    write(tmp_path / "a.parquet", [[1], [2, 3]], kind=pa.list_(pa.int64()))
    write(tmp_path / "b.parquet", [[1], None], kind=pa.large_list(pa.int32()), extra=[1, 2])
    write(tmp_path / "c.parquet", [[1.5, 2]], kind=pa.list_(pa.float32()))
    write_file(tmp_path / "d.parquet", {"items": [[1]]}, use_compliant_nested_type=False)
    write_file(tmp_path / "e.parquet", {"z": [1], "items": [[1]]})
    document, found = profiled([tmp_path])
    assert (histogram(found), document["skipped"]) == ({0: 1, 1: 4, 2: 2}, [])


@pytest.mark.parametrize(
    ("file", "column", "options", "message"),
    [
        ("[bc]", "items", {}, r"b\.parquet: items is int64, one value per row"),
        ("c", "items", {}, r"c\.parquet: items holds lists in lists"),
        ("a", "items", {"candidates": "items"}, "named twice: items"),
        ("a", "items", {"time": "items"}, "time items is one of the list columns"),
        ("e", "items", {"time": "user"}, "user is double; a time is an integer"),
        ("[af]", "items", {"time": "user"}, "dates in some files and integers in others"),
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path, file, column, options, message):
    write(tmp_path / "a.parquet", [[1], [2, 3]], user=[1, 2])
    write(tmp_path / "b.parquet", [1, 2], kind=pa.int64())
    write(tmp_path / "c.parquet", [[[1]]], kind=pa.list_(pa.list_(pa.int64())))
    write(tmp_path / "e.parquet", [[1]], user=[1.5])
    write(tmp_path / "f.parquet", [[1]], user=times(pa.timestamp("us"), 5))
    with pytest.raises(UsageError, match=message):
        profiled([tmp_path / f"{file}.parquet"], column, **options)


lists = st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=6), max_size=40)


@given(files=st.lists(lists, min_size=1, max_size=3), group=st.integers(1, 9), threads=st.integers(1, 3))
def test_any_rows_in_any_row_groups(tmp_path_factory, files, group, threads):
    folder = tmp_path_factory.mktemp("any")
    paths = [write(folder / f"{n}.parquet", rows, group=group) for n, rows in enumerate(files)]
    rows = [row for file in files for row in file]
    _, found = profiled(paths, way=functools.partial(full, engine=Threads(threads)))
    assert histogram(found) == counted(rows)
    assert (found["rows"], found["max"]) == (len(rows), max(counted(rows), default=0))
    assert found["events"] == sum(length * count for length, count in counted(rows).items())
    assert found["null"] == sum(row is None for row in rows)
    assert found["empty"] == sum(row == [] for row in rows)
    assert found["null_elements"] == sum(x is None for row in rows if row for x in row)
    placed = [(-len(row or ()), n, place) for n, file in enumerate(files) for place, row in enumerate(file) if row]
    assert [(-one["length"], int(one["file"][0]), one["row"]) for one in found["longest"]] == sorted(placed)[:10]
    assert found["per_file"] == [
        {"file": f"{n}.parquet", "rows": len(file), "events": events, "mean": events / len(file) if file else 0.0}
        for n, file in enumerate(files)
        for events in [sum(len(row or ()) for row in file)]
    ]
    _, known = profiled(paths, way=quick)
    assert known["events"] == found["events"] - found["null_elements"]
    assert (known["rows"], known["events_are"]) == (found["rows"], "exact")


def test_many_row_groups_and_rows_and_large_chunks(tmp_path):
    """More than is decoded, counted or merged at a time, and a chunk that is not read at once; lists of a fixed size
    and pages of brotli are left to pyarrow."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 3, 1_100_000)
    items = ragged(sizes, np.zeros(sizes.sum(), np.int8))
    table = {"items": items, "when": np.arange(len(sizes))}
    write_file(tmp_path / "a.parquet", table, group=8300, compression="brotli")
    _, found = profiled([tmp_path / "a.parquet"], time="when", way=functools.partial(full, engine=Threads(1)))
    assert histogram(found) == dict(enumerate(np.bincount(sizes).tolist()))
    assert [one["row"] for one in found["longest"]] == np.flatnonzero(sizes == 2)[:10].tolist()
    assert [one["mean"] for one in found["drift"]] == sizes.reshape(20, -1).mean(1).tolist()
    wide = pa.FixedSizeListArray.from_arrays(rng.integers(0, 1 << 62, 2_200_000), 100)
    write_file(tmp_path / "b.parquet", {"items": wide}, compression="none", use_dictionary=False)
    _, found = profiled([tmp_path / "b.parquet"])
    assert (histogram(found), found["null"]) == ({100: 22_000}, 0)


def test_footers_without_statistics_give_an_upper_bound(tmp_path):
    write_file(tmp_path / "a.parquet", {"items": ROWS}, write_statistics=False)
    _, found = profiled([tmp_path / "a.parquet"], way=quick)
    assert (found["events_are"], found["row_groups_without_statistics"]) == ("upper bound", 1)
    assert found["events"] == 20  # 18, and one each for the null and the empty list
    assert found["histogram"] is found["quantiles"] is found["max"] is found["longest"] is found["drift"] is None


DAY = 86_400
TIMES = {
    "integers": (lambda days: pa.array(days, pa.int64()), 0),
    "timestamps": (lambda days: times(pa.timestamp("s"), *[d * DAY for d in days]), "1970-01-01T00:00:00"),
    "timestamps with a zone": (
        lambda days: times(pa.timestamp("ns", "Europe/Berlin"), *[d * DAY * 10**9 for d in days]),
        "1970-01-01T00:00:00",
    ),
    "dates": (lambda days: pa.array(days, pa.int32()).cast(pa.date32()), "1970-01-01T00:00:00"),
}


@pytest.mark.parametrize(("make", "first"), TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("statistics", [True, False])
def test_drift_over_time(tmp_path, make, first, statistics):
    rows = pa.array([[1] * (day // 10) for day in range(100)], pa.list_(pa.int64()))
    table = {"items": rows, "when": make(list(range(100)))}
    write_file(tmp_path / "a.parquet", table, group=10, write_statistics=statistics)
    _, found = profiled([tmp_path / "a.parquet"], time="when")
    drift = found["drift"]
    assert len(drift) == 20
    assert [one["rows"] for one in drift] == [5] * 20
    assert [one["mean"] for one in drift] == [day // 10 for day in range(0, 100, 5)]
    assert [one["p95"] for one in drift] == [one["p50"] for one in drift]
    assert drift[0]["from"] == first
    assert all(one["to"] == after["from"] for one, after in itertools.pairwise(drift))


def test_rows_without_a_time_are_left_out_of_drift(tmp_path):
    write(tmp_path / "a.parquet", [[1], [2, 2], [3, 3, 3]], when=pa.array([5, None, 6]))
    write(tmp_path / "b.parquet", [[4] * 4])
    write(tmp_path / "c.parquet", [[4] * 4], when=pa.array([None], pa.int64()))
    document, found = profiled([tmp_path], time="when")
    assert found["rows"] == 5
    assert [(one["from"], one["to"], one["rows"], one["mean"]) for one in found["drift"]] == [
        (5, 6, 1, 1),
        (6, 7, 1, 3),
    ]
    assert [(one["file"], one["reason"]) for one in document["skipped"]] == [("b.parquet", "no column when")]


def test_edges_hold_equally_many_rows():
    assert even_edges([(0, 9, 10), (10, 19, 30)], 4).tolist() == [0, 10, 13, 17, 20]
    # One row group with a time far off does not move all others into one span.
    outlier = even_edges([*((n, n, 10) for n in range(100)), (50, 10**9, 10)], 20)
    assert outlier[-1] == 10**9 + 1
    assert (np.diff(outlier[:-1]) <= 7).all()
    assert even_edges([(7, 7, 3)], 20).tolist() == [7, 8]
    assert even_edges([], 20).tolist() == [0, 1]


def test_damaged_row_groups_are_left_out_and_named(tmp_path):
    rows = [[n] * n for n in range(40)]
    for name in "ab":
        write(tmp_path / f"{name}.parquet", rows, group=10, user=list(range(40)))
    damage(tmp_path / "a.parquet", 2)
    document, found = profiled([tmp_path], time="user")
    (skipped,) = document["skipped"]
    assert (skipped["file"], skipped["row_group"], skipped["rows"]) == ("a.parquet", 2, 10)
    assert skipped["reason"]
    assert histogram(found) == counted([*rows, *rows[:20], *rows[30:]])
    assert found["longest"][0] == {"file": "a.parquet", "row": 39, "length": 39}
    assert [one["rows"] for one in found["per_file"]] == [30, 40]
    lengths = [*range(20), *range(30, 40), *range(40)]
    assert kept(document) == ([[10] * 7], {"sequence": lengths}), "as they are dealt: without the damaged ones"
    assert sum(one["rows"] for one in found["drift"]) == 70


def test_remote_files_that_fail_now_and_then(tmp_path, monkeypatch):
    system = fsspec.filesystem("memory")
    for name in "ab":
        write(tmp_path / f"{name}.parquet", [[1], [2, 3]])
        system.pipe(f"/lengths/{name}.parquet", (tmp_path / f"{name}.parquet").read_bytes())
    try:
        files = open_files(["memory://lengths/*.parquet"])
        opened = []

        def flaky(file):
            opened.append(file.name)
            if opened.count(file.name) == 1 or file.name == "b.parquet":
                raise TimeoutError("no answer")
            return open_file(file)

        monkeypatch.setattr(scan_rows, "open_file", flaky)
        monkeypatch.setattr(scan_rows, "Retrying", lambda: Retrying(sleep=lambda _: None))
        document = full(files, Columns(sequences=("items",)), paths=[])
    finally:
        system.rm("/lengths", recursive=True)
    assert (document["sequences"]["items"]["rows"], document["sequences"]["items"]["events"]) == (2, 3)
    assert [(one["file"], one["rows"]) for one in document["skipped"]] == [("b.parquet", 2)]
    assert "cannot be read after 5 tries" in document["skipped"][0]["reason"]


def test_files_that_are_gone_or_replaced_are_named(tmp_path):
    write(tmp_path / "a.parquet", [[1], [2, 3]])
    gone, replaced = (write(tmp_path / f"{name}.parquet", [[1]] * 20, group=20) for name in "bc")
    files = open_files([str(tmp_path)])
    gone.unlink()
    write(replaced, [[1, 2]] * 20, group=20)
    found = full(files, Columns(sequences=("items",)), paths=[], engine=Threads(2))
    lost, changed = found["skipped"]
    assert (lost["file"], lost["row_group"], lost["rows"]) == ("b.parquet", None, 20)
    assert "no such file" in lost["reason"]
    assert (changed["file"], changed["row_group"], changed["rows"]) == ("c.parquet", 0, 20)
    assert "replaced while in use" in changed["reason"]
    assert found["sequences"]["items"]["rows"] == 2


def test_a_page_header_cannot_ask_for_more_than_the_file_has(tmp_path):
    path = write(tmp_path / "a.parquet", [[n] * 3 for n in range(200)], group=200)
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    change_page(path, at, lambda header: header.put(3, thrift.I32, 2**31 - 100))
    before = pa.default_memory_pool().max_memory()
    document, _ = profiled([path])
    assert [(one["row_group"], one["rows"]) for one in document["skipped"]] == [(0, 200)]
    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def test_of_a_large_remote_chunk_some_bytes_are_in_memory_at_a_time(tmp_path, monkeypatch):
    rows = [[n] * (n % 300) for n in range(3000)]
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 30_000}
    path = write_file(tmp_path / "a.parquet", {"items": rows}, **options)
    asked = []

    def counting(remote, memory):
        asked.append(len(memory))
        return readinto(remote, memory)

    system = fsspec.filesystem("memory")
    system.pipe("/large/a.parquet", path.read_bytes())
    monkeypatch.setattr(scan_rows, "_REQUEST_BYTES", 10_000)
    monkeypatch.setattr(RemoteFile, "readinto", counting)
    try:
        document, found = profiled(["memory://large/a.parquet"])
    finally:
        system.rm("/large", recursive=True)
    assert (document["skipped"], histogram(found)) == ([], counted(rows))
    assert max(asked) < path.stat().st_size / 100
    assert len(asked) < 400


def kept(document):
    found = RowsInOrder.from_dict(document["in_order"])
    return [list(run) for run in found.units], {name: of.tolist() for name, of in found.lengths.items()}


def test_lengths_are_kept_in_the_order_of_the_rows(tmp_path):
    """Candidates beside them, where every row group has some; the other sequences are not kept."""
    first = write(tmp_path / "a.parquet", ROWS, shown=[[1]] * 6, more=[[1, 1]] * 6)
    second = write(tmp_path / "b.parquet", [[9] * 3, []], shown=[[1], [2, 2]], more=[[1]] * 2)
    options = {"sequences": ("items", "more"), "candidates": "shown"}
    paths = [str(first), str(second)]
    document = full(open_files(paths), Columns(**options), paths=paths)
    lengths = [3, 0, 0, 1, 2, 12, 3, 0]
    assert kept(document) == ([[2, 2, 2, 2]], {"sequence": lengths, "candidates": [1] * 7 + [2]})
    third = str(write(tmp_path / "c.parquet", [[5]]))
    document = full(open_files([*paths, third]), Columns(**options), paths=paths)
    assert kept(document) == ([[2, 2, 2, 2, 1]], {"sequence": [*lengths, 1]}), "candidates are drawn apart"


def test_of_many_rows_stretches_are_kept(tmp_path):
    files = open_files([str(write(tmp_path / f"{name}.parquet", [[1]] * 400, group=5)) for name in "abc"])
    (whole,) = kept_runs(files, most=1_200)
    assert len(whole) == 240
    runs = kept_runs(files, most=240)
    assert [len(run) for run in runs] == [6] * 8, "eight stretches of 30 rows"
    for number, run in enumerate(runs):
        begin = whole.index(run[0])
        assert begin == 30 * number
        assert run == whole[begin : begin + 6], "consecutive row groups"


def test_rows_in_order_go_through_json():
    rows = RowsInOrder(units=((2, 1), (4,)), lengths={"sequence": np.array([1, 0, 2**32 - 1, 5, 6, 7, 8], np.uint32)})
    document = json.loads(json.dumps(rows.to_dict()))
    again = RowsInOrder.from_dict(document)
    assert again.units == rows.units
    assert again.lengths["sequence"].tolist() == rows.lengths["sequence"].tolist()
    for damaged in ("AAAA", document["lengths"]["sequence"][:-8], "?"):
        with pytest.raises(ValueError, match="the lengths of sequence are damaged"):
            RowsInOrder.from_dict({**document, "lengths": {"sequence": damaged}})
    with pytest.raises(ValueError, match="7 rows instead of 9"):
        RowsInOrder.from_dict({**document, "units": [[9]]})
