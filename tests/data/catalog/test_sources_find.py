"""Sources: finding files by folder, glob and URL, and the columns that their places give."""

import os

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from parquet import column, opened, read, read_all, write
from user_files import USERS, found, users

from fsdata import Schema
from fsdata.catalog.listing import walk
from fsdata.catalog.listing.find_files import discover, resolve
from fsdata.decode.arrow.record_batches import wide_columns
from fsdata.errors import SchemaError
from fsdata.sources import ParquetSource


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


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [1, 2, 3, 4]),
        ("/*.parquet", [1, 2]),
        ("/?.parquet", [1, 2]),
        ("/[!a].parquet", [2]),
        ("/**/*.parquet", [1, 2, 4]),
        ("/s*/*.parq", [3]),
        ("/sub/**", [7, 3, 4]),
        ("/sub/README.md", [7]),
        ("/_temporary/*.parquet", [5]),
    ],
)
def test_folders_globs_and_files(folder, pattern, expected):
    assert found(str(folder) + pattern) == expected


def test_several_paths_keep_their_order(folder):
    assert found([folder / "sub", folder / "*.parquet"]) == [3, 4, 1, 2]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    users(tmp_path, "a[1].parquet", 1)
    users(tmp_path, "a1.parquet", 2)
    assert found(tmp_path / "a[1].parquet") == [1]


@pytest.mark.parametrize("path", ["missing.parquet", "*.nothing", "none/*.parquet", "empty"])
def test_nothing_found_names_the_path(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=path.replace("*", r"\*")):
        found(tmp_path / path)


def test_a_file_named_twice_is_an_error(folder):
    with pytest.raises(SchemaError, match=r"read twice: .*a\.parquet"):
        found([folder / "*.parquet", folder / "a.parquet"])


def test_a_file_reached_over_a_link_too_is_an_error(folder):
    (folder / "other.parquet").symlink_to(folder / "a.parquet")
    with pytest.raises(SchemaError, match=r"read twice: .*/a\.parquet and .*/other\.parquet"):
        found(folder)
    (folder / "other.parquet").unlink()
    (folder / "again").symlink_to(folder / "sub")
    with pytest.raises(SchemaError, match=r"read twice: .*/again/c\.parq and .*/sub/c\.parq; .*/again/deep/d"):
        found(folder)
    assert found(folder / "*.parquet") == [1, 2]
    assert found(folder / "again") == [3, 4]


def test_two_dots_do_not_hide_a_repeat(folder):
    with pytest.raises(SchemaError, match=r"read twice: .*/a\.parquet and .*/sub/\.\./a\.parquet"):
        found([folder / "a.parquet", folder / "sub" / ".." / "a.parquet"])


def test_a_folder_linked_into_itself_is_an_error(folder):
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "sub" / "deep" / "loop").symlink_to(folder)  # two of them make 2 ** 40 paths
    with pytest.raises(SchemaError, match=r"loop is the folder .* above it, so its rows would be read many times"):
        found(folder)


def test_hard_links_are_files_of_their_own(folder):
    (folder / "c.parquet").hardlink_to(folder / "a.parquet")
    assert found(folder / "*.parquet") == [1, 2, 1]


def test_a_linked_folder_is_followed_once(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    users(elsewhere, "e.parquet", 9)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "broken").symlink_to(folder / "nowhere")
    assert found(folder) == [1, 2, 9, 3, 4]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket/prefix/?", "bucket/prefix"),
        ("s3://bucket/a-?.parquet?", "bucket/a-?.parquet"),
        ("s3://bucket/*/day=1/?.parquet?", "bucket/*/day=1/?.parquet"),
        ("s3://bucket?", "bucket"),
    ],
)
def test_options_of_a_url_are_not_wildcards(url, path):
    options = "region=eu-south-9&scheme=http&endpoint_override=127.0.0.1:9"
    system, found_path = resolve(url + options, None)
    assert (system.region, found_path) == ("eu-south-9", path)
    assert "127.0.0.1:9" in str(system.__reduce__())
    with pytest.raises(SchemaError, match=r"s3://.*nosuch"):
        resolve(url + "nosuch=1", None)


def test_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert found("*.parquet") == [1, 2]


def test_file_urls(folder):
    assert found(f"file://{folder}/*.parquet") == [1, 2]


@pytest.fixture
def memory(folder):
    system = fsspec.filesystem("memory")
    system.pipe({f"/bucket/{name}": (folder / name).read_bytes() for name in ("a.parquet", "b.parquet", "sub/c.parq")})
    yield system
    system.rm("/bucket", recursive=True)


def test_fsspec_urls(memory):
    assert found("memory://bucket/*.parquet") == [1, 2]
    assert found("memory://bucket") == [1, 2, 3]


def test_filesystem_objects(memory, folder):
    assert found("/bucket/*.parquet", filesystem=memory) == [1, 2]
    assert found("*.parquet", filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())) == [1, 2]
    with pytest.raises(SchemaError, match="pyarrow or fsspec filesystem"):
        found("a", filesystem=3)


def test_unknown_url_schemes(tmp_path):
    with pytest.raises(SchemaError, match="nosuch://"):
        found("nosuch://bucket/a.parquet")


