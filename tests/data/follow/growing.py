"""Folders that grow, and jobs that follow them."""

import os
from pathlib import Path

import numpy as np
import polars as pl
from fsspec.implementations.local import LocalFileSystem
from patience import PATIENCE_S

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource, Schema, Sequence

SCHEMA = Schema(sequences=(Sequence("uih", ("item",), max_length=8),), context=("row",), time="at")
FAST = {"every": "10ms", "idle": "80ms"}
ENDLESS = {"every": "10ms", "idle": f"{PATIENCE_S:g}s"}


def write(folder: Path, name: str, rows, *, group: int = 5, at=None) -> None:
    """A whole file at once, as a careful writer does it."""
    rows = np.asarray(rows, np.int64)
    lists = [list(range(row % 7)) for row in rows]
    frame = pl.DataFrame(
        {"row": rows, "item": lists, "at": rows if at is None else np.asarray(at, np.int64), "keep": rows % 3 > 0},
        schema_overrides={"item": pl.List(pl.Int64)},
    )
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    frame.write_parquet(half, row_group_size=group)
    half.rename(path)


def age(folder: Path, name: str, seconds: float) -> None:
    """Make a file look as if it had been written so long ago."""
    found = os.stat(folder / name)
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 10**9)))


class WithoutTimes(LocalFileSystem):
    """A store that does not say when files were modified."""

    def info(self, path, **options):
        return {**super().info(path, **options), "mtime": None}


def loader_of(folder: Path, follow: Follow | None = None, *, source=None, **options) -> FreeScaleDataLoader:
    source = {} if source is None else source
    follow = Follow(**FAST) if follow is None else follow
    options = {"batch_size": 4, "num_threads": 1, "timeout_s": PATIENCE_S, **options}
    return FreeScaleDataLoader(ParquetSource(folder, follow=follow, **source), SCHEMA, **options)


def rows_of(batch) -> list[int]:
    found = batch.features["row"].values().tolist()
    lengths = batch.features["item"].lengths().tolist()
    assert lengths == [row % 7 for row in found]
    return found


def read(loader, batches: int | None = None) -> list[int]:
    """The rows of the next batches, of all there are if None."""
    rows: list[int] = []
    for number, batch in enumerate(loader, 1):
        rows += rows_of(batch)
        if number == batches:
            break
    return rows


def stage(rank, world_size, folder, state, batches, kind, seed):
    """One run of a job: (rows of this rank, its state at the end)."""
    balance = {"balanced": Balance(), "tokens": Balance(max_tokens=24)}
    options = {
        "shuffle": seed % 2 > 0,
        "seed": seed,
        "balance": balance.get(kind),
        "source": {"filter": pl.col("keep")} if kind == "filter" else {},
        "uneven": "empty",
    }
    with loader_of(folder, Follow(**FAST, at_most=3), **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        rows = read(loader, batches)
        state = loader.state_dict()
    return rows, state
