"""Rewriting files: layout, equality value by value, resuming, and what ends it early."""

import json

import fsspec
import numpy as np
import parquet
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.scan.reading import reading_written
from freescale_tools.write.optimize import rewrite as rewriting
from freescale_tools.write.optimize.compare import unequal_row
from freescale_tools.write.optimize.layout import Settings
from freescale_tools.write.optimize.rewrite import jobs, optimize_all
from fsdata import ParquetSource, Schema, Sequence
from fsdata.errors import CorruptFileError

COMMAND = "optimize"

NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]


class Silent:
    """Keeps what it is told."""

    def __init__(self):
        self.rows = self.bytes = 0

    def advance(self, *, rows=0, bytes=0):
        self.rows += rows
        self.bytes += bytes


def odd_table(rows=60):
    """Every kind of column, with nulls in some of them."""
    rng = np.random.default_rng(0)
    numbers = list(range(rows))
    return pa.table(
        {
            "key": pa.array([(7 * n) % 10 for n in numbers], pa.int32()),
            "time": pa.array([1_000_000 * n for n in numbers], pa.timestamp("us", "UTC")),
            "ids": pa.array([list(range(n % 5)) for n in numbers], pa.list_(pa.int64())),
            "some": pa.array([None if n % 7 == 0 else [n, None] for n in numbers], pa.large_list(pa.int16())),
            "price": pa.array([[1.5, NAN, -0.0, OTHER_NAN][: n % 5] for n in numbers], pa.list_(pa.float64())),
            "score": pa.array([None if n == 3 else NAN if n == 4 else n / 3 for n in numbers], pa.float32()),
            "pair": pa.array([[n, -n] for n in numbers], pa.list_(pa.int32(), 2)),
            "word": pa.array([f"w{n % 3}" for n in numbers]).dictionary_encode(),
            "flag": pa.array(rng.random(rows) < 0.5),
            "map": pa.array([[("a", NAN)] if n % 2 else None for n in numbers], pa.map_(pa.string(), pa.float64())),
            "s": pa.array([None if n == 9 else {"x": n, "y": [None, "t"]} for n in numbers]),
            "whole": pa.array([{"x": n, "y": n if n % 2 else None} for n in numbers]),
            "void": pa.nulls(rows),
        },
        metadata={"owner": "somebody"},
    )


def write(path, table, *, group=17, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group, **options)
    return path


def rewrite(source, out, **settings):
    """Documents and findings of one run."""
    told, files, chosen = [], open_files([str(source)]), Settings(**settings)
    done = optimize_all(jobs(files, out, chosen), chosen, Silent(), told.append)
    return done, told


def same(one, other):
    assert one.num_rows == other.num_rows
    for name in one.schema.names:
        left, right = one[name].combine_chunks(), other[name].combine_chunks()
        if left.type != right.type:
            left = left.cast(right.type)
        assert unequal_row(left, right) is None, name


def test_every_value_null_and_order_is_kept(tmp_path):
    table = odd_table()
    write(tmp_path / "in" / "a.parquet", table)
    (document,), told = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=25)
    assert (told, document["status"], document["rows"]) == ([], "written", 60)
    path = tmp_path / "out" / "a.parquet"
    back = pq.read_table(path, page_checksum_verification=True)
    assert back.num_rows == 60
    for name in set(table.schema.names) - {"price", "score", "map"}:  # those hold NaN, which never equals itself
        assert back[name].to_pylist() == table[name].to_pylist(), name
    bits = [np.frombuffer(one["price"].combine_chunks().values.buffers()[1], np.uint64) for one in (table, back)]
    np.testing.assert_array_equal(*(one[: len(table["price"].combine_chunks().values)] for one in bits))
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(3)] == [25, 25, 10]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.metadata[b"owner"] == b"somebody"


