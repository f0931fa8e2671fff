"""One iterator of a loader at a time, in the process that its threads belong to; what signals do to it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import sets
import torch
from patience import PATIENCE_S
from rank_loaders import threads_end
from sets import SCHEMA, samples_of, two_sources, write
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, PeerError
from fsdata.nodes.tensors.rebalancing import rebalance


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
    options = {"batch_size": 4, "balance": Balance(), "timeout_s": PATIENCE_S}
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


def interrupted(rank, world_size, folder):
    def train(loader):
        for batch in loader:
            if rank == 1 and batch.stats.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(PATIENCE_S)
            assert len(samples_of(batch)) == 1

    loader = FreeScaleDataLoader(
        ParquetSource(str(folder / "own")), SCHEMA, batch_size=1, balance=Balance(), timeout_s=PATIENCE_S
    )
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
sys.path.insert(0, {tests!r})
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
    script = textwrap.dedent(SCRIPT).format(tests=str(Path(sets.__file__).parent), data=str(tmp_path / "set"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "batch\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -number
    if number == signal.SIGINT:
        assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
