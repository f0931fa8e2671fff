"""Rewriting files: layout, equality value by value, resuming, and what ends it early."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tools_kit import answered, damage, ran, refused, write

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.scan.rows import rows_of_file
from freescale_tools.write.optimize import rewrite as rewriting
from freescale_tools.write.optimize.layout import Settings, delta_columns, note_nulls, tightened, unit_rows
from freescale_tools.write.optimize.rewrite import Difference, equal_rows, optimize_all, unequal_row
from fsdata.errors import CorruptFileError

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
            "late": pa.array([*numbers[1:], None]),
            "lates": pa.array([*([[n] for n in numbers[1:]]), [None]]),
        },
        metadata={"owner": "somebody"},
    )


def rewrite(source, out, **settings):
    """Documents and findings of one run."""
    told, files, chosen = [], open_files([str(source)]), Settings(**settings)
    document = optimize_all(files, out, chosen, Silent(), told.append)
    return document["files"], told


def same(one, other):
    assert one.num_rows == other.num_rows
    for name in one.schema.names:
        left, right = one[name].combine_chunks(), other[name].combine_chunks()
        if left.type != right.type:
            left = left.cast(right.type)
        assert unequal_row(left, right) is None, name


def test_every_value_is_kept_and_only_what_has_no_null_becomes_required(tmp_path):
    table = odd_table()
    write(tmp_path / "in" / "a.parquet", table, group=17)
    (document,), told = rewrite(tmp_path / "in", tmp_path / "out", row_group_rows=25)
    assert (told, document["status"], document["rows"]) == ([], "written", 60)
    path = tmp_path / "out" / "a.parquet"
    same(table, pq.read_table(path, page_checksum_verification=True))
    metadata, schema = pq.read_metadata(path), pq.read_schema(path)
    assert [metadata.row_group(i).num_rows for i in range(3)] == [25, 25, 10]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.metadata[b"owner"] == b"somebody"
    required = {field.name for field in schema if not field.nullable}
    assert required == {"key", "time", "ids", "price", "pair", "word", "flag", "whole", "lates"}
    elements = {name: schema.field(name).type.value_field.nullable for name in ("ids", "price", "some", "lates")}
    assert elements == {"ids": False, "price": False, "some": True, "lates": True}
    assert [field.nullable for field in schema.field("s").type] == [True, True]
    assert [field.nullable for field in schema.field("whole").type] == [False, True]
    assert {"ids.element", "price.element"} <= set(document["required"])


def test_a_file_that_cannot_be_rewritten_is_named(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.parquet", {"x": [1, None]})
    write(tmp_path / "in" / "b.parquet", {"x": [1, 2]})
    monkeypatch.setattr(rewriting, "without_nulls", lambda footer: {"x"})  # statistics that lie
    (first, second), told = rewrite(tmp_path / "in", tmp_path / "out")
    assert (first["status"], second["status"]) == ("failed", "written")
    assert "a.parquet cannot be rewritten: Column 'x' is declared non-nullable but contains nulls" in told[0]


def test_a_full_disk_is_no_fault_of_the_source(tmp_path):
    write(tmp_path / "in" / "a.parquet", odd_table())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".a.parquet.part").symlink_to("/dev/full")
    with pytest.raises(CommandFailed, match=r"out/\.a\.parquet\.part cannot be written: .*No space left on device"):
        rewrite(tmp_path / "in", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_folders_and_partitions_are_kept(tmp_path):
    for name in ("day=1/a", "day=1/b", "day=2/a"):
        write(tmp_path / "in" / f"{name}.parquet", {"x": [1, 2]})
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

    class Interrupts(Silent):
        def advance(self, *, rows=0, bytes=0):
            super().advance(rows=rows, bytes=bytes)
            if self.bytes > files.bytes * 0.4:  # while the second file is written
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimize_all(files, tmp_path / "out", settings, Interrupts(), print)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.parquet"]
    again = Silent()
    document = optimize_all(files, tmp_path / "out", settings, again, print)
    assert [one["status"] for one in document["files"]] == ["kept", "written", "written"]
    assert again.rows == 180
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.parquet", "b.parquet", "c.parquet"]


def test_a_changed_value_is_found_and_the_file_not_kept(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.parquet", odd_table())
    honest = rewriting.write

    def forging(footer, path, layout, progress):
        honest(footer, path, layout, progress)
        forged = pq.read_table(path).to_pydict()
        forged["pair"][41] = [41, 41]
        pq.write_table(pa.table(forged, layout.schema), path)

    monkeypatch.setattr(rewriting, "write", forging)
    (document,), told = rewrite(tmp_path / "in", tmp_path / "out")
    assert document["status"] == "failed"
    assert "not rewritten faithfully: row 41, column pair: [41, 41] where the source has [41, -41]" in told[0]
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_written_is_compared_with_its_checksums(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": np.arange(99)}, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 200] ^= 1  # a value, still a valid page
    path.write_bytes(content)
    with rows_of_file(path) as reading, pytest.raises(CorruptFileError, match=r"a\.parquet, row group 0: .*CRC"):
        list(reading.batches())


def test_damaged_inputs_are_named_and_the_others_written(tmp_path):
    damage(write(tmp_path / "in" / "a.parquet", {"x": np.arange(4_000)}, group=1_000), 2)
    write(tmp_path / "in" / "b.parquet", odd_table())
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
    write(tmp_path / "out" / "a.parquet", {"mine": [1]})
    with pytest.raises(UsageError, match="was not written by this command"):
        rewrite(tmp_path / "in", tmp_path / "out")
    assert source.read_bytes() == before


def test_the_command(tmp_path):
    paths = (tmp_path / "in", "--out", tmp_path / "out")
    write(tmp_path / "in" / "a.parquet", odd_table())
    write(tmp_path / "in" / "b.parquet", odd_table().slice(0, 0))
    document = answered("optimize", *paths)
    assert document["totals"]["rows"] == 60
    assert document["totals"]["decode_s"]["after"] > 0
    assert document["files"][0]["bytes"]["after"] == (tmp_path / "out" / "a.parquet").stat().st_size
    assert (document["files"][1]["rows"], document["files"][1]["status"]) == (0, "written")
    assert pq.read_schema(tmp_path / "out" / "b.parquet").field("ids").nullable
    assert "kept" in ran("optimize", *paths).stdout
    (tmp_path / "in" / "c.parquet").write_bytes(b"PAR1 cut")
    assert "c.parquet" in ran("optimize", *paths, status=1).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--row-group-rows", "8", "--unit-bytes", "8"], "give one of them"),
        (["--row-group-rows", "0"], "--row-group-rows must be at least 1"),
        (["--unit-bytes", "0"], "--unit-bytes must be at least 1"),
        ([], "two columns of the same name"),
    ],
)
def test_bad_usage_is_refused(tmp_path, options, message):
    write(tmp_path / "in" / "a.parquet", pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]))
    assert message in refused("optimize", tmp_path / "in", "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_nulls_below_null_lists_do_not_count():
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([5, None]), mask=pa.array([False, True]))
    found = set()
    note_nulls(lists, ("x",), found)
    assert found == {("x",)}
    schema, required = tightened(pa.schema([("x", lists.type)]), found)
    assert required == ("x.element",)
    assert schema.field("x").nullable


def test_times_become_deltas_and_few_values_stay_in_a_dictionary():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1, 5_000, 20_000))
    sample = pa.table({"t": times, "few": rng.integers(0, 4, 20_000) ** 30, "f": rng.random(20_000)})
    assert delta_columns(sample, {"compression": "zstd"}) == (("t",), ("few", "f"))
    assert delta_columns(sample.slice(0, 0), {}) == ((), ("t", "few", "f"))


def test_rows_of_a_unit_follow_from_decoded_bytes(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [[1] * 100] * 3_000}, group=17)  # 800 bytes a row
    metadata = pq.read_metadata(path)
    assert unit_rows(metadata, Settings(unit_bytes=800 * 1024)) == 1024
    assert unit_rows(metadata, Settings(unit_bytes=1)) == 256
    assert unit_rows(metadata, Settings(unit_bytes=1 << 40)) == 65_536
    assert unit_rows(metadata, Settings(row_group_rows=7)) == 7


def test_differences_are_seen_to_the_bit():
    floats = [pa.array(values) for values in ([0.0, NAN], [-0.0, NAN], [0.0, OTHER_NAN], [0.0, None])]
    assert [unequal_row(floats[0], other) for other in floats] == [None, 0, 1, 1]
    lists = [
        pa.array(values) for values in ([[1], [], [2, 3]], [[1], None, [2, 3]], [[1], [2], [3]], [[1], [], [2, 4]])
    ]
    assert [unequal_row(lists[0], other) for other in lists] == [None, 1, 1, 2]
    maps = [pa.array([[("a", value)]], pa.map_(pa.string(), pa.float64())) for value in (NAN, 1.0)]
    assert [unequal_row(maps[0], other) for other in maps] == [None, 0]
    words = [pa.array(values) for values in (["x", "y"], ["y", "x"], ["x", None])]
    coded = [pa.ListArray.from_arrays(pa.array([0, 1, 2]), word.dictionary_encode()) for word in words]
    assert [unequal_row(coded[0], other) for other in coded] == [None, 0, 1]
    structs = [pa.array(values) for values in ([{"a": 1}, None], [{"a": 1}, {"a": None}], [{"a": 2}, None])]
    assert [unequal_row(structs[0], other) for other in structs] == [None, 1, 0]
    streams = [pa.table({"a": floats[0]}).to_batches(max_chunksize=size) for size in (1, 2)]
    assert list(equal_rows(iter(streams[0]), iter(streams[1]))) == [1, 1]
    for given, message in (
        ((streams[1], streams[0][:1]), "the end where the source has more rows"),
        ((streams[0][:1], streams[1]), "more rows where the source has the end"),
    ):
        with pytest.raises(Difference, match=rf"^row 1, column \(all\): {message}$"):
            list(equal_rows(*map(iter, given)))
