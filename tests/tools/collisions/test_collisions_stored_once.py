"""Collisions of requests whose histories are stored once: those of the same samples in rows."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_once_data import OPTIONS, Samples, opened

from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.held import hold_stored_once, renumbered
from freescale_tools.collisions.table_slots import AskedTable, predict_table
from freescale_tools.scan.files import open_files

COMMAND = "collisions"
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
        assert held.per_day == per_day
        table = predict_table(
            held.ids,
            held.starts,
            held.lengths,
            distinct=held.distinct,
            asked=AskedTable(rows=9, ttl=1),
            time=held.time,
            known=held.known,
            per_day=held.per_day,
        )
    assert (table["occurrences"], table["hours"]) == (held.lengths.sum(), 1)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64])
def test_ids_of_any_type_are_renumbered(kind):
    limits = np.iinfo(kind)
    ids = np.array([limits.max, limits.min, limits.max - 1, limits.min], kind)
    numbers, distinct = renumbered(ids)
    assert numbers.dtype == np.uint32
    assert len(np.unique(numbers)) == 3
    assert numbers[1] == numbers[3]
    assert numbers.max() < distinct


def test_the_command(call, tmp_path):
    Samples.drawn(2, requests=400).write(tmp_path)
    settings = ("--batch-size", "3", "--ranks", "2", "--out", tmp_path / "out", "--json")
    files = ("--histories", tmp_path / "histories", *OPTIONS)
    done = call(tmp_path / "requests", "--ids", "item", *files, *settings)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    stored = {"paths": [str(tmp_path / "histories")], "on": "user", "event_time": "when", "time": "at"}
    assert document["histories"] == stored
    rows = call(tmp_path / "rows", "--ids", "item", "--time", "at", *settings)
    assert json.loads(rows.stdout)["collisions"] == document["collisions"]
    assert json.loads(rows.stdout)["histories"] is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--on", "user"), "--on without --histories: name the files of the histories, too"),
        (("--histories", "histories", *OPTIONS, "--ids", "shown"), "no file has a column 'shown'"),
        (("--histories", "histories", *OPTIONS, "--ids", "price"), "collisions are counted on integer ids"),
    ],
    ids=["no histories", "no such list", "floats"],
)
def test_refused(call, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    Samples.drawn(2).write(tmp_path)
    done = call("requests", "--batch-size", "3", "--ranks", "2", "--ids", "item", *more)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "freescale-report").exists()
