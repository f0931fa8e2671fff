"""Iterators of loaders that balance or follow, and of `rebalance`."""

import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from data_kit import as_python, loader_on
from patience import PATIENCE_S
from rank_loaders import threads_end
from sets import SCHEMA, two_sources
from test_iterator_guard import TOOK_OVER
from test_rebalance import PATHS, Loader, marks_of
from worlds import shared_world

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource, PeerError
from fsdata.tensors.rebalancing import rebalance


def use_in_a_child(iterator, loader, way):
    """What the child of a fork hears that uses what its parent has made. The child ends here."""
    end, other_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                next(iter(loader) if way == "iter" else iterator)
                said = "read"
            except RuntimeError as error:
                said = str(error)
            loader.close()
            os.write(other_end, said.encode())
        finally:
            os._exit(0)
    os.close(other_end)
    with open(end) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def fork_with_a_loader(rank, world_size, folder):
    """What children hear, and how many batches their parent still has, by kind of loader and way to use it."""
    sources = two_sources(folder)
    makes = {
        "loader": lambda: FreeScaleDataLoader(sources, SCHEMA, batch_size=4),
        "rebalance": lambda: rebalance([{"x": torch.arange(8)}] * 16, lengths=lambda batch: batch["x"]),
    }
    found = {}
    for kind, make in makes.items():
        for way in ("iter", "next"):
            with make() as loader:
                iterator = iter(loader)
                next(iterator)
                found[kind, way] = use_in_a_child(iterator, loader, way), sum(1 for _ in iterator)
    return found


def test_a_loader_used_before_a_fork_raises_in_the_child(tmp_path):
    (found,) = shared_world(1).run(fork_with_a_loader, tmp_path)
    for said, more in found.values():
        assert more == 15
        assert "this loader was used in process " in said
        assert "Make the loader in the process that iterates it" in said


def test_a_second_iterator_of_rebalance_ends_the_first():
    with rebalance([{"x": torch.arange(8)}] * 5, lengths=lambda batch: batch["x"]) as balanced:
        first = iter(balanced)
        next(first)
        assert len(list(balanced)) == 5
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            list(first)


def iterate_twice(rank, world_size, folder):
    """Both iterators are there before either has a thread: two threads must never share the exchange."""
    before = threading.active_count()
    with loader_on(folder / "own", SCHEMA, batch_size=4, balance=Balance()) as loader:
        first, second = iter(loader), iter(loader)
        next(second)
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            next(first)
        steps = 1 + sum(1 for _ in second)
    return steps, threading.active_count() - before


def test_two_iterators_never_share_an_exchange(tmp_path):
    two_sources(tmp_path)
    assert shared_world(2).run(iterate_twice, tmp_path) == [(5, 0), (5, 0)]


LOADED = "this iterator has ended: load_state_dict.* Call iter"


def rolled_back(loader, samples):
    """Load the state of the second batch after the fifth; the iterator ends, and another one resumes there."""
    seen, batches = [], iter(loader)
    for step in range(5):
        seen.append(samples(next(batches)))
        if step == 1:
            good = loader.state_dict()
    loader.load_state_dict(good)
    assert loader.state_dict() == good
    with pytest.raises(RuntimeError, match=LOADED):
        next(batches)
    assert loader.state_dict() == good
    rest = [samples(batch) for batch in loader]
    return len(rest) > 3 and rest[:3] == seen[2:]


def roll_back(rank, world_size, folder):
    """By kind of loader; `filter` has ranks that exchange a status word in every step."""
    options = {"batch_size": 2, "shuffle": True}
    plain, follow = ParquetSource(folder / "own"), Follow(every="10ms", idle="80ms", at_most=1)
    kept = replace(plain, filter=pl.col("row") > 3)
    found = []
    for source, balance, prefetch in (
        (plain, None, 2),
        (plain, None, 0),
        (kept, None, 2),
        (plain, Balance(), 3),
        (plain, Balance(), 0),
        (replace(plain, follow=follow), None, 2),
    ):
        with loader_on(source, SCHEMA, balance=balance, prefetch=prefetch, **options) as loader:
            found.append(rolled_back(loader, as_python))
    with rebalance(Loader(rank, [4] * 8), lengths=PATHS, timeout_s=PATIENCE_S) as balanced:
        found.append(rolled_back(balanced, marks_of))
    with loader_on(plain, SCHEMA, **options) as inner:
        for_inner = {"lengths": lambda batch: batch["x"], "timeout_s": PATIENCE_S}
        with rebalance(Adapted(inner), **for_inner) as balanced:
            found.append(rolled_back(balanced, lambda batch: batch["x"].tolist()))
    return found


class Adapted:
    """Another loader's rows as batches of one tensor."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        return ({"x": batch.features["row"].values()} for batch in self.loader)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_loaded_inside_a_loop_ends_its_iterator(tmp_path, ranks):
    two_sources(tmp_path)
    assert shared_world(ranks).run(roll_back, tmp_path) == [[True] * 8] * ranks


def rebalance_in_a_worker(rank, world_size):
    """A rank of the tests cannot have children, so it only looks like a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.worker._worker_info", SimpleNamespace(id=0, num_workers=1))
        with pytest.raises(RuntimeError, match="cannot exchange samples"):
            rebalance([{"x": torch.arange(8)}], lengths=lambda batch: batch["x"])


def test_rebalance_over_ranks_is_refused_in_a_worker():
    shared_world(2).run(rebalance_in_a_worker)


def interrupted(rank, world_size, folder):
    def train(loader):
        for batch in loader:
            if rank == 1 and batch.stats.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(PATIENCE_S)
            assert len(as_python(batch)) == 1

    loader = loader_on(folder / "own", SCHEMA, batch_size=1, balance=Balance())
    with pytest.raises(KeyboardInterrupt if rank == 1 else PeerError) as caught, loader:
        train(loader)
    threads_end()
    return str(caught.value)


def test_ctrl_c_on_one_rank_is_named_on_the_others(tmp_path):
    two_sources(tmp_path)
    texts = shared_world(2).run(interrupted, tmp_path)
    assert "rank 1" in texts[0]
    assert "raised KeyboardInterrupt" in texts[0]