def test_only_what_has_no_null_becomes_required(tmp_path):
    write(tmp_path / "in" / "a.parquet", odd_table())
    (document,), _ = rewrite(tmp_path / "in", tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "a.parquet")
    required = {field.name for field in schema if not field.nullable}
    assert required == {"key", "time", "ids", "price", "pair", "word", "flag", "whole"}
    assert not schema.field("ids").type.value_field.nullable
    assert not schema.field("price").type.value_field.nullable
    assert schema.field("some").type.value_field.nullable
    assert [field.nullable for field in schema.field("s").type] == [True, True]
    assert [field.nullable for field in schema.field("whole").type] == [False, True]
    assert "ids.element" in document["required"]
    assert "some.element" not in document["required"]


def test_a_null_in_the_last_row_keeps_a_column_nullable(tmp_path):
    lists = [[1]] * 99 + [[None]]
    write(tmp_path / "in" / "a.parquet", pa.table({"x": pa.array(lists), "y": pa.array([1] * 99 + [None])}), group=10)
    rewrite(tmp_path / "in", tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "a.parquet")
    assert not schema.field("x").nullable
    assert schema.field("x").type.value_field.nullable
    assert schema.field("y").nullable


def test_rows_are_sorted_inside_their_file(tmp_path):
    table = odd_table()
    write(tmp_path / "in" / "a.parquet", table)
    _, told = rewrite(tmp_path / "in", tmp_path / "out", sort="key", row_group_rows=16)
    assert told == []
    back = pq.read_table(tmp_path / "out" / "a.parquet")
    order = sorted(range(60), key=lambda n: table["key"][n].as_py())  # ties as they stand
    assert back["time"].to_pylist() == [table["time"][n].as_py() for n in order]
    assert back["some"].to_pylist() == [table["some"][n].as_py() for n in order]
    same(back, table.take(order))


def test_large_files_are_sorted_only_if_they_are_so_already(tmp_path, monkeypatch):
    monkeypatch.setattr(rewriting, "LARGEST_SORTED", 100)
    write(tmp_path / "in" / "a.parquet", odd_table())
    with pytest.raises(UsageError, match=r"a\.parquet is not in order of key .*Split it into smaller files"):
        rewrite(tmp_path / "in", tmp_path / "out", sort="key")
    rewrite(tmp_path / "in", tmp_path / "out", sort="time")
    assert pq.read_metadata(tmp_path / "out" / "a.parquet").num_rows == 60


def test_files_that_cannot_be_rewritten_are_named(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.parquet", pa.table({"x": [1, None]}))
    write(tmp_path / "in" / "b.parquet", pa.table({"x": [1, 2]}))
    monkeypatch.setattr(rewriting, "without_nulls", lambda footer: {"x"})  # statistics that lie
    (first, second), told = rewrite(tmp_path / "in", tmp_path / "out")
    assert (first["status"], second["status"]) == ("failed", "written")
    assert "a.parquet cannot be rewritten: Column 'x' is declared non-nullable but contains nulls" in told[0]
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    write(tmp_path / "twice" / "a.parquet", twice)
    with pytest.raises(UsageError, match="two columns of the same name"):
        rewrite(tmp_path / "twice", tmp_path / "out2")


def test_folders_and_partitions_are_kept(tmp_path):
    for name in ("day=1/a", "day=1/b", "day=2/a"):
        write(tmp_path / "in" / f"{name}.parquet", pa.table({"x": [1, 2]}))
    rewrite(tmp_path / "in", tmp_path / "out")
    rewrite(tmp_path / "in" / "day=1", tmp_path / "other")
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("o*/**/*.parquet")}
    assert found == {
        "out/day=1/a.parquet", "out/day=1/b.parquet", "out/day=2/a.parquet", "other/day=1/a.parquet",
        "other/day=1/b.parquet",
    }  # fmt: skip


def test_a_second_run_keeps_what_is_done_and_replaces_what_has_changed(tmp_path):
    source = write(tmp_path / "in" / "a.parquet", odd_table())
    rewrite(tmp_path / "in", tmp_path / "out")
    target = tmp_path / "out" / "a.parquet"
    stamp = target.stat().st_mtime_ns
    (document,), _ = rewrite(tmp_path / "in", tmp_path / "out")
    assert (document["status"], target.stat().st_mtime_ns) == ("kept", stamp)
    (document,), _ = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=30)
    assert (document["status"], document["row_groups"]["after"]) == ("written", 2)
    write(source, odd_table(40))
    (document,), _ = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=30)
    assert document["status"] == "written"
    assert pq.read_metadata(target).num_rows == 40


