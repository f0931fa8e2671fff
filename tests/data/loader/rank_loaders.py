"""Loaders of two small sources, for tests on several ranks."""

import threading

from patience import PATIENCE_S
from sets import SCHEMA, samples_of

from fsdata import FreeScaleDataLoader, ParquetSource, Polynomial

COST = Polynomial(linear=1, quadratic=1, candidate=1)
ALL = [*range(40), *range(100, 123)]


def loader_on(folder, sources=None, **options):
    if sources is None:
        sources = [
            ParquetSource(str(folder / "own")),
            ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}),
        ]
    return FreeScaleDataLoader(sources, SCHEMA, **{"batch_size": 4, "timeout_s": PATIENCE_S, **options})


def rows_of(batch):
    return [sample["row"] for sample in samples_of(batch)]


def threads_left():
    """Threads of the loader; those of torch's store client and of test tools stay."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("fsdata", "Thread-"))]
