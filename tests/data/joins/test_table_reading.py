"""Row groups of a table of histories are decoded by several threads: what comes out is what one thread makes."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_kit import assert_same, loader_on
from data_kit import write as write_file
from event_log import SCHEMA, Log, anchors
from patience import PATIENCE_S

from fsdata import DataError, FreeScaleDataLoader
from fsdata.compose.reading import open_source
from fsdata.errors import Fault
from fsdata.histories import history_table

GROUPS = 20  # row groups of the table: one for each user


@pytest.fixture
def log(tmp_path: Path) -> Log:
    drawn = Log.drawn(5, users=GROUPS)
    write(tmp_path, drawn)
    return drawn


def write(folder: Path, log: Log) -> Path:
    """Every history in a row group of its own, without compression, so that a damaged page cannot be read."""
    log.write(folder)
    path = folder / "histories.parquet"
    return write_file(path, pq.read_table(path), group=1, compression="zstd")


def by_threads(monkeypatch: pytest.MonkeyPatch, threads: int, ahead: int = history_table._AHEAD) -> None:
    monkeypatch.setattr(history_table, "usable_cores", lambda: threads)
    monkeypatch.setattr(history_table, "_AHEAD", ahead)


def loader_of(folder: Path, **given: Any) -> FreeScaleDataLoader:
    return loader_on(anchors(folder, as_of_given=given), SCHEMA, batch_size=7)


@pytest.mark.parametrize("bucketed", [None, 1], ids=["memory", "disk"])
@pytest.mark.parametrize("ahead", [1, 1000, 1 << 30])
def test_several_threads_give_what_one_gives(
    tmp_path: Path, log: Log, bucketed: int | None, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 4):
        by_threads(monkeypatch, threads, ahead)
        with loader_of(tmp_path, bucketed=bucketed) as loader:
            found.append(list(loader))
    assert_same(*found)


def watched(monkeypatch: pytest.MonkeyPatch, before: Any, after: Any) -> None:
    """Call `before` and `after` with the number of every row group that is decoded."""
    part = history_table._TableReader._decode

    def decoded(self: Any, group: Any) -> Any:
        before(group.index)
        try:
            return part(self, group)
        finally:
            after(group.index)

    monkeypatch.setattr(history_table._TableReader, "_decode", decoded)


class Late:
    """An executor that works when somebody asks for a result. most: results that somebody waited for at a time."""

    most = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self._open = Late.most = 0

    def __enter__(self) -> "Late":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._open == 0

    def submit(self, part: Any, group: Any) -> SimpleNamespace:
        self._open += 1
        Late.most = max(Late.most, self._open)
        return SimpleNamespace(result=lambda: self._result(part, group))

    def _result(self, part: Any, group: Any) -> Any:
        self._open -= 1
        return part(group)


@pytest.mark.parametrize(
    ("threads", "room", "most"), [(9, 0, 1), (9, 1, 2), (9, 3, 4), (3, 9, 4), (99, 99, GROUPS - 1)]
)
def test_memory_holds_as_many_as_it_has_room_for(
    tmp_path: Path, threads: int, room: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row group is the largest. Small ones do not say that those after them are small, too."""
    drawn = Log.drawn(5, users=GROUPS)
    lengths = {uid: len(of["ts"]) for uid, of in drawn.events.items()}
    events = {uid: drawn.events[uid] for uid in sorted(lengths, key=lengths.__getitem__, reverse=True)}
    write(tmp_path, Log(events=events, items=drawn.items))
    largest = max(lengths.values()) * (8 + 8 + 1 + 2 + 1)  # bytes of an event: item, ts, type, ratio, mask
    by_threads(monkeypatch, threads, ahead=room * largest)
    monkeypatch.setattr(history_table, "ThreadPoolExecutor", Late)
    loader_of(tmp_path).close()
    assert Late.most == most


def test_the_first_fault_is_that_of_the_first_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one was found before."""
    log = Log.drawn(5, users=GROUPS)
    first, second = [number for number, of in enumerate(log.events.values()) if len(of["ts"]) > 2][2:4]
    for number in (first, second):
        of = list(log.events.values())[number]
        of["item"] = [None if place == 1 else item for place, item in enumerate(of["item"])]  # type: ignore[misc]
    write(tmp_path, log)
    found = threading.Event()
    by_threads(monkeypatch, second - first + 1)
    watched(
        monkeypatch,
        lambda group: group != first or found.wait(PATIENCE_S),
        lambda group: found.set() if group == second else None,
    )
    with pytest.raises(DataError, match=f"row group {first}, row 0: item"):
        loader_of(tmp_path)
    assert found.is_set()


def damage(path: Path, groups: list[int]) -> None:
    raw, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    for group in groups:
        (column,) = (each for each in range(metadata.num_columns) if "ts" in metadata.schema.column(each).path)
        chunk = metadata.row_group(group).column(column)
        at = chunk.data_page_offset + chunk.total_compressed_size - 6
        raw[at : at + 4] = bytes(each ^ 255 for each in raw[at : at + 4])
    path.write_bytes(raw)


def test_skipped_row_groups_are_reported_by_all_loaders_that_use_the_table(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the loader that has read it, and by one that maps the same arrays."""
    long = [number for number, of in enumerate(log.events.values()) if len(of["ts"]) > 8]
    damage(tmp_path / "histories.parquet", long[1:4])
    by_threads(monkeypatch, 4)
    later = threading.Event()
    watched(
        monkeypatch,
        lambda group: group != long[1] or later.wait(PATIENCE_S),
        lambda group: later.set() if group == long[2] else None,
    )
    given = {"bucketed": 1, "on_error": "skip"}
    with loader_of(tmp_path, **given) as loader, loader_of(tmp_path, **given) as sharing:
        assert [(each.row_group, each.rows) for each in loader.skipped] == [(group, 1) for group in long[1:4]]
        assert sharing.skipped == loader.skipped
        assert caplog.text.count("left out: histories.parquet, row group") == 6


def test_a_check_shares_nothing_and_notes_in_the_order_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.drawn(5, users=GROUPS)
    bad = [number for number, of in enumerate(log.events.values()) if len(of["ts"]) > 2]
    for number in bad:
        list(log.events.values())[number]["item"][1] = None  # type: ignore[call-overload]
    write(tmp_path, log)
    by_threads(monkeypatch, 4)
    notes: list[Fault] = []
    checked = open_source(anchors(tmp_path, as_of_given={"bucketed": 1}), SCHEMA, notes=notes)
    with pytest.raises(DataError, match=f"row group {bad[0]}, row 0: item"):  # and not the table of the check
        loader_of(tmp_path, bucketed=1)
    checked.close()
    assert [each.row_group for each in notes] == bad
    assert np.array_equal(np.concatenate([each.rows for each in notes if each.rows is not None]), np.zeros(len(bad)))
