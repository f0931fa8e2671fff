"""Files that are not what they should be, and remote files that fail now and then."""

import logging
import os
from functools import partial

import polars as pl
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from data_kit import DECODERS, USERS, found, load, loader_on, rows_of, users

from fsdata import CorruptFileError, ParquetSource, Retry, Schema
from fsdata.catalog.catalog import open_catalog
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.decode.readers.open_files import ExpectedFile, OpenFiles


def flip(path, offset, count=8):
    raw = bytearray(path.read_bytes())
    for position in range(offset, offset + count):
        raw[position] ^= 0xFF
    path.write_bytes(raw)


def rewritten(edit):
    return lambda path: path.write_bytes(edit(path.read_bytes()))


DAMAGE = {
    "truncated": (rewritten(lambda raw: raw[:-100]), "truncated: it begins like Parquet but has no footer"),
    "garbage": (rewritten(lambda _: b"user,age\n1,2\n3,4\n"), "not a Parquet file: it begins with b'user'"),
    "tiny": (rewritten(lambda _: b"PAR1"), "not a Parquet file: only 4 bytes"),
    "empty": (rewritten(lambda _: b""), "not a Parquet file: only 0 bytes"),
    "broken footer": (lambda path: flip(path, path.stat().st_size - 60, 40), "the footer cannot be parsed"),
    "wrong length": (
        rewritten(lambda raw: raw[:-8] + (10**6).to_bytes(4, "little") + b"PAR1"),
        "the footer claims 1000008 bytes",
    ),
    "encrypted": (rewritten(lambda raw: b"PARE" + raw[4:-4] + b"PARE"), "an encrypted Parquet file"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_files_without_a_footer_raise_or_are_listed(tmp_path, damage, message, caplog):
    users(tmp_path, "a.parquet", 0, 1, 2)
    damage(users(tmp_path, "b.parquet", 3, 4, 5))
    with pytest.raises(CorruptFileError, match=rf"b\.parquet: {message}"):
        found(tmp_path)
    batches, loader = load(ParquetSource(tmp_path, on_error="skip"), USERS)
    assert rows_of(batches, "user") == [0, 1, 2]
    (entry,) = loader.skipped
    assert (entry.file, entry.row_group, entry.rows) == ("b.parquet", None, 0)
    (record,) = [record for record in caplog.records if record.name == "fsdata"]
    assert record.levelno == logging.WARNING
    assert "left out: b.parquet: " in record.message
    with pytest.raises(CorruptFileError, match="none of its 1 files is readable"):
        found(tmp_path / "b.parquet", on_error="skip")


@pytest.fixture
def flipped(tmp_path):
    """Three row groups of 1,000 rows, the second damaged near its end."""
    pages = {"use_dictionary": False, "data_page_size": 800, "write_batch_size": 100}
    path = users(tmp_path, "a.parquet", *range(3000), group=1000, **pages)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 40)
    return path


def test_a_damaged_row_group_raises_with_file_and_group(flipped):
    with loader_on(flipped, USERS, batch_size=1000) as loader:
        batches = iter(loader)
        assert rows_of(next(batches), "user") == list(range(1000))
        with pytest.raises(CorruptFileError, match=r"a\.parquet, row group 1: cannot be decoded: .*on_error='skip'"):
            next(batches)
    assert found(flipped, skip=2000) == list(range(2000, 3000))


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_damaged_row_group_is_skipped_counted_and_listed_once(flipped, decoder, monkeypatch):
    """Whichever part of it is needed, and by its times."""
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: 100)
    for part in (
        {},
        {"skip": 995, "limit": 15},
        {"skip": 1995},
        {"filter": pl.col("user") % 100 == 0},
    ):
        with loader_on(ParquetSource(flipped, on_error="skip", decoder=decoder, **part), USERS) as loader:
            first, again = (rows_of(loader, "user") for _ in range(2))
            (entry,) = loader.skipped
        begin = part.get("skip", 0)
        rows = range(begin, min(begin + part.get("limit", 3000), 3000), 100 if "filter" in part else 1)
        assert first == [row for row in rows if row // 1000 != 1]
        assert (entry.file, entry.row_group) == ("a.parquet", 1)
        assert begin or entry.rows == 1000
        assert again == first
    sources = [ParquetSource(flipped, on_error="skip", decoder=decoder), ParquetSource(flipped, limit=2)]
    batches, loader = load(sources, Schema(context=("user",), time="user"), mix="time")
    assert sorted(rows_of(batches, "user")) == [0, 0, 1, 1, *range(2, 1000), *range(2000, 3000)]
    assert [(entry.file, entry.row_group, entry.rows) for entry in loader.skipped] == [("a.parquet", 1, 1000)]


# Files that are replaced, and files that stay open


def test_a_file_that_is_replaced_is_noticed(tmp_path):
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": False}  # all of one size
    path = users(tmp_path, "a.parquet", *range(10), group=5, **plain)
    with loader_on(path, USERS, batch_size=5) as loader:
        assert rows_of(loader, "user") == list(range(10))
        os.utime(path, ns=(1, 1))  # a touched file is the same file
        assert rows_of(loader, "user") == list(range(10))
        replacement = users(tmp_path, "b.parquet", *range(100, 110), group=5, **plain)
        assert replacement.stat().st_size == path.stat().st_size
        os.utime(replacement, ns=(2, 2))
        replacement.replace(path)
        with pytest.raises(CorruptFileError, match=r"a\.parquet: replaced while in use"):
            list(loader)
    with loader_on(ParquetSource(path, on_error="skip"), USERS) as loader:  # before it was read at all
        users(tmp_path, "a.parquet", *range(11))
        assert rows_of(loader, "user") == []
        assert "a.parquet: replaced while in use: " in loader.skipped[0].reason
    with loader_on(ParquetSource(path, on_error="skip"), USERS) as loader:
        path.unlink()
        with pytest.raises(FileNotFoundError, match=r"a\.parquet"):  # missing, not skipped
            list(loader)


def test_open_files_are_closed(tmp_path):
    for name in "abcdef":
        users(tmp_path, f"{name}.parquet", *range(10))
    found(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with loader_on(tmp_path, USERS) as loader:
        assert len(list(loader)) == 4
    assert len(os.listdir("/proc/self/fd")) == before
    catalog, _ = open_catalog(discover([str(tmp_path)], None), threads=1, retry=Retrying(), label="")
    pool = OpenFiles(keep=2)
    used = pool.take(ExpectedFile(catalog.files[0], int(catalog.size[0]), catalog.digest(0)))
    pool.close()
    pool.give(used)  # by a thread that was still decoding
    assert len(os.listdir("/proc/self/fd")) == before


# Retries

REMOTE = FileRef("bucket/a.parquet", "a.parquet", pafs.LocalFileSystem(), local=False)


def failing(times, error=TimeoutError):
    """A read that fails so many times."""
    left = [times]

    def read():
        if left[0]:
            left[0] -= 1
            raise error("too slow")
        return "bytes"

    return read


def test_waits_grow_are_counted_and_logged(caplog):
    slept: list[float] = []
    retrying = Retrying(sleep=slept.append, jitter=lambda: 1.0)
    with caplog.at_level(logging.INFO, "fsdata"):
        assert retrying.call(failing(4), REMOTE) == "bytes"
    assert slept == pytest.approx([0.1, 0.4, 1.6, 6.4])
    assert retrying.count == 4
    assert [record.name for record in caplog.records] == ["fsdata"] * 4
    assert "bucket/a.parquet: TimeoutError: too slow: trying again in 6.4 s" in caplog.text
    waits = set()
    for _ in range(5):  # ranks do not come back together
        Retrying(sleep=waits.add).call(failing(1), REMOTE)
    assert len(waits) == 5
    assert all(0.05 <= wait <= 0.1 for wait in waits)


@pytest.mark.parametrize(
    ("policy", "local", "tries"),
    [
        (Retry(tries=1), False, 1),
        (Retry(tries=3), False, 3),
        (Retry(max_s=0), False, 1),
        (Retry(max_s=0.6), False, 3),
        (Retry(tries=9, max_s=9), False, 5),
        (Retry(), True, 1),
    ],
)
def test_tries_and_time_are_bounded(policy, local, tries):
    slept: list[float] = []
    file = FileRef("bucket/a.parquet", "a.parquet", pafs.LocalFileSystem(), local=local)
    with pytest.raises(ConnectionError, match=f"cannot be read after {tries} tries: TimeoutError: too slow"):
        Retrying(policy, sleep=slept.append, jitter=lambda: 1.0).call(failing(99), file)
    assert len(slept) == tries - 1
    assert sum(slept) <= policy.max_s


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (OSError, [0.1, 0.4]),  # what looks like damage is read again, but not for long
        (partial(OSError, 5), [0.1, 0.4, 1.6, 6.4]),
        (CorruptFileError, []),  # what says that a file is corrupt is no matter of the connection
        (PermissionError, []),
    ],
)
def test_which_errors_are_repeated(error, waits):
    slept: list[float] = []
    as_it_is = ConnectionError if len(waits) == 4 else error
    with pytest.raises(as_it_is, match=r"too slow$"):
        Retrying(sleep=slept.append, jitter=lambda: 1.0).call(failing(99, error), REMOTE)
    assert slept == pytest.approx(waits)
