"""Files that are not what they should be, and remote files that fail now and then."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from parquet import column, opened, read_all, values, write

from fsdata import Schema
from fsdata.catalog.footers import Skipped
from fsdata.catalog.retry import Retrying
from fsdata.decode.opened_source import OpenSource, open_source
from fsdata.errors import CorruptFileError
from fsdata.sources import ParquetSource

USERS = Schema(context=("user",))


def users(path, start, stop, **options):
    return write(path, {"user": pa.array(range(start, stop))}, **options)


def flip(path, offset, count=8):
    raw = bytearray(path.read_bytes())
    for position in range(offset, offset + count):
        raw[position] ^= 0xFF
    path.write_bytes(raw)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def garbage(path):
    path.write_bytes(b"user,age\n1,2\n3,4\n")


def tiny(path):
    path.write_bytes(b"PAR1")


def empty(path):
    path.write_bytes(b"")


def broken_footer(path):
    flip(path, path.stat().st_size - 60, 40)


def wrong_length(path):
    raw = path.read_bytes()
    path.write_bytes(raw[:-8] + (10**6).to_bytes(4, "little") + b"PAR1")


def encrypted(path):
    raw = path.read_bytes()
    path.write_bytes(b"PARE" + raw[4:-4] + b"PARE")


DAMAGE = [
    (truncated, r"b\.parquet: truncated: it begins like Parquet but has no footer"),
    (garbage, r"b\.parquet: not a Parquet file: it begins with b'user'"),
    (tiny, r"b\.parquet: not a Parquet file: only 4 bytes"),
    (empty, r"b\.parquet: not a Parquet file: only 0 bytes"),
    (broken_footer, r"b\.parquet: the footer cannot be parsed"),
    (wrong_length, r"b\.parquet: the footer claims 1000008 bytes"),
    (encrypted, r"b\.parquet: an encrypted Parquet file"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
def test_files_without_a_footer_raise_or_are_listed(tmp_path, damage, message):
    users(tmp_path / "a.parquet", 0, 3)
    damage(users(tmp_path / "b.parquet", 3, 6))
    with pytest.raises(CorruptFileError, match=message):
        open_source(ParquetSource(tmp_path), USERS)
    source, layout = opened(ParquetSource(tmp_path, on_error="skip"), USERS)
    assert source.may_drop
    assert column(read_all(source, layout), "user") == [[0], [1], [2]]
    (entry,) = source.skipped
    assert (entry.file, entry.row_group, entry.rows) == ("b.parquet", None, 0)
    with pytest.raises(CorruptFileError, match="none of its 1 files is readable"):
        open_source(ParquetSource(tmp_path / "b.parquet", on_error="skip"), USERS)


@pytest.fixture
def flipped(tmp_path):
    """Three row groups of 1,000 rows, the second damaged near its end."""
    pages = {"use_dictionary": False, "data_page_size": 800, "write_batch_size": 100}
    path = users(tmp_path / "a.parquet", 0, 3000, group=1000, **pages)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 40)
    return path


def test_a_damaged_row_group_raises_with_file_and_group(flipped):
    source, layout = opened(ParquetSource(flipped), USERS)
    source.read(source.groups[0], layout, 0, 1000)
    with pytest.raises(CorruptFileError, match=r"a\.parquet, row group 1: cannot be decoded: .*on_error='skip'"):
        source.read(source.groups[1], layout, 0, 1000)
    rows = source.read(source.groups[2], layout, 0, 1000)
    assert rows.kept is None
    assert column(values(rows.table, layout), "user")[0] == [2000]


def test_a_damaged_row_group_is_skipped_counted_and_listed_once(flipped):
    source, layout = opened(ParquetSource(flipped, on_error="skip"), USERS)
    for _ in range(2):
        assert column(read_all(source, layout), "user") == [[n] for n in [*range(1000), *range(2000, 3000)]]
    (entry,) = source.skipped
    assert isinstance(entry, Skipped)
    assert (entry.file, entry.row_group, entry.rows) == ("a.parquet", 1, 1000)
    rows = source.read(source.groups[1], layout, 5, 5)
    assert rows.kept.tolist() == []


def test_a_damaged_row_group_is_skipped_whichever_part_of_it_is_asked_for(flipped, monkeypatch):
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: 100)
    source, layout = opened(ParquetSource(flipped, on_error="skip"), USERS)
    rows = source.read(source.groups[1], layout, 0, 10)
    assert rows.table.num_rows == 0
    assert rows.kept.tolist() == []
    assert [entry.row_group for entry in source.skipped] == [1]


def test_times_of_a_skipped_row_group(flipped):
    schema = Schema(context=("user",), time="user")
    source, _ = opened(ParquetSource(flipped, on_error="skip"), schema)
    assert len(source.read_times(source.groups[1])) == 1000
    assert len(source.skipped) == 1


def test_a_side_tables_losses_are_listed_too(tmp_path, flipped):
    from fsdata.sources import Join

    path = write(tmp_path / "main.parquet", {"user": pa.array([5, 1005])})
    side = ParquetSource(flipped, columns={"age": "user"}, defaults={"age": -1}, on_error="skip")
    source, layout = opened(ParquetSource(path, join=[Join(side, on="user", fields=("age",))]), Schema(dense=("age",)))
    assert column(read_all(source, layout), "dense") == [[5.0], [-1.0]]
    assert [entry.row_group for entry in source.skipped] == [1]


# A file replaced between footer and read


def test_a_file_replaced_by_another_is_noticed(tmp_path):
    path = users(tmp_path / "a.parquet", 0, 10, group=5)
    source, layout = opened(ParquetSource(path), USERS)
    source.read(source.groups[0], layout, 0, 5)
    replacement = users(tmp_path / "b.parquet", 100, 110, group=5)
    os.utime(replacement, ns=(1, 1))
    replacement.replace(path)
    with pytest.raises(CorruptFileError, match=r"a\.parquet: replaced while in use"):
        source.read(source.groups[1], layout, 0, 5)


def test_a_file_replaced_before_the_first_read_is_noticed(tmp_path):
    path = users(tmp_path / "a.parquet", 0, 10)
    source, layout = opened(ParquetSource(path), USERS)
    users(path, 0, 11)
    with pytest.raises(CorruptFileError, match=r"a\.parquet: replaced while in use: \d+ bytes, \d+ when"):
        source.read(source.groups[0], layout, 0, 10)


def test_a_touched_file_is_the_same_file(tmp_path):
    path = users(tmp_path / "a.parquet", 0, 10)
    source, layout = opened(ParquetSource(path), USERS)
    source.read(source.groups[0], layout, 0, 5)
    os.utime(path, ns=(1, 1))
    assert column(read_all(source, layout), "user") == [[n] for n in range(10)]


def test_a_deleted_file_is_missing_not_skipped(tmp_path):
    path = users(tmp_path / "a.parquet", 0, 10)
    source, layout = opened(ParquetSource(path, on_error="skip"), USERS)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
        source.read(source.groups[0], layout, 0, 10)


def test_open_files_are_closed(tmp_path):
    for name in "abcdef":
        users(tmp_path / f"{name}.parquet", 0, 10)
    before = len(os.listdir("/proc/self/fd"))
    source, layout = opened(ParquetSource(tmp_path), USERS, threads=2)
    read_all(source, layout)
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


# Retries


class Flaky(MemoryFileSystem):
    """Fails the next `left` reads with `error`."""

    protocol = "flaky"
    store: dict = {}  # noqa: RUF012 - the base class keeps its files in a class attribute
    left = 0
    error: Exception = TimeoutError("too slow")

    def _open(self, path, mode="rb", **options):
        outer = self

        class File(io.BytesIO):
            def read(self, *args):
                if outer.left > 0:
                    outer.left -= 1
                    raise outer.error
                return super().read(*args)

        return File(self.store[path].getvalue()) if mode == "rb" else super()._open(path, mode, **options)


@pytest.fixture
def flaky(tmp_path):
    system = Flaky(skip_instance_cache=True)
    system.pipe("/a.parquet", users(tmp_path / "a.parquet", 0, 10, group=5).read_bytes())
    return system


def open_flaky(system, slept, **options):
    source = ParquetSource("/a.parquet", filesystem=system, **options)
    return opened(source, USERS, retry=Retrying(sleep=slept.append, jitter=lambda: 1.0))


@pytest.mark.parametrize(
    "error", [TimeoutError("too slow"), ConnectionResetError("gone"), OSError(5, "Input/output error")]
)
def test_passing_errors_are_retried_and_counted(flaky, error):
    slept: list[float] = []
    flaky.error, flaky.left = error, 2
    source, layout = open_flaky(flaky, slept)
    assert source.retries == 2
    flaky.left = 1
    assert column(read_all(source, layout), "user") == [[n] for n in range(10)]
    assert source.retries == 3
    assert slept == pytest.approx([0.1, 0.4, 0.1])


def test_lasting_errors_end_and_are_never_skipped(flaky):
    slept: list[float] = []
    source, layout = open_flaky(flaky, slept, on_error="skip")
    flaky.left = 10**6
    with pytest.raises(ConnectionError, match=r"a\.parquet: cannot be read after 5 tries: TimeoutError: too slow"):
        source.read(source.groups[0], layout, 0, 5)
    assert slept == pytest.approx([0.1, 0.4, 1.6, 6.4])
    assert source.skipped == []
    with pytest.raises(ConnectionError, match=r"a\.parquet: cannot be read after 5 tries"):
        open_flaky(flaky, slept, on_error="skip")


def test_final_errors_are_not_retried(flaky):
    slept: list[float] = []
    flaky.error, flaky.left = PermissionError(13, "no"), 1
    with pytest.raises(PermissionError):
        open_flaky(flaky, slept)
    assert slept == []


def test_damage_in_a_remote_file_is_damage(flaky):
    raw = bytearray(flaky.store["/a.parquet"].getvalue())
    source, layout = open_flaky(flaky, [], on_error="skip")
    raw[30:40] = bytes(10)
    flaky.pipe("/a.parquet", bytes(raw))
    assert column(read_all(source, layout), "user") == [[n] for n in range(5, 10)]
    assert [entry.row_group for entry in source.skipped] == [0]


def test_footers_of_many_files_come_in_order(tmp_path):
    for number in range(30):
        users(tmp_path / f"{number:02}.parquet", number, number + 1)
    source = OpenSource(ParquetSource(tmp_path), USERS, index=0, threads=8)
    assert [group.file for group in source.groups] == list(range(30))
    _, layout = opened(ParquetSource(tmp_path), USERS)
    assert column(read_all(source, layout), "user") == [[n] for n in range(30)]
    assert np.all([group.rows == 1 for group in source.groups])
