"""`loader.stats()`: what a loader says of its own work."""

import json
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
import torch
from patience import PATIENCE_S, until
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsdata.nodes.node import Timing

SCHEMA = Schema(context=("row",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    pl.DataFrame({"row": range(60)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def test_what_a_loader_says_of_its_work(folder):
    with FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=10, num_threads=1, prefetch=0) as loader:
        nothing = dict.fromkeys(("batches", "waiting", "dropped", "retries", "skipped", "decoded_peak_bytes"), 0)
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


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """Twelve row groups of 100 rows of 100 events, about 80 kB each when they are decoded."""
    folder = tmp_path_factory.mktemp("heavy")
    item = np.random.default_rng(0).integers(0, 1 << 40, (1200, 100)).tolist()
    pl.DataFrame({"row": range(1200), "item": item}).write_parquet(folder / "a.parquet", row_group_size=100)
    return folder


class AtOnce(ThreadPoolExecutor):
    """Decodes where it is asked to, so that what is held does not depend on how fast a thread is."""

    def submit(self, function, /, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.mark.parametrize("decoder", ["pages", "pyarrow"])
@pytest.mark.parametrize("threads", [0, 3])
def test_memory_bounds_what_is_decoded_ahead_and_changes_no_batch(heavy, decoder, threads):
    schema = Schema(context=("row",), sequences=(Sequence("uih", ("item",)),))

    def read(memory):
        with FreeScaleDataLoader(
            ParquetSource(heavy, decoder=decoder), schema, batch_size=50, shuffle=True, num_threads=max(threads, 1),
            shuffle_window=4, memory=memory, prefetch=0,
        ) as loader:  # fmt: skip
            if not threads:
                loader._rows._executor.shutdown()
                loader._rows._executor = AtOnce()
            batches = [batch.features.to_dict() for batch in loader]
            return batches, loader.stats()["decoded_peak_bytes"]

    (free, most), (bound, less) = read(None), read("520kB")
    assert 4 * 80_000 < less <= 520_000
    assert threads or (most > 8 * 80_000 and less > 6 * 80_000)
    for one, other in zip(free, bound, strict=True):
        for name in ("row", "item"):
            assert torch.equal(one[name].values(), other[name].values())
            assert torch.equal(one[name].lengths(), other[name].lengths())


def test_a_share_of_the_epoch_is_that_of_this_rank(heavy):
    """Each of three ranks has four of the twelve row groups, and a quarter of them, one, is decoded ahead."""
    options = {"shuffle": True, "shuffle_window": 0.25, "num_threads": 1, "prefetch": 0}
    schema = Schema(context=("row",), sequences=(Sequence("uih", ("item",)),))
    source = ParquetSource(heavy, decoder="pyarrow")
    most = []
    for ranks in (1, 3):
        with FreeScaleDataLoader(source, schema, batch_size=50, rank=0, world_size=ranks, **options) as loader:
            loader._rows._executor.shutdown()
            loader._rows._executor = AtOnce()
            next(iter(loader))
            most.append(len(loader._rows._pending))
    assert most == [3, 1]


def test_a_window_that_memory_cannot_hold_is_held_and_told_once(heavy, caplog):
    source, options = ParquetSource(heavy), {"shuffle": True, "shuffle_window": 3, "num_threads": 2}
    with FreeScaleDataLoader(source, SCHEMA, batch_size=50, memory=100, **options) as loader:
        assert sum(len(batch) for batch in loader) == 1200
        assert loader.stats()["decoded_peak_bytes"] > 100
    assert [record.getMessage() for record in caplog.records if "shuffle_window" in record.getMessage()] == [
        "memory=100 bytes are less than the 2400 bytes of the rows that are shuffled together, which are held all the "
        "same. Give more, or a smaller shuffle_window"
    ]
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        FreeScaleDataLoader(source, SCHEMA, batch_size=50, memory="much")


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
