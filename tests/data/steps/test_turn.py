"""One iterator of a loader at a time, in the process that its threads belong to."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sets
import torch
from patience import PATIENCE_S
from sets import SCHEMA, samples_of, two_sources
from worlds import shared_world

import fsdata
from fsdata import Balance, FreeScaleDataLoader, ParquetSource
from fsdata.balance.rebalance.rebalance import rebalance

# The child of every fork uses a loader that its parent has begun with, or only made.
FORK = """
import os, signal, sys, torch
from pathlib import Path
import sets
from sets import SCHEMA, two_sources
from fsdata import FreeScaleDataLoader, rebalance

sources = two_sources(Path(sys.argv[1]))
makes = {
    "loader": lambda: FreeScaleDataLoader(sources, SCHEMA, batch_size=4),
    "rebalance": lambda: rebalance([{"x": torch.arange(8)}] * 16, lengths=lambda batch: batch["x"]),
}
for kind, make in makes.items():
    for way in ("iter", "next", "unused"):
        with make() as loader:
            iterator = iter(loader)
            if way != "unused":
                next(iterator)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    next(iter(loader) if way == "iter" else iterator)
                    print(kind, way, "read", flush=True)
                except RuntimeError as error:
                    print(kind, way, error, flush=True)
                loader.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, (kind, way)
            print(kind, way, sum(1 for _ in iterator), "more in the parent", flush=True)
"""


def test_a_loader_used_before_a_fork_raises_in_the_child(tmp_path):
    paths = [str(Path(fsdata.__file__).parents[1]), str(Path(sets.__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.split(" ", 2)[2] for line in said[1::2]] == [f"{n} more in the parent" for n in (15, 15, 16) * 2]
    assert said[4] == "loader unused read"  # it had no thread yet
    for place in (0, 2, 6, 8):
        assert "this loader was used in process " in said[place]
        assert "Make the loader in the process that iterates it" in said[place]


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
