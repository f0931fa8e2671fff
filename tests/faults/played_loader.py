"""A loader on a played job, whose state goes on on another number of ranks."""

import contextlib
import functools
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from played_network import Job
from ranks_as_threads import Ranks

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence
from fsdata.nodes import units

LIMIT_S = 10.0
ROWS = 26  # 6 of them are dropped
BATCH_SIZE = 2
SCHEMA = Schema(sequences=(Sequence("uih", ("item",), max_length=5),), context=("row",))
OTHER_SIZES = (1, 2, 3, 5)
WAYS: tuple[dict[str, Any], ...] = (
    {"uneven": "empty"},
    {"uneven": "empty", "shuffle": True},
    {"balance": Balance(cost=Polynomial(linear=1, quadratic=1)), "shuffle": True},
    {"balance": Balance("vbs", cost=Polynomial(linear=1, quadratic=1))},
)

Loaded = tuple[list[int], dict[str, Any]]
"""The rows of a batch on one rank, and the state after it."""


_here = threading.local()


@contextlib.contextmanager
def around(job: Job) -> Iterator[None]:
    """A loader finds the rank that makes it."""
    with mock.patch.object(units, "resolve", side_effect=lambda *_: job.context(_here.rank)):
        yield


@functools.cache
def _file() -> Path:
    """Of rows of which some drop out, in row groups of 4."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "rows.parquet"
    weakref.finalize(_file, folder.cleanup)
    items = [list(range(row * 7 % 6)) for row in range(ROWS)]
    pl.DataFrame({"row": range(ROWS), "item": items}, schema_overrides={"item": pl.List(pl.Int64)}).write_parquet(
        path, row_group_size=4
    )
    return path


def _kept() -> list[int]:
    return [row for row in range(ROWS) if row % 4 != 1 or row > 22]


def load(job: Job, rank: int, seed: int, slip: Any, state: dict[str, Any] | None = None) -> Iterator[Loaded]:
    """Reads from `state` on, else from the beginning."""
    _here.rank = rank
    loader = FreeScaleDataLoader(
        ParquetSource(str(_file()), filter=(pl.col("row") % 4 != 1) | (pl.col("row") > 22)),
        SCHEMA,
        batch_size=BATCH_SIZE,
        num_threads=1,
        prefetch=0,
        seed=seed,
        timeout_s=LIMIT_S,
        **WAYS[seed // 7 % len(WAYS)],
    )
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        for step, batch in enumerate(loader):
            yield batch.features["row"].values().tolist(), loader.state_dict()
            job.ranks.wait(job.ranks.random.random() * 0.2)  # trains
            if slip(step):
                return


def check_loaded(steps: list[list[Loaded]], seed: int, size: int) -> None:
    """All ranks have the same state after each step; from the last one that all have made, another number of ranks
    reads the rest of the epoch: every row once."""
    done = min(map(len, steps))
    for step in range(done):
        assert all(made[step][1] == steps[0][step][1] for made in steps)
    state = steps[0][done - 1][1] if done else None
    others = OTHER_SIZES[seed // 11 % len(OTHER_SIZES)]
    ranks = Ranks(others, seed)
    job = Job(ranks)
    with around(job):
        rest = ranks.run(lambda rank: list(load(job, rank, seed, lambda step: False, state)))
    for outcome in rest:
        if isinstance(outcome, BaseException):
            raise outcome
    before = [row for made in steps for rows, _ in made[:done] for row in rows]
    after = [row for made in rest for rows, _ in made for row in rows]
    if len(before) == len(_kept()):  # the epoch is over, and the state begins the next one
        before = []
    assert sorted(before + after) == _kept(), f"after {done} steps of {size} ranks, {others} ranks go on"
