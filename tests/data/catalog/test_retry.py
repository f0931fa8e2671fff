"""Reads of remote files are repeated as the source says, and every repetition and every loss is logged."""

import logging

import polars as pl
import pyarrow.fs as pafs
import pytest

from fsdata import CorruptFileError, FreeScaleDataLoader, ParquetSource, Retry, Schema, SchemaError, sources_from_toml
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import Retrying, unreachable

REMOTE = FileRef("bucket/a.parquet", "a.parquet", pafs.LocalFileSystem(), local=False)


def failing(times):
    """A read that fails so many times."""
    left = [times]

    def read():
        if left[0]:
            left[0] -= 1
            raise TimeoutError("too slow")
        return "bytes"

    return read


def test_waits_grow_and_are_counted(caplog):
    slept: list[float] = []
    retrying = Retrying(sleep=slept.append, jitter=lambda: 1.0)
    with caplog.at_level(logging.INFO, "fsdata"):
        assert retrying.call(failing(4), REMOTE) == "bytes"
    assert slept == pytest.approx([0.1, 0.4, 1.6, 6.4])
    assert retrying.count == 4
    assert [record.name for record in caplog.records] == ["fsdata"] * 4
    assert "bucket/a.parquet: TimeoutError: too slow: trying again in 6.4 s" in caplog.text


def test_ranks_do_not_come_back_together():
    waits = set()
    for _ in range(5):
        Retrying(sleep=waits.add).call(failing(1), REMOTE)
    assert len(waits) == 5
    assert all(0.05 <= wait <= 0.1 for wait in waits)


@pytest.mark.parametrize(
    ("policy", "tries"),
    [
        (Retry(tries=1), 1),
        (Retry(tries=3), 3),
        (Retry(max_s=0), 1),
        (Retry(max_s=0.6), 3),
        (Retry(tries=9, max_s=9), 5),
    ],
)
def test_tries_and_time_are_bounded(policy, tries):
    slept: list[float] = []
    with pytest.raises(ConnectionError, match=f"cannot be read after {tries} tries: TimeoutError: too slow"):
        Retrying(policy, sleep=slept.append, jitter=lambda: 1.0).call(failing(99), REMOTE)
    assert len(slept) == tries - 1
    assert sum(slept) <= policy.max_s


def test_local_files_are_read_once():
    with pytest.raises(ConnectionError, match="after 1 tries"):
        Retrying().call(failing(1), FileRef("/a", "a", pafs.LocalFileSystem(), local=True))


def test_a_source_has_a_policy(tmp_path):
    pl.DataFrame({"row": [1]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "data.toml").write_text('[[sources]]\npaths = "a.parquet"\nretry = { tries = 2, max_s = 1.5 }\n')
    (source,) = sources_from_toml(tmp_path / "data.toml")
    assert source.retry == Retry(tries=2, max_s=1.5)
    with FreeScaleDataLoader(source, Schema(context=("row",)), batch_size=1) as loader:
        assert loader._data.sources[0]._retry.policy == source.retry
    for text in ("retry = 3", "retry = { tries = 0 }", "retry = { times = 1 }"):
        (tmp_path / "data.toml").write_text(f'[[sources]]\npaths = "a.parquet"\n{text}\n')
        with pytest.raises(SchemaError, match=r"retry|Retry"):
            sources_from_toml(tmp_path / "data.toml")
    with pytest.raises(SchemaError, match="takes a Retry"):
        ParquetSource("a", retry=3)


def test_what_is_left_out_is_logged(tmp_path, caplog):
    pl.DataFrame({"row": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 cut short")
    with FreeScaleDataLoader(
        ParquetSource(tmp_path, on_error="skip"), Schema(context=("row",)), batch_size=9
    ) as loader:
        assert sum(len(batch) for batch in loader) == 2
    (record,) = [record for record in caplog.records if record.name == "fsdata"]
    assert record.levelno == logging.WARNING
    assert "left out: b.parquet: " in record.message


def test_what_looks_like_damage_is_read_again_but_not_for_long():
    slept: list[float] = []

    def read():
        raise OSError("zstd: bad magic")

    with pytest.raises(OSError, match="bad magic"):
        Retrying(sleep=slept.append, jitter=lambda: 1.0).call(read, REMOTE)
    assert slept == pytest.approx([0.1, 0.4])


def test_what_says_that_a_file_is_corrupt_is_no_matter_of_the_connection():
    assert issubclass(CorruptFileError, OSError)
    assert not unreachable(CorruptFileError("a.parquet: cut short"))
    assert unreachable(TimeoutError("no answer"))
