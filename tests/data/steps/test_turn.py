"""One iterator of a loader at a time, in the process that its threads belong to."""

import os
import threading

import pytest
import torch
from patience import PATIENCE_S
from sets import SCHEMA, samples_of, two_sources
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource
from fsdata.balance.rebalance.rebalance import rebalance


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
        for way in ("iter", "next", "unused"):
            with make() as loader:
                iterator = iter(loader)
                if way != "unused":
                    next(iterator)
                found[kind, way] = use_in_a_child(iterator, loader, way), sum(1 for _ in iterator)
    return found


def test_a_loader_used_before_a_fork_raises_in_the_child(tmp_path):
    (found,) = shared_world(1).run(fork_with_a_loader, tmp_path)
    assert [more for _, more in found.values()] == [15, 15, 16] * 2
    assert found["loader", "unused"][0] == "read"  # it had no thread yet
    for kind in ("loader", "rebalance"):
        for way in ("iter", "next"):
            assert "this loader was used in process " in found[kind, way][0]
            assert "Make the loader in the process that iterates it" in found[kind, way][0]


TOOK_OVER = r"this iterator has ended: another iter\(\) of the same loader took over"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_second_iterator_ends_the_first(tmp_path, prefetch):
    with FreeScaleDataLoader(two_sources(tmp_path), SCHEMA, batch_size=4, prefetch=prefetch) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        rows = [sample["row"] for sample in samples_of(next(second))]
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            next(first)
        rows += [sample["row"] for batch in second for sample in samples_of(batch)]
        assert sorted(rows) == [*range(40), *range(100, 123)]
        begun, later = iter(loader), iter(loader)  # neither has a thread yet
        next(later)
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            next(begun)


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
    options = {"batch_size": 4, "balance": Balance(timeout_s=PATIENCE_S), "timeout_s": PATIENCE_S}
    with FreeScaleDataLoader(ParquetSource(folder / "own"), SCHEMA, **options) as loader:
        first, second = iter(loader), iter(loader)
        next(second)
        with pytest.raises(RuntimeError, match=TOOK_OVER):
            next(first)
        steps = 1 + sum(1 for _ in second)
    return steps, threading.active_count() - before


def test_two_iterators_never_share_an_exchange(tmp_path):
    two_sources(tmp_path)
    assert shared_world(2).run(iterate_twice, tmp_path) == [(5, 0), (5, 0)]
