"""A catalog in a file says what footers say, and what is read by it is compared with the files."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import data_kit
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from data_kit import load, rows_of
from test_catalog import opened, said, write

from fsdata import CorruptFileError, ParquetSource, Schema, SchemaError, Sequence
from fsdata.catalog.catalog import open_catalog
from fsdata.catalog.listing.file_list import FileList
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.lake.catalog_file import read_catalog_file, write_catalog

SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("row", "day"))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """30 files in 6 days, of two schemas; one has no rows."""
    for number in range(30):
        name = f"day={number % 6}/part-{number:02}.parquet"
        size = 0 if number == 7 else 4 + number % 3
        write(tmp_path / "lake" / name, range(100 * number, 100 * number + size), wide=number % 5 == 0)
    return tmp_path / "lake"


def samples(source: ParquetSource) -> list[dict[str, object]]:
    return data_kit.read(source, SCHEMA, batch_size=7, shuffle=True)


def test_a_loader_reads_by_a_file_of_it_what_it_reads_by_paths(lake: Path, tmp_path: Path) -> None:
    catalog, path = opened(lake), tmp_path / "lake.catalog"
    write_catalog(catalog, path)
    assert said(read_catalog_file(path)) == said(catalog)
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["lake.catalog"]
    with (
        mock.patch("fsdata.decode.readers.source_files.discover", side_effect=AssertionError("listed")),
        mock.patch("fsdata.catalog.catalog.raw_footer", side_effect=AssertionError("read a footer")),
    ):
        found = samples(ParquetSource(catalog=path))
    assert found == samples(ParquetSource(lake))
    by_file = ParquetSource(catalog=str(path))
    with data_kit.loader_on(lake, SCHEMA) as one, data_kit.loader_on(by_file, SCHEMA) as other:
        other.load_state_dict(one.state_dict())
    write(lake / "day=1/part-01.parquet", range(5, 10))
    with pytest.raises(CorruptFileError, match=r"part-01.parquet: replaced .*`freescale catalog --update`"):
        samples(ParquetSource(catalog=path))
    (lake / "day=1/part-01.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-01.parquet"):
        samples(ParquetSource(catalog=path))


LEFT_OUT = {
    "by its bounds": {"filter": pl.col("row") >= 100},
    "in part": {"filter": pl.col("row") >= 8},
    "by skip": {"skip": 5},
    "nothing": {},
}


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("how", LEFT_OUT)
@pytest.mark.parametrize("change", ["rows", "same footer", "gone", "rows of an empty file"])
def test_what_is_left_out_of_a_file_that_changed_is_an_error(
    tmp_path: Path, change: str, how: str, remote: bool
) -> None:
    """Its rows would be missing, and nobody would know."""
    system = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()) if remote else None
    folder, path = "lake" if remote else str(tmp_path / "lake"), tmp_path / "lake.catalog"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": change != "same footer"}
    changed = tmp_path / "lake/day=0/a.parquet"

    def put(file: str, rows: range) -> None:
        write(tmp_path / "lake/day=0" / file, rows, **plain)

    put("a.parquet", range(0 if change == "rows of an empty file" else 10))
    put("b.parquet", range(100, 110))
    catalog, _ = open_catalog(discover([folder], system), threads=1, retry=Retrying(), label="x", bounds_of=["row"])
    write_catalog(catalog, path)
    source = ParquetSource(catalog=path, filesystem=system, **LEFT_OUT[how])
    assert samples(source)
    time = changed.stat().st_mtime_ns
    put("a.parquet", range(110, 120))
    if change == "gone":
        changed.unlink()
    else:
        os.utime(changed, ns=(time, time + 1000))
    gone = change == "gone"
    text = "" if gone else ": replaced after it was listed: .* `freescale catalog --update`"
    with pytest.raises(FileNotFoundError if gone else CorruptFileError, match=rf"lake/day=0/a\.parquet{text}"):
        samples(source)
    if not gone:
        first = 105 if (how, change) == ("by skip", "rows of an empty file") else 100
        batches, loader = load(replace(source, on_error="skip"), SCHEMA)
        assert rows_of(batches) == [*range(first, 110)]
        assert {each.file for each in loader.skipped} == {"a.parquet"}


def test_files_of_folders_that_are_left_out_count_as_they_are(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "lake.catalog"
    write_catalog(opened(lake), path)
    later = ParquetSource(catalog=path, filter=pl.col("day") > 0)
    found = samples(later)
    write(lake / "day=0/part-00.parquet", range(7))
    assert samples(later) == found
    with pytest.raises(CorruptFileError, match=r"day=0/part-00\.parquet: replaced after it was listed"):
        samples(replace(later, skip=3))


def test_files_behind_the_limit_may_change(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "lake.catalog"
    write_catalog(opened(lake), path)
    source = ParquetSource(catalog=path, limit=12)
    found = samples(source)
    (lake / "day=5/part-29.parquet").unlink()
    assert samples(source) == found


def test_what_is_no_catalog_is_refused(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "lake.catalog"
    with pytest.raises(FileNotFoundError, match=r"no such catalog. Make it with"):
        samples(ParquetSource(catalog=path))
    with pytest.raises(SchemaError, match="not a whole catalog"):
        samples(ParquetSource(catalog=lake / "day=0" / "part-00.parquet"))
    write_catalog(opened(lake), path)
    whole = path.read_bytes()
    for size in (0, 3, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SchemaError, match=r"lake.catalog: not a whole catalog.*Make it again"):
            samples(ParquetSource(catalog=path))
    table = pq.read_table(pa.BufferReader(whole))
    head = json.loads(table.schema.metadata[b"freescale.catalog"])
    for changed, text in (
        ({"version": head["version"] - 1}, f"version {head['version'] - 1}, this one reads {head['version']}"),
        ({"version": head["version"] + 1}, f"version {head['version'] + 1}, this one reads {head['version']}"),
        ({"filesystem": "py::x"}, r"files on py::x: give Parquet"),
    ):
        metadata = {b"freescale.catalog": json.dumps(head | changed).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(SchemaError, match=text):
            samples(ParquetSource(catalog=path))
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(SchemaError, match="the catalog has no files"):
        samples(ParquetSource(catalog=path))


ANY = (None, -1, 1 << 70, 0.5, "x", "x\0", ["x"], [1], {"x": 1}, [None], float("nan"))

COLUMNS = {
    "folder": [None, "x", "\0/"],
    "name": [None, "\0"],
    "size": [None, -1],
    "digest": [None],
    "schema": [None, -1, 99],
    "rows": [None, [None], [-1], [2**62, 2**62]],
    "least of row": [None, [None], [1], [1, 1, 1]],
}


def test_what_was_written_by_hand_into_a_catalog_is_refused(lake: Path, tmp_path: Path) -> None:
    """Each is a SchemaError that names the catalog, whichever library stumbles over it."""
    path = tmp_path / "lake.catalog"
    files = discover([str(lake)], None)
    catalog, _ = open_catalog(files, threads=1, retry=Retrying(), label="x", bounds_of=["row"])
    write_catalog(catalog, path)
    table = pq.read_table(path)
    head = json.loads(table.schema.metadata[b"freescale.catalog"])
    heads = [{other: head[other] for other in head if other != key} for key in head]
    heads += [head | {key: value} for key in head for value in ANY if (key, value) != ("root", "x")]
    heads += [*ANY, head | {"schemas": ["AAAA"]}, head | {"bounds": ["row", "row"]}, head | {"root": "s3://x"}]
    crafted = [table.replace_schema_metadata({b"freescale.catalog": json.dumps(each).encode()}) for each in heads]
    crafted += [table.replace_schema_metadata({b"freescale.catalog": b"[" * 100_000}), table.drop_columns("name")]
    for name, values in COLUMNS.items():
        at = table.schema.get_field_index(name)
        for value in values:
            some = table[name].to_pylist()
            some[3] = value
            kind = pa.string() if name == "folder" else table.schema.field(name).type
            column = pa.array(some, kind)
            crafted.append(table.set_column(at, name, column.dictionary_encode() if name == "folder" else column))
    assert said(read_catalog_file(path)) == said(catalog)
    for each in crafted:
        pq.write_table(each, path)
        with pytest.raises(SchemaError, match=r"lake\.catalog: "):
            read_catalog_file(path)


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("decoder", ["pages", "pyarrow"])
@pytest.mark.parametrize(
    ("column", "value"), [("rows", [[2], [3]]), ("rows", [[2, 3]]), ("rows", [[2], [2], [2]]), ("schema", [1, 0])]
)
def test_what_a_catalog_says_is_compared_with_the_footer(
    tmp_path: Path, column: str, value: list, decoder: str, remote: bool
) -> None:
    """Memory is read by what planning knows."""
    write(tmp_path / "lake/day=0/a.parquet", range(5))
    write(tmp_path / "lake/day=0/b.parquet", range(5), wide=True)
    system = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()) if remote else None
    files, path = discover(["lake" if remote else str(tmp_path / "lake")], system), tmp_path / "lake.catalog"
    write_catalog(open_catalog(files, threads=1, retry=Retrying(), label="x")[0], path)
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    rows = value if column == "schema" else [[part for each in value for part in each], [3, 2]]
    pq.write_table(table.set_column(at, column, pa.array(rows, table.schema.field(column).type)), path)
    with pytest.raises(
        CorruptFileError, match=r"a\.parquet: its catalog and its footer have different rows or columns"
    ):
        samples(ParquetSource(catalog=path, filesystem=system, decoder=decoder))


def test_files_of_another_filesystem_need_it(lake: Path, tmp_path: Path) -> None:
    below, path = pafs.SubTreeFileSystem(str(lake.parent), pafs.LocalFileSystem()), tmp_path / "lake.catalog"
    catalog, _ = open_catalog(discover(["lake"], below), threads=1, retry=Retrying(), label="x")
    assert discover([str(lake)], None).identity != discover(["lake"], below).identity == ""
    write_catalog(catalog, path)
    assert samples(ParquetSource(catalog=path, filesystem=below)) == samples(ParquetSource(lake))
    with pytest.raises(SchemaError, match="files on subtree: give ParquetSource"):
        samples(ParquetSource(catalog=path))
    store = pafs.S3FileSystem(anonymous=True, region="eu")
    files = FileList.from_entries([(store, f"{bucket}/a.parquet", (1, 1, 0)) for bucket in ("one", "two")])
    with pytest.raises(SchemaError, match="of one bucket"):
        write_catalog(replace(catalog, files=files), path)
