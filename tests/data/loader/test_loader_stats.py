"""`loader.stats()`: what a loader says of its own work."""

import json
import time
from unittest import mock

import polars as pl
import pytest
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Schema
from fsdata.decode.opened_source import OpenSource
from fsdata.steps.timing import Timing

SCHEMA = Schema(context=("row",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    pl.DataFrame({"row": range(60)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def test_time_is_counted_where_it_is_spent(folder):
    read = OpenSource.read

    def slow(*arguments):
        time.sleep(0.02)
        return read(*arguments)

    with (
        mock.patch.object(OpenSource, "read", slow),
        FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=10, num_threads=2, prefetch=0) as loader,
    ):
        nothing = dict.fromkeys(("batches", "waiting", "dropped", "retries", "skipped"), 0)
        remote = {"bytes": 0, "unplanned_reads": 0, "read_ahead_peak_bytes": 0}
        assert loader.stats() == {**nothing, "remote": remote, "seconds": {}}
        rows = sum(len(batch) for batch in loader)
        found = loader.stats()
    assert (rows, found["batches"]) == (60, 6)
    assert set(found["seconds"]) == {"decode", "wait_for_decoding", "assemble", "wait"}
    assert found["seconds"]["decode"] >= 6 * 0.02
    assert found["seconds"]["wait"] >= found["seconds"]["wait_for_decoding"] > 0
    assert json.loads(json.dumps(found)) == found


def test_batches_that_wait_are_counted(folder):
    with FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=10, num_threads=1, prefetch=3) as loader:
        batches = iter(loader)
        next(batches)
        end = time.monotonic() + 20
        while loader.stats()["waiting"] < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert 3 <= loader.stats()["waiting"] <= 4  # one more is in the hands of the thread that makes them
        assert len(list(batches)) == 5
        assert loader.stats()["waiting"] == 0


def balanced(rank, size, folder):
    with FreeScaleDataLoader(
        ParquetSource(folder),
        SCHEMA,
        batch_size=5,
        num_threads=1,
        timeout_s=PATIENCE_S,
        balance=Balance(timeout_s=PATIENCE_S),
    ) as loader:
        batches = len(list(loader))
        return batches, loader.stats()


def test_exchanges_are_counted(folder):
    for batches, found in shared_world(2).run(balanced, folder):
        assert found["batches"] == batches == 6
        assert found["seconds"]["exchange"] > 0


def test_a_block_that_raises_counts():
    timing = Timing()
    with pytest.raises(KeyError), timing.of("decode"):
        raise KeyError
    with timing.of("decode"), timing.of("wait"):
        pass
    assert set(timing.seconds()) == {"decode", "wait"}
