"""What `AsOf(bucketed=..., kept_in=...)` leaves in a folder: equal to what is read, and never used where it is not."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from data_kit import loader_on, same, write
from event_log import LISTEN, OVERLAPPING, POOLS, SCHEMA, Log, anchors

from fsdata.catalog import shared_arrays
from fsdata.histories import event_rows, history_table


@pytest.fixture
def log(tmp_path: Path) -> Log:
    drawn = Log.drawn(7, users=20)
    drawn.write(tmp_path / "log")
    return drawn


def read(folder: Path, *, kept: bool = True, given: dict[str, Any] | None = None, **rows: Any) -> list[Any]:
    """The batches of every window of time."""
    as_of = {"bucketed": 2, "kept_in": folder / "kept" if kept else None, **(given or {})}
    source = anchors(folder / "log", as_of_given=as_of, **{"time_window": 170, **rows})
    found = []
    with loader_on(source, SCHEMA, batch_size=7) as loader:
        for window in range(loader.windows or 1):
            loader.set_epoch(window)
            found += list(loader)
    return found


def equal(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(same(one, other) for one, other in zip(found, wanted, strict=True))


def files(folder: Path) -> dict[str, int]:
    """Name of every file that is kept, or that a process has left -> its inode, another one if it was made again."""
    return {path.name: path.stat().st_ino for path in (folder / "kept").iterdir()}


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, {}),
        ({"pools": OVERLAPPING, "cap": 2, "scan": 9}, {"order": "time"}),
        ({"pools": OVERLAPPING, "cap": 2, "scan": 9}, {"split": "uid", "keep": (0, 0.5)}),
        ({"pools": {}}, {"order": "time"}),
        ({"pools": {}}, {"split": "uid", "keep": (0, 0.5)}),
    ],
    ids=["pools", "overlapping, by time", "overlapping, split", "plain, by time", "plain, split"],
)
def test_what_is_taken_is_what_was_read(tmp_path: Path, log: Log, given: dict[str, Any], rows: dict[str, Any]) -> None:
    wanted = read(tmp_path, kept=False, given=given, **rows)
    assert equal(read(tmp_path, given=given, **rows), wanted)
    made = files(tmp_path)
    assert len(made) == 2  # the table, and which of its events are rows
    assert equal(read(tmp_path, given=given, **rows), wanted)
    assert files(tmp_path) == made
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_a_changed_log_is_read_and_takes_the_place_of_the_one_before(tmp_path: Path, log: Log) -> None:
    """Nothing but the time of the file and its inode says so: size and footer stay as they were."""
    path = tmp_path / "log" / "histories.parquet"
    plain = {"use_dictionary": False, "write_statistics": False, "compression": "none", "write_page_checksum": False}
    table = pl.read_parquet(path)
    write(path, table.to_arrow(), group=3, **plain)
    before, made, size = read(tmp_path), files(tmp_path), path.stat().st_size
    changed = table.with_columns(pl.col("ratio").list.eval(99 - pl.element()))
    write(path, changed.to_arrow(), group=3, **plain)
    assert path.stat().st_size == size
    found = read(tmp_path)
    assert equal(found, read(tmp_path, kept=False))
    assert not equal(found, before)
    assert len(files(tmp_path)) == 2
    assert not files(tmp_path).keys() & made.keys()


OTHER_POOLS = {**POOLS, "like": pl.col("type") == 2}


@pytest.mark.parametrize(
    ("given", "rows", "more"),
    [
        ({"pools": OTHER_POOLS}, {}, 2),
        ({}, {"min_history": 3}, 1),
        ({}, {"time_window": 340}, 1),
        ({}, {"order": "time"}, 1),
        ({}, {"split": "uid", "keep": (0.5, 1)}, 1),
        ({}, {"where": ~LISTEN}, 1),
        ({"scan": 5, "cap": 1, "bucketed": 3}, {}, 0),  # found when rows are read
    ],
    ids=["pools", "min_history", "window", "order", "split", "where", "what rows see"],
)
def test_another_description_has_files_of_its_own(
    tmp_path: Path, log: Log, given: dict[str, Any], rows: dict[str, Any], more: int
) -> None:
    read(tmp_path)
    made = files(tmp_path)
    assert equal(read(tmp_path, given=given, **rows), read(tmp_path, kept=False, given=given, **rows))
    assert files(tmp_path).items() >= made.items()
    assert len(files(tmp_path)) == 2 + more


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: flipped(raw, len(raw) - 2 * shared_arrays._ALIGNMENT),
        lambda raw: flipped(raw, 40),
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[:10],
        lambda raw: b"",
        lambda raw: bytes(len(raw)),
        lambda raw: b"fsarrays" + raw[8:],
    ],
    ids=["a value", "the head", "cut", "cut in the head", "empty", "zeros", "another form"],
)
def test_a_damaged_file_is_made_again(
    tmp_path: Path, log: Log, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = read(tmp_path)
    made = files(tmp_path)
    for path in (tmp_path / "kept").iterdir():
        raw = path.read_bytes()
        path.write_bytes(damage(raw))
        assert path.read_bytes() != raw
    assert equal(read(tmp_path), wanted)
    assert sorted(re.findall(r"kept/(\S*) is damaged and made again", caplog.text)) == sorted(made)
    assert files(tmp_path).keys() == made.keys()
    after = files(tmp_path)
    assert equal(read(tmp_path), wanted)
    assert files(tmp_path) == after


@pytest.mark.parametrize(("of", "more"), [(history_table, 2), (event_rows, 1)], ids=["table", "rows"])
def test_files_of_another_version_are_not_used_and_go(
    tmp_path: Path, log: Log, of: Any, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = read(tmp_path)
    made = files(tmp_path)
    monkeypatch.setattr(of, "_VERSION", of._VERSION + 1)
    assert equal(read(tmp_path), wanted)
    assert len(files(tmp_path)) == 2
    assert len(files(tmp_path).keys() - made.keys()) == more


@pytest.mark.parametrize(
    ("mode", "message"),
    [(0o777, "can be written by others"), (None, "is a link or a file in place of a folder")],
    ids=["writable", "a file"],
)
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, log: Log, mode: int | None, message: str) -> None:
    if mode is None:
        (tmp_path / "kept").touch()
    else:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept").chmod(mode)
    with pytest.raises(PermissionError, match=rf"kept.* {message}.*: give AsOf\(kept_in=...\) a folder that belongs"):
        read(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def read_only(path: Any, flags: int, *given: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *given, **more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(OSError, match=r"histories.parquet: .*kept: Read-only file system: give AsOf\(kept_in=...\) a"):
        read(tmp_path)


def test_a_full_folder_is_named(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(shared_arrays, "_write", full)
    message = r"No space left on device, .*kept: give AsOf\(kept_in=...\) a folder with more room"
    with pytest.raises(OSError, match=message):
        read(tmp_path)
    assert files(tmp_path) == {}
