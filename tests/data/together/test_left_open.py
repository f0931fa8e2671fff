"""Loaders that nobody closes: whoever drops them, or ends the process, is not kept waiting, and nothing aborts."""

import gc
import threading
import weakref

import fsspec
import pytest
import torch
import torch.distributed as dist
from growing import ENDLESS
from growing import loader_of as following
from growing import write as grow
from patience import PATIENCE_S, until
from sets import SCHEMA, write
from worlds import exit_codes

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource
from fsdata.tensors.rebalancing import rebalance


def loaders_on(folder):
    """One loader of every kind that has threads of its own."""
    rows = {"batch_size": 2, "num_threads": 1}
    remote = fsspec.filesystem("memory")
    for path in (folder / "set").iterdir():
        remote.pipe(f"/set/{path.name}", path.read_bytes())
    yield FreeScaleDataLoader(ParquetSource(folder / "set"), SCHEMA, **rows, prefetch=3)
    yield FreeScaleDataLoader(ParquetSource(folder / "set"), SCHEMA, **rows, prefetch=0)
    yield FreeScaleDataLoader(
        ParquetSource(folder / "set"), SCHEMA, **rows, shuffle=True, adapt=lambda batch: {"row": batch.features["row"]}
    )
    yield FreeScaleDataLoader(ParquetSource("memory://set"), SCHEMA, **rows, read_ahead=1)
    yield rebalance([{"x": torch.arange(8)}] * 16, lengths=lambda batch: batch["x"])
    yield following(folder / "grows", Follow(**ENDLESS))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "set", 40, files=2)
    grow(tmp_path / "grows", "0.parquet", range(4))
    return tmp_path


def end_with_open_loaders(rank, ranks, folder):
    left = []
    for loader in loaders_on(folder):
        for _ in loader:
            break
        left.append(loader)
    for loader in loaders_on(folder):
        left.append(iter(loader))
        next(left[-1])
    globals()["left"] = left  # as variables of a script


def test_a_process_that_ends_with_open_loaders_ends_well(folder):
    assert exit_codes(end_with_open_loaders, 1, folder) == [0]


def test_a_loader_that_nobody_refers_to_leaves_no_thread(folder):
    before = set(threading.enumerate())
    for loader in loaders_on(folder):
        gone = weakref.ref(loader)
        next(iter(loader))
        del loader
        gc.collect()
        until(lambda gone=gone: gone() is None)
    until(lambda: set(threading.enumerate()) <= before)


def end_with_open_exchanges(rank, ranks, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    limits = {"balance": Balance(), "timeout_s": PATIENCE_S}
    rows = FreeScaleDataLoader(ParquetSource(folder / "set"), SCHEMA, batch_size=2, **limits)
    foreign = rebalance([{"x": torch.arange(8)}] * 16, lengths=lambda batch: batch["x"], **limits)
    globals()["left"] = [iter(rows), iter(foreign)]
    for each in globals()["left"]:
        next(each)


def test_ranks_that_end_with_open_loaders_end_well(folder):
    assert exit_codes(end_with_open_exchanges, 2, folder) == [0, 0]
