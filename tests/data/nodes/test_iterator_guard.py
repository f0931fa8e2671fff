"""One iterator of a loader at a time, in the process that its threads belong to; what signals do to it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import sets
import torch
from data_kit import as_python, loader_on, rows_of
from patience import PATIENCE_S
from rank_loaders import threads_end
from sets import SCHEMA, two_sources, write
from test_rebalance import PATHS, Loader, marks_of
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from worlds import shared_world

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource, PeerError, StateError
from fsdata.nodes import Batches, LocalSteps, Rows, Steps, Units
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


TOOK_OVER = r"this iterator has ended: another iter\(\) of the same loader took over"


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


LOADED = "this iterator has ended: load_state_dict.* Begin a new iter"


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


def test_a_state_that_is_refused_leaves_the_loop_as_it_is(tmp_path):
    write(tmp_path / "set", 40)
    with loader_on(tmp_path / "set", SCHEMA, batch_size=4) as loader:
        steps = 0
        for steps, _ in enumerate(loader, 1):
            if steps == 3:
                state = loader.state_dict()
                with pytest.raises(StateError):
                    loader.load_state_dict({**state, "version": 99})
                assert loader.state_dict() == state
    assert steps == 10


def test_an_iterator_that_another_one_followed_does_not_move_the_state(tmp_path):
    write(tmp_path / "set", 40)
    with loader_on(tmp_path / "set", SCHEMA, batch_size=4) as loader:
        first = iter(loader)
        next(first)
        next(first)  # the thread has made more
        next(iter(loader))
        state = loader.state_dict()
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            next(first)
        assert loader.state_dict() == state


class Wrapped(IterableDataset):
    """Rows of what `make` makes, in every worker of a DataLoader."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(rows_of(self.make()))


def nodes_on(source):
    return Batches(LocalSteps(Steps(Rows(Units(source, SCHEMA)), 4)))


def share_of_worker(source):
    worker = get_worker_info()
    return FreeScaleDataLoader(source, SCHEMA, batch_size=4, rank=worker.id, world_size=worker.num_workers)


def test_workers_of_a_dataloader_read_a_share_each_or_not_at_all(tmp_path):
    write(tmp_path / "set", 40)
    source = ParquetSource(tmp_path / "set")
    with FreeScaleDataLoader(source, SCHEMA, batch_size=4) as made_before:
        for make in (lambda: made_before, partial(loader_on, source, SCHEMA, batch_size=4), partial(nodes_on, source)):
            rows = DataLoader(Wrapped(make), num_workers=2, batch_size=None)
            with pytest.raises(RuntimeError, match="each row comes once per worker"):
                list(rows)
    rows = DataLoader(Wrapped(partial(share_of_worker, source)), num_workers=2, batch_size=None)
    assert sorted(rows) == list(range(40))


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


SCRIPT = """
import os, sys, threading
sys.path[:0] = {tests!r}
import sets
from sets import SCHEMA
from fsdata import FreeScaleDataLoader, ParquetSource
with FreeScaleDataLoader(ParquetSource({data!r}), SCHEMA, batch_size=2, prefetch=3, shuffle=True) as loader:
    for batch in loader:
        print("batch", flush=True)
        threading.Event().wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process(tmp_path, number):
    write(tmp_path / "set", 200)
    script = textwrap.dedent(SCRIPT).format(
        tests=[str(path) for path in Path(sets.__file__).parents[:3]], data=str(tmp_path / "set")
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "batch\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -number
    if number == signal.SIGINT:
        assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