def test_no_permission_names_the_file(folder, monkeypatch):
    def refuse(self, path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(PermissionError, match=r"a\.parquet: no permission to read this file"):
        found(str(folder / "a.parquet"), filesystem=fsspec.filesystem("file"))


def test_row_groups_without_rows_are_left_out(tmp_path):
    schema = pa.schema([("user", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for numbers in ([1], [], [2, 3], []):
            writer.write_table(pa.table({"user": pa.array(numbers, pa.int64())}))
    users(tmp_path, "b.parquet")
    handle, layout = opened(ParquetSource(tmp_path), USERS)
    assert [(group.file, group.index, group.rows) for group in handle.groups] == [(0, 0, 1), (0, 2, 2)]
    assert column(read_all(handle, layout), "user") == [[1], [2], [3]]


def test_partitions_are_columns(tmp_path):
    for country in (7, 12):
        users(tmp_path, f"country={country}/day=monday/a.parquet", country * 100)
    schema = Schema(context=("user", "country", "weekday"), dense=("nation",))
    weekday = pl.col("day").replace_strict({"monday": 1}, return_dtype=pl.Int64)
    samples = read(ParquetSource(tmp_path, columns={"nation": "country", "weekday": weekday}), schema)
    assert column(samples, "country") == [[12], [7]]
    assert column(samples, "weekday") == [[1], [1]]
    assert column(samples, "dense") == [[12.0], [7.0]]


def test_partitions_make_kinds_of_files_only_where_they_are_read(tmp_path, monkeypatch):
    for day in range(30):
        users(tmp_path, f"day={day:02}/a.parquet", day)
    asked = []
    plain = wide_columns
    monkeypatch.setattr("fsdata.decode.source_files.wide_columns", lambda *given: asked.append(given) or plain(*given))
    handle, layout = opened(ParquetSource(tmp_path), USERS)
    assert column(read_all(handle, layout), "user") == [[day] for day in range(30)]
    assert len(handle._files.kinds) == 1
    odd = pl.col("day") % 2 == 1
    assert found(tmp_path, filter=odd) == list(range(1, 30, 2))
    asked.clear()
    handle, layout = opened(ParquetSource(tmp_path), Schema(context=("user", "day")))
    assert column(read_all(handle, layout), "day") == [[day] for day in range(30)]
    assert len(handle._files.kinds) == 30
    assert len(asked) == 1  # once for all kinds of files, and not for times, which nobody asked for


def test_a_text_partition_needs_an_expression(tmp_path):
    users(tmp_path, "country=de/a.parquet", 1)
    with pytest.raises(SchemaError, match=r"partition 'country' is string: text is never .*pl\.col\('country'\)\.hash"):
        read(ParquetSource(tmp_path), Schema(context=("user", "country")))


def test_a_null_partition_follows_the_policy(tmp_path):
    users(tmp_path, "country=1/a.parquet", 1)
    users(tmp_path, "country=__HIVE_DEFAULT_PARTITION__/a.parquet", 2)
    schema = Schema(context=("user", "country"))
    with pytest.raises(SchemaError, match="partition 'country' is null"):
        read(ParquetSource(tmp_path), schema)
    assert column(read(ParquetSource(tmp_path, defaults={"country": 9}), schema), "country") == [[1], [9]]
    assert column(read(ParquetSource(tmp_path, nulls={"country": "drop"}), schema), "user") == [[1]]


def test_a_column_that_is_also_a_folder_is_an_error_until_columns_decides(tmp_path):
    users(tmp_path, "user=5/a.parquet", 1)
    message = r"user: 'user' is a column of the file and the folder user=\.\.\. .* columns=\{'user': 'user'\}"
    with pytest.raises(SchemaError, match=message):
        found(tmp_path)
    assert found(tmp_path, columns={"user": "user"}) == [1]
    assert found(tmp_path, columns={"user": pl.col("user") + 1}) == [2]


def test_a_filter_does_not_choose_between_column_and_folder(tmp_path):
    path = write(tmp_path / "day=5" / "a.parquet", {"user": pa.array([1, 2]), "day": pa.array([1, 5])})
    with pytest.raises(SchemaError, match="filter: 'day' is a column of the file and the folder day="):
        found(path, filter=pl.col("day") == 5)
    assert found(path) == [1, 2]
    schema = Schema(context=("user", "day"))
    samples = read(ParquetSource(path, columns={"day": "day"}, filter=pl.col("day") == 5), schema)
    assert samples == [{"user": [2], "day": [5]}]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nobody-of-this-name/a.parquet", "there is no such user"),
        ("a\0b.parquet", "no path contains such a character"),
        ("a\0*.parquet", "no path contains such a character"),
        ("\ud800.parquet", "no path contains such a character"),
        ("s3://bad bucket/a.parquet", "not a URL"),
        ("/dev/null", "/dev/null: a device, where a file or folder is needed"),
    ],
)
def test_paths_that_lead_nowhere(path, message):
    with pytest.raises(SchemaError, match=message):
        found(path)


@pytest.mark.parametrize("option", ["paths", "join"])
def test_options_of_another_type(option):
    with pytest.raises(SchemaError, match=r"got 3|got \(3,\)|takes Join objects"):
        ParquetSource(**{"paths": "a"} | {option: 3})


def test_a_pipe_is_called_one(tmp_path):
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet: a named pipe, where a file or folder is needed"):
        found(tmp_path / "a.parquet")


def test_many_hard_links_cost_little(folder, monkeypatch):
    """A path is resolved once, however many others lead to the same data."""
    for number in range(200):
        (folder / f"link{number:03}.parquet").hardlink_to(folder / "a.parquet")
    resolved = []
    monkeypatch.setattr(walk.os.path, "realpath", lambda path: resolved.append(path) or path)
    assert len(discover([str(folder / "link*.parquet")], None)) == 200
    assert len(resolved) <= 200
