"""One iterator of a loader at a time, in the process that its threads belong to; what signals do to it."""

import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import sets
from data_kit import loader_on, rows_of
from patience import PATIENCE_S
from sets import SCHEMA, write
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fsdata import FreeScaleDataLoader, ParquetSource, StateError
from fsdata.nodes import Batches, LocalSteps, Rows, Steps, Units

TOOK_OVER = r"this iterator has ended: another iter\(\) of the same loader took over"


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
