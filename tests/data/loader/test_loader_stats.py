"""`loader.stats()`: what a loader says of its own work."""

import json
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from data_kit import DECODERS, assert_same, load, loader_on
from patience import until

from fsdata import ParquetSource, Schema, Sequence
from fsdata.nodes.timing import Timing

SCHEMA = Schema(context=("row",))
HISTORIES = Schema(context=("row",), sequences=(Sequence("uih", ("item",)),))
EXECUTOR = "fsdata.nodes.rows.ThreadPoolExecutor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    pl.DataFrame({"row": range(60)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def test_what_a_loader_says_of_its_work(folder):
    with loader_on(folder, SCHEMA, batch_size=10, prefetch=0) as loader:
        names = ("batches", "waiting", "dropped", "retries", "skipped", "bytes_read", "decoded_peak_bytes")
        nothing = dict.fromkeys(names, 0)
        remote = {"bytes": 0, "unplanned_reads": 0, "read_ahead_peak_bytes": 0}
        assert loader.stats() == {**nothing, "remote": remote, "seconds": {}}
        assert sum(len(batch) for batch in loader) == 60
        found = loader.stats()
    assert found["batches"] == 6
    assert set(found["seconds"]) == {"decode", "wait_for_decoding", "assemble", "wait"}
    assert found["seconds"]["wait"] >= found["seconds"]["wait_for_decoding"] > 0
    assert json.loads(json.dumps(found)) == found


def test_batches_that_wait_are_counted(folder):
    with loader_on(folder, SCHEMA, batch_size=10, prefetch=3) as loader:
        batches = iter(loader)
        next(batches)
        waiting = until(lambda: loader.stats()["waiting"] >= 3 and loader.stats()["waiting"])
        assert waiting <= 4  # one more is in the hands of the thread that makes them
        assert len(list(batches)) == 5
        assert loader.stats()["waiting"] == 0


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """Twelve row groups of 100 rows of 100 events, about 80 kB each when they are decoded."""
    folder = tmp_path_factory.mktemp("heavy")
    item = np.random.default_rng(0).integers(0, 1 << 40, (1200, 100)).tolist()
    pl.DataFrame({"row": range(1200), "item": item}).write_parquet(folder / "a.parquet", row_group_size=100)
    return folder


class AtOnce(ThreadPoolExecutor):
    """Decodes where it is asked to, so that what is held does not depend on how fast a thread is; counts it."""

    submitted = 0

    def submit(self, function, /, *arguments):
        AtOnce.submitted += 1
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("threads", [0, 3])
def test_memory_bounds_what_is_decoded_ahead_and_changes_no_batch(heavy, decoder, threads, monkeypatch):
    if not threads:
        monkeypatch.setattr(EXECUTOR, AtOnce)
    options = {"batch_size": 50, "shuffle": True, "shuffle_window": 4, "num_threads": max(threads, 1), "prefetch": 0}

    def read(memory):
        batches, loader = load(ParquetSource(heavy, decoder=decoder), HISTORIES, memory=memory, **options)
        return batches, loader.stats()["decoded_peak_bytes"]

    (free, most), (bound, less) = read(None), read("520kB")
    assert 4 * 80_000 < less <= 520_000
    assert threads or (most > 8 * 80_000 and less > 6 * 80_000)
    assert_same(free, bound)


def test_a_share_of_the_epoch_is_that_of_this_rank(heavy, monkeypatch):
    """Each of three ranks has four of the twelve row groups, and a quarter of them, one, is decoded ahead."""
    monkeypatch.setattr(EXECUTOR, AtOnce)
    options = {"shuffle": True, "shuffle_window": 0.25, "prefetch": 0, "batch_size": 50}
    decoded = []
    for ranks in (1, 3):
        AtOnce.submitted = 0
        options |= {"rank": 0, "world_size": ranks}
        with loader_on(ParquetSource(heavy, decoder="pyarrow"), HISTORIES, **options) as loader:
            next(iter(loader))
        decoded.append(AtOnce.submitted)
    assert decoded == [3 + 3, 1 + 1]


def test_a_window_that_memory_cannot_hold_is_held_and_told_once(heavy, caplog):
    batches, loader = load(heavy, SCHEMA, memory=100, shuffle=True, shuffle_window=3)
    assert sum(map(len, batches)) == 1200
    assert loader.stats()["decoded_peak_bytes"] > 100
    assert [record.getMessage() for record in caplog.records if "shuffle_window" in record.getMessage()] == [
        "memory=100 bytes are less than the 2400 bytes of the rows that are shuffled together, which are kept all the "
        "same. Give more, or a smaller shuffle_window"
    ]
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        loader_on(heavy, SCHEMA, memory="much")


def test_a_block_that_raises_counts():
    spent = Timing()
    with pytest.raises(KeyError), spent.of("decode"):
        raise KeyError
    with spent.of("decode"), spent.of("wait"):
        pass
    assert set(spent.seconds()) == {"decode", "wait"}