def test_a_run_that_is_interrupted_leaves_no_half_file_and_is_resumed(tmp_path):
    for name in "abc":
        write(tmp_path / "in" / f"{name}.parquet", odd_table())
    files, settings = open_files([str(tmp_path / "in")]), Settings(row_group_rows=20)
    todo = jobs(files, tmp_path / "out", settings)

    class Interrupts(Silent):
        def advance(self, *, rows=0, bytes=0):
            super().advance(rows=rows, bytes=bytes)
            if self.bytes > files.bytes * 0.4:  # while the second file is written
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimize_all(todo, settings, Interrupts(), print)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.parquet"]
    again = Silent()
    done = optimize_all(todo, settings, again, print)
    assert [one["status"] for one in done] == ["kept", "written", "written"]
    assert again.rows == 180
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.parquet", "b.parquet", "c.parquet"]


def changed(table, name, row):
    values = table[name].to_pylist()
    values[row] = values[row] + 1 if not isinstance(values[row], list) else [*values[row][:-1], values[row][-1] + 1]
    field = table.schema.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


@pytest.mark.parametrize(("column", "row"), [("key", 59), ("ids", 41), ("score", 17), ("pair", 0)])
def test_one_changed_value_is_found(tmp_path, monkeypatch, column, row):
    write(tmp_path / "in" / "a.parquet", odd_table())
    honest = rewriting.write

    def forging(footer, path, layout, order, tell):
        honest(footer, path, layout, order, tell)
        forged = changed(pq.read_table(path), column, row).replace_schema_metadata(layout.schema.metadata)
        pq.write_table(forged.cast(layout.schema), path, row_group_size=layout.rows)

    monkeypatch.setattr(rewriting, "write", forging)
    (document,), told = rewrite(tmp_path / "in", tmp_path / "out")
    assert document["status"] == "failed"
    assert f"not rewritten faithfully: row {row}, column {column}:" in told[0]
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_written_is_compared_with_its_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": np.arange(99)}), path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 200] ^= 1  # a value, still a valid page
    path.write_bytes(content)
    with reading_written(path) as reading, pytest.raises(CorruptFileError, match=r"a\.parquet, row group 0: .*CRC"):
        list(reading.batches())


def test_lost_rows_are_found(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.parquet", odd_table())
    honest = rewriting._units
    monkeypatch.setattr(rewriting, "_units", lambda batches, layout: list(honest(batches, layout))[:-1])
    _, told = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=20)
    assert "row 40" in told[0]


def test_damaged_inputs_are_named_and_the_others_written(tmp_path):
    broken = write(
        tmp_path / "in" / "a.parquet", pa.table({"x": np.arange(4_000)}), group=1_000, write_page_checksum=True
    )
    write(tmp_path / "in" / "b.parquet", odd_table())
    content = bytearray(broken.read_bytes())
    place = pq.read_metadata(broken).row_group(2).column(0).dictionary_page_offset
    content[place + 200] ^= 255
    broken.write_bytes(content)
    (first, second), told = rewrite(tmp_path / "in", tmp_path / "out")
    assert (first["status"], second["status"]) == ("failed", "written")
    assert "a.parquet, row group 2: cannot be decoded" in told[0]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.parquet"]


def test_inputs_and_files_of_others_are_never_overwritten(tmp_path):
    source = write(tmp_path / "in" / "a.parquet", odd_table())
    before = source.read_bytes()
    for out in (tmp_path / "in", tmp_path):
        with pytest.raises(UsageError, match="inputs are never overwritten"):
            rewrite(tmp_path / "in", out)
    write(tmp_path / "out" / "a.parquet", pa.table({"mine": [1]}))
    with pytest.raises(UsageError, match="was not written by this command"):
        rewrite(tmp_path / "in", tmp_path / "out")
    assert source.read_bytes() == before


