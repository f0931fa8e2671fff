"""Loaders of two small sources, for tests on several ranks; and the law of states that all loaders keep."""

import gc
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import data_kit as kit
import pytest
from data_kit import assert_same, rows_of
from patience import until
from sets import SCHEMA

from fsdata import ParquetSource
from fsdata.batch import torchrec_binding

ALL = [*range(40), *range(100, 123)]


def loader_on(folder, sources=None, schema=SCHEMA, **options):
    sources = sources_of(folder) if sources is None else sources
    return kit.loader_on(sources, schema, **{"batch_size": 4, **options})


def sources_of(folder, **options):
    partner = {"columns": {"item": "items"}, "defaults": {"country": 77}}
    return [ParquetSource(folder / "own", **options), ParquetSource(folder / "partner", **options, **partner)]


def orders_of(loader, places):
    """The rows of every step of an epoch that is left after so many steps, for each of `places`."""
    orders = []
    for steps in places:
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            seen.append(rows_of(batch))
            if len(seen) == steps:
                break
        orders.append(seen)
    return orders


def threads_end():
    """Those of the loader do; those of torch's store client and of test tools stay."""

    def ended():
        return not any(thread.name.startswith(("fsdata", "Thread-")) for thread in threading.enumerate())

    gc.collect()  # loaders of earlier tests, which nothing refers to
    until(ended, "the end of the threads of a loader")


def read_and_go_on(make, every):
    """The batches of an epoch of `make()`, and the states before the first and after each. From every `every`-th of
    these states another loader goes on with the same batches, to the bit."""
    with make() as loader:
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
    for at in range(0, len(batches), every):
        with make() as again:
            again.load_state_dict(states[at])
            assert_same(again, batches[at:])
    return batches, states


def skips_as_islice(make, before, steps):
    """Two loaders at the same place, of which one reads the steps and the other skips them."""
    with make() as reads, make() as skips:
        for loader in (reads, skips):
            for _ in islice(loader, before):
                pass
            loader.load_state_dict(loader.state_dict())
        taken = len(list(islice(reads, steps)))
        state = reads.state_dict()
        assert skips.skip(steps) == taken
        after = skips.state_dict()
        assert after == state
        json.dumps(after)
        reads.load_state_dict(state)
        for _ in range(2):  # the rest of this epoch, or the next, and one more
            assert_same(skips, reads)


@contextmanager
def torchrec_is(module: object) -> Iterator[None]:
    """None: TorchRec is not installed. What was found out about it is forgotten before and after."""

    def forget():
        for each in vars(torchrec_binding).values():
            if hasattr(each, "cache_clear"):
                each.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchrec", module)
        forget()
        yield
    forget()
