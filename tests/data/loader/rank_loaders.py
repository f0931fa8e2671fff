"""Loaders of two small sources, for tests on several ranks; and the law of states that all loaders keep."""

import json
import threading

import torch
from patience import PATIENCE_S, until
from sets import SCHEMA, same, samples_of

from fsdata import FreeScaleDataLoader, ParquetSource, Polynomial

COST = Polynomial(linear=1, quadratic=1, candidate=1)
ALL = [*range(40), *range(100, 123)]
MARK = 10**15


def loader_on(folder, sources=None, schema=SCHEMA, **options):
    return FreeScaleDataLoader(
        sources or sources_of(folder), schema, **{"batch_size": 4, "timeout_s": PATIENCE_S, **options}
    )


def sources_of(folder, **options):
    partner = {"columns": {"item": "items"}, "defaults": {"country": 77}}
    return [ParquetSource(folder / "own", **options), ParquetSource(folder / "partner", **options, **partner)]


def request_id(row):
    """Texts of many lengths; every fourth is empty."""
    return f"row é{row} {'x' * 40}"[: (row % 4) * (row % 11) * 7]


def check_ids(batch):
    """Every id stands beside its row; the rows."""
    rows = batch.features["row"].values()
    passed = batch.passthrough
    assert list(passed) == ["number", "request_id", "other"]
    assert passed["request_id"] == [request_id(row) for row in rows.tolist()]
    assert passed["other"] == [str(row) for row in rows.tolist()]
    assert passed["number"].dtype == torch.int64
    assert torch.equal(passed["number"], MARK + rows)
    assert len(batch) == len(rows)
    return rows.tolist()


def rows_of(batch):
    return [sample["row"] for sample in samples_of(batch)]


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
            rest = list(again)
        assert len(rest) == len(batches) - at
        assert all(map(same, rest, batches[at:])), at
    return batches, states
