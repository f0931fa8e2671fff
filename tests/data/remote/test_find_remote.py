"""Files of stores are found by URLs and filesystems."""

import re

import fsspec
import pyarrow.fs as pafs
import pytest
from data_kit import found, users


@pytest.fixture
def folder(tmp_path):
    users(tmp_path, "b.parquet", 2)
    users(tmp_path, "a.parquet", 1)
    users(tmp_path, "sub/c.parq", 3)
    users(tmp_path, "sub/deep/d.parquet", 4)
    users(tmp_path, "_temporary/e.parquet", 5)
    users(tmp_path, ".hidden.parquet", 6)
    users(tmp_path, "sub/README.md", 7)
    return tmp_path


def test_what_stores_have_besides_files_is_left_out_by_name(folder, caplog):
    memory = fsspec.filesystem("memory")
    raw = (folder / "a.parquet").read_bytes()
    memory.pipe({f"/mixed/{name}": raw for name in ("a.parquet", "b.parquet/c.parquet", "000000_0")})
    assert found("memory://mixed") == [1, 1]
    assert found("memory://mixed/*.parquet") == [1]
    with pytest.raises(FileNotFoundError, match=r"no file matches, only folders: b\.parquet"):
        found("memory://mixed/b*")
    memory.rm("/mixed", recursive=True)
    assert [re.search(r"left out: (.*\))", each)[1] for each in caplog.messages] == [
        "000000_0 (its name does not end in .parquet or .parq)",
        "b.parquet (a folder)",
    ]


def test_urls_and_filesystems(folder):
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/bucket/{name}": (folder / name).read_bytes() for name in ("a.parquet", "b.parquet", "sub/c.parq")})
    assert found("memory://bucket/*.parquet") == [1, 2]
    assert found("memory://bucket") == [1, 2, 3]
    assert found("/bucket/*.parquet", filesystem=memory) == [1, 2]
    memory.rm("/bucket", recursive=True)
    assert found("*.parquet", filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())) == [1, 2]
