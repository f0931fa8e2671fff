"""Tables that several loaders of a host use: one file for the same description, another one for any other."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from data_kit import loader_on, same, write
from event_log import LISTEN, POOLS, SCHEMA, Log, anchors

from fsdata import FreeScaleDataLoader
from fsdata.histories import event_rows, history_table
from fsdata.histories.spill_buffer import SpillBuffer


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    drawn = Log.drawn(7, users=20)
    drawn.write(tmp_path / "log")
    return drawn


def loader_of(folder: Path, given: dict[str, Any] | None = None, **rows: Any) -> FreeScaleDataLoader:
    source = anchors(folder / "log", as_of_given={"bucketed": 2, **(given or {})}, **{"time_window": 170, **rows})
    return loader_on(source, SCHEMA, batch_size=7)


def batches_of(loader: FreeScaleDataLoader) -> list[Any]:
    """Of every window of time."""
    found = []
    for window in range(loader.windows or 1):
        loader.set_epoch(window)
        found += list(loader)
    return found


def read(folder: Path, given: dict[str, Any] | None = None, **rows: Any) -> list[Any]:
    with loader_of(folder, given, **rows) as loader:
        return batches_of(loader)


def equal(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(same(one, other) for one, other in zip(found, wanted, strict=True))


def files(folder: Path) -> set[Path]:
    return {path for path in (folder / "temporary").rglob("*") if path.is_file()}


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
    wanted = read(tmp_path, given, **rows)
    assert files(tmp_path) == set()
    with loader_of(tmp_path), loader_of(tmp_path, given, **rows) as other:
        assert equal(batches_of(other), wanted)
        assert len(files(tmp_path)) == 2 + more  # the table, and which of its events are rows


def test_a_changed_log_is_read_while_another_loader_uses_the_one_before(tmp_path: Path, log: Log) -> None:
    """Only the time of modification and the inode of the file change: size and footer stay as they were."""
    path = tmp_path / "log" / "histories.parquet"
    plain = {"use_dictionary": False, "write_statistics": False, "compression": "none", "write_page_checksum": False}
    table = pl.read_parquet(path)
    write(path, table.to_arrow(), group=3, **plain)
    size, before = path.stat().st_size, read(tmp_path)
    with loader_of(tmp_path):
        changed = table.with_columns(pl.col("ratio").list.eval(99 - pl.element()))
        write(path, changed.to_arrow(), group=3, **plain)
        assert path.stat().st_size == size
        found = read(tmp_path)
    assert not equal(found, before)
    assert equal(found, read(tmp_path))


@pytest.mark.parametrize(("of", "more"), [(history_table, 2), (event_rows, 1)], ids=["table", "rows"])
def test_files_of_another_version_are_not_used(
    tmp_path: Path, log: Log, of: Any, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader_of(tmp_path):
        monkeypatch.setattr(of, "_VERSION", of._VERSION + 1)
        with loader_of(tmp_path):
            assert len(files(tmp_path)) == 2 + more


@pytest.mark.parametrize("spilled", [False, True], ids=["memory", "disk"])
def test_a_buffer_gives_what_was_added(tmp_path: Path, spilled: bool) -> None:
    none, values = np.empty(0, np.int64), np.arange(1000, dtype=np.int16)
    for given in (values[:0], values):
        paths = [tmp_path / f"{name} {len(given)}" if spilled else None for name in ("whole", "gathered")]
        buffers = [SpillBuffer(values.dtype, path) for path in paths]
        for buffer in buffers:
            for part in np.split(given, 4) if len(given) else ():
                buffer.add(part)
        halves = np.array([500, 0]) if len(given) else none
        found = [buffers[0].whole(), buffers[1].gathered(halves, np.full_like(halves, 500))]
        assert [each.dtype for each in found] == [np.int16] * 2
        assert np.array_equal(found[0], given)
        assert np.array_equal(found[1], np.roll(given, 500))
