"""Sources: finding files by folder, glob and URL, and the columns that their places give."""

import os
import re

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from data_kit import USERS, column, found, load, read, rows_of, users, write
from fsspec.implementations.local import LocalFileSystem

from fsdata import ParquetSource, Schema, SchemaError
from fsdata.catalog.listing.find_files import resolve


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
        ("/s*/*.par*", [3]),
        ("/sub/**", [7, 3, 4]),
        ("/sub/README.md", [7]),
        ("/_temporary/*.parquet", [5]),
    ],
)
def test_folders_globs_and_files(folder, pattern, expected):
    assert found(str(folder) + pattern) == expected
    assert found(f"file://{folder}{pattern}") == expected


def test_several_relative_paths_keep_their_order(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert found(["sub", "*.parquet"]) == [3, 4, 1, 2]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    users(tmp_path, "a[1].parquet", 1)
    users(tmp_path, "a1.parquet", 2)
    assert found(tmp_path / "a[1].parquet") == [1]


@pytest.mark.parametrize("path", ["missing.parquet", "*.nothing", "none/*.parquet", "empty", "file/*", "n" * 300])
def test_nothing_found_names_the_path(tmp_path, path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=path.replace("*", r"\*")):
        found(tmp_path / path)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["*.parquet", "a.parquet"], r"read twice: .*a\.parquet"),
        (["a.parquet", "sub/../a.parquet"], r"read twice: .*/a\.parquet and .*/sub/\.\./a\.parquet"),
        (["a.parquet", "other.link"], r"read twice: .*/a\.parquet and .*/other\.link"),
        (["sub", "again"], r"read twice: .*/sub/c\.parq and .*/again/c\.parq; .*/again/deep/d"),
        (["looped"], r"loop is the folder .* above it, so its rows would be read many times"),
    ],
)
def test_files_that_would_be_read_twice_are_an_error(folder, paths, message):
    (folder / "other.link").symlink_to(folder / "a.parquet")
    (folder / "again").symlink_to(folder / "sub")
    (folder / "looped" / "deep").mkdir(parents=True)
    for below in ("loop", "deep/loop"):  # two of them make 2 ** 40 paths
        (folder / "looped" / below).symlink_to(folder / "looped")
    with pytest.raises(SchemaError, match=message):
        found([folder / path for path in paths])


def test_links_to_other_files_are_followed_and_hard_links_are_files_of_their_own(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    users(elsewhere, "e.parquet", 9)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "broken").symlink_to(folder / "nowhere")
    (folder / "c.parquet").hardlink_to(folder / "a.parquet")
    assert found(folder) == [1, 2, 1, 9, 3, 4]


@pytest.fixture
def mixed(tmp_path):
    """A folder with one entry of every kind that is left out."""
    for number, name in enumerate(["a.parquet", "000000_0", "day.parquet/b.parquet", "README.md", "_SUCCESS"]):
        users(tmp_path, name, number)
    (tmp_path / "loop.parquet").symlink_to("loop.parquet")
    (tmp_path / "gone.parquet").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.parquet")
    users(tmp_path, "000001_0")
    return tmp_path


@pytest.mark.parametrize(
    ("below", "numbers", "message"),
    [
        ("", [0, 2], r"5 left out: 000000_0 \(its name does not end in \.parquet or \.parq\), gone\.parquet \(a link "
                     r"that leads nowhere\), loop\.parquet \(a link to itself\) and 2 more\. To read such files"),
        ("/[ad]*", [0], r"1 left out: day\.parquet \(a folder\)\."),
        ("/p*", None, r"no file matches, but 1 left out: pipe\.parquet \(a named pipe\)"),
        ("/d*", None, r"only folders: day\.parquet .*Give the folder itself, or .*/d\*/\*\*/\*\.parquet"),
        ("/gone.parquet", None, "gone.parquet: a link that leads nowhere: to nowhere"),
        ("/loop.parquet", None, "loop.parquet: a link that leads nowhere: to loop.parquet"),
        ("/**/[ab].parquet", [0, 2], None),
        ("/d*/**", [2], None),
    ],
)  # fmt: skip
def test_what_is_left_out_is_named_once(mixed, caplog, below, numbers, message):
    if numbers is None:
        with pytest.raises(FileNotFoundError, match=message):
            found(f"{mixed}{below}")
        return
    assert found(f"{mixed}{below}") == numbers
    assert len(caplog.messages) == (message is not None)
    assert message is None or re.search(message, caplog.messages[0])


def test_a_folder_without_a_suffix_of_parquet_names_its_files(tmp_path):
    users(tmp_path, "000000_0", 7)
    with pytest.raises(
        FileNotFoundError, match=r"but 1 left out: 000000_0 .* A glob reads files of any name: .*/\*\*$"
    ):
        found(tmp_path)
    assert found(f"{tmp_path}/**") == [7]


@pytest.mark.parametrize("name", ["a b", "a%20b", "a%zz", "~", "[", "a]b", "a?b", "a\nb", "a::b", "#"])
def test_names_with_signs_of_urls_and_globs(tmp_path, monkeypatch, name):
    users(tmp_path, f"{name}/{name}.parquet", 1)
    monkeypatch.chdir(tmp_path)
    for path in (f"./{name}", f"{name}/{name}.parquet", f"file://{tmp_path}/{name}", f"{tmp_path}/{name}/*.parquet"):
        if name != "~" or path[0] != "~":  # that is the home folder
            assert found(path) == [1], path


