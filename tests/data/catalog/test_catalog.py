"""A catalog says of files what their footers say: read here, shared by processes, from a file, brought up to date."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from worlds import shared_world

from fsdata import CorruptFileError, FreeScaleDataLoader, ParquetSource, Schema, SchemaError, Sequence
from fsdata.catalog import catalog as catalogs
from fsdata.catalog import catalog_file
from fsdata.catalog.catalog import EMPTY, Catalog, catalog_of, open_catalog, updated
from fsdata.catalog.catalog_file import read_catalog_file, write_catalog
from fsdata.catalog.footers import read_footers
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.decode.files import open_files

LIST = pa.list_(pa.int64())
SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("row", "day"))


def write(path: Path, rows: range, *, wide: bool = False, group: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"row": pa.array(list(rows), pa.int64()), "item": pa.array([[row, row + 1] for row in rows], LIST)}
    if wide:
        columns["more"] = pa.array([float(row) for row in rows])
    pq.write_table(pa.table(columns), path, row_group_size=group)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """30 files in 6 days, of two schemas; one has no rows."""
    for number in range(30):
        name = f"day={number % 6}/part-{number:02}.parquet"
        size = 0 if number == 7 else 4 + number % 3
        write(tmp_path / "lake" / name, range(100 * number, 100 * number + size), wide=number % 5 == 0)
    return tmp_path / "lake"


def opened(folder: Path) -> Catalog:
    catalog, faults = open_catalog(discover([str(folder)], None), threads=2, retry=Retrying(), label="source 0")
    assert faults == []
    return catalog


def said(catalog: Catalog) -> list[tuple]:
    """Everything, file by file."""
    return [
        (
            catalog.files[number],
            int(catalog.size[number]),
            catalog.digest(number),
            catalog.schema(number),
            catalog.rows[catalog.first[number] : catalog.first[number + 1]].tolist(),
        )
        for number in range(len(catalog))
    ]


def test_it_says_what_footers_say(lake: Path) -> None:
    footers = read_footers(discover([str(lake)], None), threads=1, retry=Retrying())
    catalog = opened(lake)
    assert said(catalog) == [
        (footer.file, footer.size, footer.digest, footer.schema, footer.row_groups) for footer in footers
    ]
    assert [(file.path, *rest) for file, *rest in said(catalog)] == [
        (file.path, *rest) for file, *rest in said(catalog_of(footers))
    ]
    assert len(catalog.schemas) == 2
    assert list(catalog.files.names()) == [footer.file.name for footer in footers]


def test_only_the_first_footer_of_a_schema_is_parsed(lake: Path) -> None:
    with mock.patch.object(catalogs, "parsed", wraps=catalogs.parsed) as parsed:
        files = discover([str(lake)], None)
        open_catalog(files, threads=1, retry=Retrying(), label="source 0")
    assert parsed.call_count == 2


@pytest.mark.parametrize("shared", [False, True])
def test_files_without_a_footer_are_named(lake: Path, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "SHARED_FROM", 1 if shared else 1_000)
    for name in ("day=0/part-00.parquet", "day=3/part-15.parquet", "day=5/part-29.parquet"):
        (lake / name).write_bytes(b"PAR1 cut short")
    files = discover([str(lake)], None)
    catalog, faults = open_catalog(files, threads=2, retry=Retrying(), label="source 0")
    assert [name for name, _ in faults] == ["day=0/part-00.parquet", "day=3/part-15.parquet", "day=5/part-29.parquet"]
    assert all("truncated" in str(error) for _, error in faults)
    assert len(catalog) == 27
    for file, size, *_ in said(catalog):
        assert os.path.getsize(file.path) == size


def open_on_one_host(rank: int, world_size: int, lake: Path) -> list[tuple[int, list]]:
    """Footers read and what the catalog says, for all ranks at once; then the same for rank 0 after a change."""

    def once() -> tuple[Catalog, tuple[int, list]]:
        with mock.patch.object(catalogs, "_entry", wraps=catalogs._entry) as entry:
            found = opened(lake)
        said = [found.size, found.digests, found.rows, found.first]
        return found, (entry.call_count, [each.tolist() for each in said] + [len(found.schemas)])

    with mock.patch.object(catalogs, "SHARED_FROM", 1):
        held, said = once()
        dist.barrier()
        answers = [said]
        if rank == 0:
            write(lake / "day=0/part-00.parquet", range(9))
            answers.append(once()[1])
        dist.barrier()
        del held
    return answers


def test_processes_of_a_host_read_the_footers_once(lake: Path) -> None:
    (first, late), *others = shared_world(3).run(open_on_one_host, lake)
    answers = [first, *(answer for (answer,) in others)]
    assert sorted(count for count, _ in answers) == [0, 0, 30]
    assert all(found == first[1] for _, found in answers)
    count, found = late  # another listing: not the catalog of the others
    assert count == 30
    assert found != first[1]


def test_a_file_of_it_gives_it_back(lake: Path, tmp_path: Path) -> None:
    catalog = opened(lake)
    write_catalog(catalog, tmp_path / "lake.catalog")
    assert said(read_catalog_file(tmp_path / "lake.catalog")) == said(catalog)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["lake.catalog"]


def batches(source: ParquetSource) -> list[tuple[list[int], list[int], list[int]]]:
    with FreeScaleDataLoader(source, SCHEMA, batch_size=7, shuffle=True, num_threads=1) as loader:
        return [tuple(batch.features[name].values().tolist() for name in ("row", "day", "item")) for batch in loader]


def test_a_loader_reads_by_it_what_it_reads_by_paths(lake: Path, tmp_path: Path) -> None:
    write_catalog(opened(lake), tmp_path / "lake.catalog")
    with (
        mock.patch("fsdata.decode.source_files.discover", side_effect=AssertionError("listed")),
        mock.patch("fsdata.catalog.catalog.raw_footer", side_effect=AssertionError("read a footer")),
    ):
        found = batches(ParquetSource(catalog=tmp_path / "lake.catalog"))
    assert found == batches(ParquetSource(lake))
    loaders = [
        FreeScaleDataLoader(source, SCHEMA, batch_size=7)
        for source in (ParquetSource(lake), ParquetSource(catalog=str(tmp_path / "lake.catalog")))
    ]
    state = loaders[0].state_dict()
    loaders[1].load_state_dict(state)
    for loader in loaders:
        loader.close()


def test_a_file_that_changed_since_is_an_error(lake: Path, tmp_path: Path) -> None:
    write_catalog(opened(lake), tmp_path / "lake.catalog")
    write(lake / "day=1/part-01.parquet", range(5, 10))
    with pytest.raises(CorruptFileError, match=r"part-01.parquet: replaced .*`freescale catalog --update`"):
        batches(ParquetSource(catalog=tmp_path / "lake.catalog"))
    (lake / "day=1/part-01.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-01.parquet"):
        batches(ParquetSource(catalog=tmp_path / "lake.catalog"))


def test_what_is_no_catalog_is_refused(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "lake.catalog"
    with pytest.raises(FileNotFoundError, match=r"no such catalog. Make it with"):
        batches(ParquetSource(catalog=path))
    with pytest.raises(SchemaError, match="not a whole catalog"):
        batches(ParquetSource(catalog=lake / "day=0" / "part-00.parquet"))
    write_catalog(opened(lake), path)
    whole = path.read_bytes()
    for size in (0, 3, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SchemaError, match=r"lake.catalog: not a whole catalog.*Make it again"):
            batches(ParquetSource(catalog=path))
    table = pq.read_table(pa.BufferReader(whole))
    head = json.loads(table.schema.metadata[b"freescale.catalog"])
    for changed, text in (({"version": 99}, "version 99"), ({"filesystem": "py::x"}, r"files on py::x: give Parquet")):
        metadata = {b"freescale.catalog": json.dumps(head | changed).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(SchemaError, match=text):
            batches(ParquetSource(catalog=path))
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(SchemaError, match="the catalog has no files"):
        batches(ParquetSource(catalog=path))
    with pytest.raises(SchemaError, match="paths or a catalog"):
        ParquetSource("a", catalog="b")
    with pytest.raises(SchemaError, match="names one file"):
        ParquetSource(catalog=3)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="one or more paths"):
        ParquetSource()


def test_files_of_another_filesystem_need_it(lake: Path, tmp_path: Path) -> None:
    below = pafs.SubTreeFileSystem(str(lake.parent), pafs.LocalFileSystem())
    catalog, _ = open_catalog(discover(["lake"], below), threads=1, retry=Retrying(), label="x")
    write_catalog(catalog, tmp_path / "lake.catalog")
    found = batches(ParquetSource(catalog=tmp_path / "lake.catalog", filesystem=below))
    assert found == batches(ParquetSource(lake))
    with pytest.raises(SchemaError, match="files on subtree: give ParquetSource"):
        batches(ParquetSource(catalog=tmp_path / "lake.catalog"))


@given(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["write", "wide", "remove", "break", "touch"])), max_size=12)
)
def test_an_update_is_what_a_new_catalog_says(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    for number in range(8):
        write(folder / f"{number:02}.parquet", range(number, 2 * number + 2))
    old = opened(folder)
    for step, (number, change) in enumerate(changes):
        path = folder / f"{number:02}.parquet"
        if change == "remove":
            path.unlink(missing_ok=True)
        elif change == "break":
            path.write_bytes(b"no file of the kind")
        elif change == "touch" and path.exists():
            os.utime(path, ns=(0, 1_000_000_000 * (step + 1)))
        elif change != "touch":
            write(path, range(number, number + 3 + step), wide=change == "wide")
    if not list(folder.iterdir()):
        return
    files = discover([str(folder)], None)
    with mock.patch.object(catalogs, "_entry", wraps=catalogs._entry) as entry:
        found = updated(old, files, threads=1, retry=Retrying())
    whole, faults = open_catalog(files, threads=1, retry=Retrying(), label="x")
    assert said(found.catalog) == said(whole)
    assert [name for name, _ in found.faults] == [name for name, _ in faults]
    assert np.array_equal(found.catalog.files.versions, whole.files.versions)
    paths = {file.path for file in old.files}
    now = {file.path for file in files}
    assert found.gone == len(paths - now)
    assert found.new == len(now - paths)
    assert entry.call_count == found.new + found.changed


def test_an_update_of_nothing_is_a_new_catalog(lake: Path) -> None:
    found = updated(EMPTY, discover([str(lake)], None), threads=1, retry=Retrying())
    assert said(found.catalog) == said(opened(lake))
    assert (found.new, found.changed, found.gone) == (30, 0, 0)


@pytest.mark.parametrize("kept", [1 << 20, 2 * 2 * open_files._CHUNK_BYTES, 0])
def test_footers_that_were_used_last_are_kept(lake: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "FOOTER_BYTES", kept)
    files = [file for file in discover([str(lake)], None) if "day=3" in file.name][:4]
    catalog, _ = open_catalog(discover([file.path for file in files], None), threads=1, retry=Retrying(), label="")
    pool = open_files.OpenFiles(keep=1)
    with mock.patch.object(open_files, "parsed", wraps=open_files.parsed) as parsed:
        for number in (0, 1, 0, 2, 0, 3, 1):
            handle = pool.take(catalog.files[number], int(catalog.size[number]), catalog.digest(number))
            first, end = catalog.first[number : number + 2]
            assert handle.parquet.metadata.num_rows == catalog.rows[first:end].sum()
            handle.close()
    pool.close()
    assert pool._footers._bytes <= kept
    assert parsed.call_count == {1 << 20: 4, 0: 7}.get(kept, parsed.call_count)
    assert 4 <= parsed.call_count <= 7


def test_schemas_of_files_that_are_gone_are_gone(lake: Path) -> None:
    old = opened(lake)
    for number in range(0, 30, 5):
        (lake / f"day={number % 6}/part-{number:02}.parquet").unlink()
    found = updated(old, discover([str(lake)], None), threads=1, retry=Retrying()).catalog
    assert (len(found), len(found.schemas), len(old.schemas)) == (24, 1, 2)
    assert said(found) == said(opened(lake))


def test_files_of_a_filesystem_inside_another_are_not_taken_for_others(lake: Path) -> None:
    below = pafs.SubTreeFileSystem(str(lake.parent), pafs.LocalFileSystem())
    assert discover([str(lake)], None).identity != ""
    assert discover(["lake"], below).identity == ""


def test_a_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(3))
    os.rename(tmp_path / "a.parquet", os.fsencode(tmp_path) + b"/\xff.parquet")
    with pytest.raises(SchemaError, match=r"udcff.parquet': its name is not UTF-8, and Arrow cannot open it: rename"):
        batches(ParquetSource(tmp_path))


def test_a_bucket_and_no_more(monkeypatch: pytest.MonkeyPatch, lake: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(catalog_file._SCHEMES, "local", "file://")
    catalog = opened(lake)
    monkeypatch.setattr(catalog.files, "base", "")
    with pytest.raises(SchemaError, match="of one bucket"):
        write_catalog(catalog, tmp_path / "lake.catalog")
