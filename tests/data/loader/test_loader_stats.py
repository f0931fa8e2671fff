"""`loader.stats()`: what a loader says of its own work."""

import json

import polars as pl
import pytest
from patience import PATIENCE_S, until
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Schema
from fsdata.steps.timing import Timing

SCHEMA = Schema(context=("row",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    pl.DataFrame({"row": range(60)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def test_what_a_loader_says_of_its_work(folder):
    with FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=10, num_threads=1, prefetch=0) as loader:
        nothing = dict.fromkeys(("batches", "waiting", "dropped", "retries", "skipped"), 0)
        remote = {"bytes": 0, "unplanned_reads": 0, "read_ahead_peak_bytes": 0}
        assert loader.stats() == {**nothing, "remote": remote, "seconds": {}}
        assert sum(len(batch) for batch in loader) == 60
        found = loader.stats()
    assert found["batches"] == 6
    assert set(found["seconds"]) == {"decode", "wait_for_decoding", "assemble", "wait"}
    assert found["seconds"]["wait"] >= found["seconds"]["wait_for_decoding"] > 0
    assert json.loads(json.dumps(found)) == found


def test_batches_that_wait_are_counted(folder):
    with FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=10, num_threads=1, prefetch=3) as loader:
        batches = iter(loader)
        next(batches)
        waiting = until(lambda: loader.stats()["waiting"] >= 3 and loader.stats()["waiting"])
        assert waiting <= 4  # one more is in the hands of the thread that makes them
        assert len(list(batches)) == 5
        assert loader.stats()["waiting"] == 0


def balanced(rank, size, folder):
    options = {"num_threads": 1, "balance": Balance(), "timeout_s": PATIENCE_S}
    with FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=5, **options) as loader:
        batches = len(list(loader))
        return batches, loader.stats()


def test_exchanges_are_counted(folder):
    for batches, found in shared_world(2).run(balanced, folder):
        assert found["batches"] == batches == 6
        assert found["seconds"]["exchange"] > 0


def test_a_block_that_raises_counts():
    spent = Timing()
    with pytest.raises(KeyError), spent.of("decode"):
        raise KeyError
    with spent.of("decode"), spent.of("wait"):
        pass
    assert set(spent.seconds()) == {"decode", "wait"}