def test_the_loader_reads_the_same_samples(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 40, 500)
    past = {
        "item": pa.array([rng.integers(0, 1 << 40, n).tolist() for n in counts]),
        "at": pa.array([np.cumsum(rng.integers(0, 9, n)).tolist() for n in counts]),
        "price": pa.array([rng.random(n).astype(np.float32).tolist() for n in counts], pa.list_(pa.float32())),
    }
    rest = {"user": pa.array([None if n % 50 == 0 else n for n in range(500)]), "age": rng.random(500)}
    write(tmp_path / "in" / "a.parquet", pa.table({**past, **rest}))
    (document,), _ = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=200)
    assert {"at.list.element", "item.list.element"} <= set(document["delta"])
    schema = Schema(sequences=(Sequence("uih", ("item", "at"), ("price",)),), context=("user",), dense=("age",))
    one, other = (
        parquet.read(ParquetSource(str(tmp_path / name), defaults={"user": 7}), schema) for name in ("in", "out")
    )
    assert len(one) == 500
    assert one == other


def test_remote_files_are_read(tmp_path):
    memory = fsspec.filesystem("memory")
    path = write(tmp_path / "a.parquet", odd_table())
    memory.pipe({"/set/day=1/a.parquet": path.read_bytes(), "/set/day=2/a.parquet": path.read_bytes()})
    done, told = rewrite("memory://set", tmp_path / "out")
    memory.rm("/set", recursive=True)
    assert (told, [one["file"] for one in done]) == ([], ["day=1/a.parquet", "day=2/a.parquet"])
    same(pq.read_table(tmp_path / "out" / "day=2" / "a.parquet", partitioning=None), odd_table())


def test_files_without_rows(tmp_path):
    write(tmp_path / "in" / "a.parquet", odd_table().slice(0, 0))
    (document,), told = rewrite(tmp_path / "in", tmp_path / "out", sort="key")
    assert (told, document["rows"], document["status"]) == ([], 0, "written")
    assert pq.read_schema(tmp_path / "out" / "a.parquet").field("ids").nullable


def test_command(tmp_path, call):
    write(tmp_path / "in" / "a.parquet", odd_table())
    done = call(tmp_path / "in", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["totals"]["rows"] == 60
    assert document["totals"]["decode_s"]["after"] > 0
    assert document["files"][0]["bytes"]["after"] == (tmp_path / "out" / "a.parquet").stat().st_size
    shown = call(tmp_path / "in", "--out", tmp_path / "out")
    assert (shown.exit_code, "kept" in shown.stdout) == (0, True)
    (tmp_path / "in" / "c.parquet").write_bytes(b"PAR1 cut")
    damaged = call(tmp_path / "in", "--out", tmp_path / "out")
    assert (damaged.exit_code, "c.parquet" in damaged.stderr) == (1, True)


def test_an_interrupted_command_says_so_and_leaves_nothing(tmp_path, call, monkeypatch):
    write(tmp_path / "in" / "a.parquet", odd_table())

    def interrupted(*_):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".a.parquet.part"]
        raise KeyboardInterrupt

    monkeypatch.setattr(rewriting, "verify", interrupted)
    done = call(tmp_path / "in", "--out", tmp_path / "out")
    assert (done.exit_code, "interrupted" in done.stderr) == (130, True)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--row-group-rows", "8", "--unit-bytes", "8"], "give one of them"),
        (["--row-group-rows", "0"], "--row-group-rows must be at least 1"),
        (["--unit-bytes", "0"], "--unit-bytes must be at least 1"),
        (["--sort", "nope"], "--sort nope: no such column"),
        (["--sort", "ids"], "--sort ids: it is list"),
    ],
)
def test_bad_usage_is_refused(tmp_path, call, options, message):
    write(tmp_path / "in" / "a.parquet", odd_table())
    done = call(tmp_path / "in", "--out", tmp_path / "out", *options)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()
