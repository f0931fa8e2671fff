"""Collisions of requests whose histories are stored once: those of the same samples in rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_once_data import OPTIONS, Samples, opened
from tools_kit import answered, refused

from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.held import hold_stored_once, renumbered
from freescale_tools.scan.files import open_files

SETTINGS = {"dim": 4, "orders": ("file", "shuffled", "time"), "time": "at"}


@given(
    seed=st.integers(0, 10**6),
    group=st.integers(1, 20),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 4),
    max_length=st.none() | st.integers(1, 9),
)
def test_as_in_rows(tmp_path_factory, seed, group, ranks, batch_size, max_length):
    folder = tmp_path_factory.mktemp("rows")
    Samples.drawn(seed).write(folder, group=group)
    size = {"ranks": ranks, "batch_size": batch_size, "max_length": max_length, "pairs": 20}
    rows = estimate(open_files([str(folder / "rows")]), "item", **size, **SETTINGS)
    with opened(folder) as requests:
        assert estimate(requests.files, "item", requests=requests, **size, **SETTINGS) == rows


def test_memory_holds_the_table_and_no_window(tmp_path):
    samples = Samples.drawn(5, requests=400)
    samples.write(tmp_path)
    with opened(tmp_path) as requests:
        held = hold_stored_once(requests, "item", max_length=3, ranks=1, batch_size=2)
        assert len(held.ids) == requests.events < held.lengths.sum()
        alone = hold_stored_once(requests, None, max_length=3, ranks=1, batch_size=2)
        assert (len(alone.ids), alone.starts.tolist()) == (0, held.starts.tolist())


def test_of_more_requests_than_memory_holds_some_stretches_are_taken(tmp_path):
    samples = Samples.drawn(5, requests=400)
    samples.write(tmp_path, files=2, group=10)
    with opened(tmp_path) as requests:
        held = hold_stored_once(requests, "item", max_length=None, ranks=1, batch_size=2, most_ids=400)
    assert 50 < held.rows_read <= 100
    assert (held.rows, len(held.units)) == (400, 8)
    times = [at for _, at in samples.requests]
    starts = [n for n in range(400) if times[n : n + held.units[0][0]] == held.time[: held.units[0][0]].tolist()]
    assert starts


@pytest.mark.parametrize(("kind", "per_day"), [(pa.int64(), 0), (pa.timestamp("s"), 86_400 * 10**9)])
def test_the_unit_of_times_is_known(tmp_path, kind, per_day):
    Samples.drawn(5).write(tmp_path, time=kind)
    with opened(tmp_path) as requests:
        held = hold_stored_once(requests, "item", max_length=3, ranks=1, batch_size=2)
    assert (held.per_day, bool(held.known.all())) == (per_day, True)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64])
def test_ids_of_any_type_are_renumbered(kind):
    limits = np.iinfo(kind)
    ids = np.array([limits.max, limits.min, limits.max - 1, limits.min], kind)
    numbers, distinct = renumbered(ids)
    assert numbers.dtype == np.uint32
    assert len(np.unique(numbers)) == 3
    assert numbers[1] == numbers[3]
    assert numbers.max() < distinct


FILES = ("--histories", "histories", *OPTIONS)
SIZE = ("--batch-size", "3", "--ranks", "2", "--ids", "item")


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Samples.drawn(2, requests=400).write(tmp_path)
    document = answered("collisions", "requests", *SIZE, *FILES)
    stored = {"paths": ["histories"], "on": "user", "event_time": "when", "time": "at"}
    assert document["histories"] == stored
    rows = answered("collisions", "rows", *SIZE, "--time", "at")
    assert (rows["collisions"], rows["histories"]) == (document["collisions"], None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--on", "user"), "--on without --histories: name the files of the histories, too"),
        ((*FILES, "--ids", "shown"), "no file has a column 'shown'"),
        ((*FILES, "--ids", "price"), "collisions are counted on integer ids"),
    ],
    ids=["no histories", "no such list", "floats"],
)
def test_refused(tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    Samples.drawn(2).write(tmp_path)
    assert message in refused("collisions", "requests", *SIZE, *more)
    assert not (tmp_path / "freescale-report").exists()
