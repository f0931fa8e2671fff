"""Whatever ends a thread of the loader reaches the training loop, and the other ranks: also what is no `Exception`.

User code is called in every kind of thread: `map` in decode threads, `adapt` and cost models in the prefetch thread, a
loader inside `rebalance` there, too, and a filesystem of the user's in I/O threads, in footer threads and in the thread
that looks for new files.
"""

from dataclasses import replace

import polars as pl
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from growing import FAST
from patience import PATIENCE_S
from rank_loaders import loader_on
from sets import write
from worlds import shared_world

from fsdata import Balance, Follow, ParquetSource, Polynomial
from fsdata.tensors.rebalancing import rebalance


class Odd(BaseException):
    pass


RAISED = [SystemExit(7), KeyboardInterrupt(), pl.exceptions.PanicException("panic"), Odd(), StopIteration(), KeyError()]


class Raises:
    """A callable, a cost model, a loader and a filesystem that raises when it is called for the `after`th time."""

    def __init__(self, error, after=3):
        self.left = after
        self.error = error

    def __call__(self, given):
        self.left -= 1
        if self.left <= 0 and self.error is not None:
            raise self.error
        return given

    def __iter__(self):
        for _ in range(9):
            yield self({"x": torch.arange(8)})


class Store(MemoryFileSystem):
    """Files in memory. `calls` is called with whatever is asked for."""

    protocol = "odd"
    store, pseudo_dirs = {}, [""]
    calls = staticmethod(id)

    def _open(self, path, **options):
        self.calls(path)
        return super()._open(path, **options)

    def find(self, path, **options):
        self.calls(path)
        return super().find(path, **options)

    def cat_file(self, path, *place, **options):
        self.calls(path)
        return super().cat_file(path, *place, **options)


class Cost(Polynomial):
    """Costs whatever `call` says."""

    def __init__(self, call):
        super().__init__(linear=1)
        object.__setattr__(self, "call", call)

    def __call__(self, lengths):
        return super().__call__(self.call(lengths))


def rows_of(folder, call=None, **options):
    given = {"batch_size": 2, "num_threads": 2, "shuffle": True, **options}
    return loader_on(folder, ParquetSource(folder / "set", map=call), **given)


def store(call, *, opened=False, **options):
    """A loader over a store, which calls `call` from then on, or when it is `opened`."""
    Store.calls = staticmethod(call if opened else id)
    loader = loader_on("/", ParquetSource("/set", filesystem=Store(), **options.pop("source", {})), **options)
    Store.calls = staticmethod(call)
    return loader


LOOPS = {
    "map": lambda folder, call: rows_of(folder, call),
    "map, nothing made ahead": lambda folder, call: rows_of(folder, call, prefetch=0),
    "adapt": lambda folder, call: rows_of(folder, adapt=call),
    "an inner loader": lambda folder, call: rebalance(call, lengths=lambda batch: batch["x"]),
    "lengths": lambda folder, call: rebalance([{"x": torch.arange(8)}] * 9, lengths=lambda batch: call(batch)["x"]),
    "reading ahead": lambda folder, call: store(call),
    "reading": lambda folder, call: store(call, read_ahead=0),
    "looking for files": lambda folder, call: store(call, source={"follow": Follow(**FAST)}),
    "opening": lambda folder, call: store(call, opened=True),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path / "set", 60, files=3)
    monkeypatch.setattr(Store, "store", {})
    monkeypatch.setattr(Store, "calls", staticmethod(id))
    for path in (tmp_path / "set").iterdir():
        Store().pipe(f"/set/{path.name}", path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("loop", LOOPS)
def test_it_reaches_the_loop(folder, loop, error):
    as_it_is = not isinstance(error, StopIteration)  # that one would end a loop without a word
    if loop == "an inner loader" and not as_it_is:
        return  # ends that loader
    with pytest.raises(type(error) if as_it_is else RuntimeError), LOOPS[loop](folder, Raises(error)) as loader:
        list(loader)


TOGETHER = {
    "map": lambda source, call: loader_on("/", replace(source, map=call), balance=Balance()),
    "map, and rows drop out": lambda source, call: loader_on(
        "/", replace(source, map=call, filter=pl.col("row") % 7 != 3)
    ),
    "adapt": lambda source, call: loader_on("/", source, balance=Balance(), adapt=call),
    "a cost model": lambda source, call: loader_on("/", source, balance=Balance(cost=Cost(call))),
    "an inner loader": lambda source, call: rebalance(call, lengths=lambda batch: batch["x"], timeout_s=PATIENCE_S),
}


def raises_on_rank_1(rank, world_size, folder):
    """What each kind of loop raises here."""
    said, source = {}, ParquetSource(folder / "set")
    for name, make in TOGETHER.items():
        for error in (SystemExit(7), Odd("odd")):
            with pytest.raises(BaseException) as caught, make(source, Raises(error if rank == 1 else None)) as loader:
                list(loader)
            said[name, type(error).__name__] = f"{type(caught.value).__name__}: {caught.value}"
    return said


def test_it_reaches_the_other_ranks(tmp_path):
    write(tmp_path / "set", 60, files=3)
    of_rank_0, of_rank_1 = shared_world(2).run(raises_on_rank_1, tmp_path)
    for (name, kind), said in of_rank_1.items():
        assert said.startswith(kind), name
        assert "PeerError: rank 1 failed at step " in of_rank_0[name, kind]
        assert f": {said}" in of_rank_0[name, kind]