def test_urls_of_files(tmp_path):
    users(tmp_path, "a b/c.parquet", 1)
    for url in (
        "file://{}/a%20b",
        "file://localhost{}/a%20b",
        "FILE://{}/a%20b/*.parquet",
        "file:{}/a b",
        "file://{}/a%20*/*",
    ):
        assert found(url.format(tmp_path)) == [1], url


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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nosuch://bucket/a.parquet", "nosuch://.* no filesystem can be made of this URL: .*not known"),
        ("dir:///bucket", "dir://.* no filesystem can be made of this URL: AttributeError"),
        ("zip://a.parquet::no.zip", "zip://.* no filesystem can be made of this URL: BadZipFile"),
        ("file://", "names no file"),
        ("[z-a].parquet", "not a glob: bad character range z-a"),
        ("~nobody-of-this-name/a.parquet", "there is no such user"),
        ("a\0b.parquet", "no path contains such a character"),
        ("a\0*.parquet", "no path contains such a character"),
        ("\ud800.parquet", "no path contains such a character"),
        ("s3://bad bucket/a.parquet", "not a URL"),
        ("/dev/null", "/dev/null: a device, where a file or folder is needed"),
        ("pipe", r"pipe: a named pipe, where a file or folder is needed"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "no.zip").write_bytes(b"no zip")
    with pytest.raises(SchemaError, match=message):
        found(path)


def test_no_permission_names_the_file(folder):
    class Closed(LocalFileSystem):
        def open(self, path, *args, **kwargs):
            raise PermissionError(13, "Permission denied", path)

    with pytest.raises(PermissionError, match=r"a\.parquet: no permission to read this file"):
        found(str(folder / "a.parquet"), filesystem=Closed())


def test_no_permission_to_list_names_the_folder(folder, monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError, match=r"no permission to list it: .*'/.*Ask for this permission"):
        found(folder)


def test_a_filesystem_takes_paths_without_a_scheme(folder):
    with pytest.raises(SchemaError, match=r"got a URI.*Give paths without a scheme to filesystem="):
        found(f"file://{folder}", filesystem=pafs.LocalFileSystem())


def test_row_groups_without_rows_are_left_out(tmp_path):
    schema = pa.schema([("user", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for numbers in ([1], [], [2, 3], []):
            writer.write_table(pa.table({"user": pa.array(numbers, pa.int64())}))
    users(tmp_path, "b.parquet")
    batches, loader = load(tmp_path, USERS)
    assert loader.describe()[0]["row_groups"] == 2
    assert rows_of(batches, "user") == [1, 2, 3]


def test_partitions_are_columns(tmp_path):
    for country in (7, 12):
        users(tmp_path, f"country={country}/day=monday/a.parquet", country * 100)
    schema = Schema(context=("user", "country", "weekday"), dense=("nation",))
    weekday = pl.col("day").replace_strict({"monday": 1}, return_dtype=pl.Int64)
    samples = read(ParquetSource(tmp_path, columns={"nation": "country", "weekday": weekday}), schema)
    assert samples == [
        {"user": 1200, "country": 12, "weekday": 1, "nation": 12.0},
        {"user": 700, "country": 7, "weekday": 1, "nation": 7.0},
    ]
    with pytest.raises(SchemaError, match=r"partition 'day' is string: text is never .*text_key\('day'"):
        read(ParquetSource(tmp_path), Schema(context=("user", "day")))
    assert found(tmp_path, filter=pl.col("country") % 2 == 1) == [700]


def test_a_null_partition_follows_the_policy(tmp_path):
    users(tmp_path, "country=1/a.parquet", 1)
    users(tmp_path, "country=__HIVE_DEFAULT_PARTITION__/a.parquet", 2)
    schema = Schema(context=("user", "country"))
    with pytest.raises(SchemaError, match="partition 'country' is null"):
        read(ParquetSource(tmp_path), schema)
    assert column(read(ParquetSource(tmp_path, defaults={"country": 9}), schema), "country") == [1, 9]
    assert column(read(ParquetSource(tmp_path, nulls={"country": "drop"}), schema), "user") == [1]


def test_a_column_that_is_also_a_folder_is_an_error_until_columns_decides(tmp_path):
    path = write(tmp_path / "day=5" / "a.parquet", {"user": pa.array([1, 2]), "day": pa.array([1, 5])})
    schema = Schema(context=("user", "day"))
    message = r"day: 'day' is a column of the file and the folder day=\.\.\. .* columns=\{'day': 'day'\}"
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path), schema)
    assert column(read(ParquetSource(path, columns={"day": pl.col("day") + 1}), schema), "day") == [2, 6]
    with pytest.raises(SchemaError, match="filter: 'day' is a column of the file and the folder day="):
        found(path, filter=pl.col("day") == 5)
    assert found(path) == [1, 2]
    samples = read(ParquetSource(path, columns={"day": "day"}, filter=pl.col("day") == 5), schema)
    assert samples == [{"user": 2, "day": 5}]


def test_a_name_that_is_not_utf_8_is_named(tmp_path):
    os.rename(users(tmp_path, "a.parquet", 1), os.fsencode(tmp_path) + b"/\xff.parquet")
    with pytest.raises(SchemaError, match=r"udcff.parquet': its name is not UTF-8, and Arrow cannot open it: rename"):
        found(tmp_path)
