"""Folders that grow, and jobs that follow them."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from data_kit import loader_on
from fsspec.implementations.local import LocalFileSystem
from patience import PATIENCE_S

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource, Schema, Sequence

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item",), max_length=8),), context=("row",), time="at", passthrough=("text", "number")
)
IDS = {"text": pl.format("row {}", pl.col("row")), "number": "row"}
SHIFT = 10**12
FAST = {"every": "10ms", "idle": "80ms"}
ENDLESS = {"every": "10ms", "idle": f"{PATIENCE_S:g}s"}


def put(frame: pl.DataFrame, path: Path, *, group: int) -> None:
    """A whole file at once, as a careful writer does it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    frame.write_parquet(half, row_group_size=group)
    half.rename(path)


def write(folder: Path, name: str, rows, *, group: int = 5, at=None) -> None:
    rows = np.asarray(rows, np.int64)
    lists = [list(range(row % 7)) for row in rows]
    frame = pl.DataFrame(
        {"row": rows, "item": lists, "at": rows if at is None else np.asarray(at, np.int64), "keep": rows % 3 > 0},
        schema_overrides={"item": pl.List(pl.Int64)},
    )
    put(frame, folder / name, group=group)


def add(folder: Path, *numbers: int) -> None:
    """Files 00.parquet, 01.parquet, ... with the rows 0 to 9, 10 to 19, ..."""
    for number in numbers:
        write(folder, f"{number:02}.parquet", range(number * 10, number * 10 + 10))


def age(folder: Path, name: str, seconds: float) -> None:
    """Make a file look as if it had been written so long ago."""
    found = os.stat(folder / name)
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 10**9)))


def before_listings(monkeypatch, module, *actions) -> list:
    """What happens before the module lists a folder, once each in this order, and then nothing. What an action returns
    is called after the listing."""
    left, discover = list(actions), module.discover

    def listed(*args, **options):
        after = left.pop(0)() if left else None
        found = discover(*args, **options)
        if after:
            after()
        return found

    monkeypatch.setattr(module, "discover", listed)
    return left


def nothing() -> None:
    """An action for one listing."""


def failing(error):
    def fail():
        raise error

    return fail


class WithoutTimes(LocalFileSystem):
    """A store that does not say when files were modified."""

    def info(self, path, **options):
        return {**super().info(path, **options), "mtime": None}


def loader_of(folder: Path, follow: Follow | None = None, *, source=None, **options) -> FreeScaleDataLoader:
    source = {"columns": IDS, **(source or {})}
    follow = Follow(**FAST) if follow is None else follow
    return loader_on(ParquetSource(folder, follow=follow, **source), SCHEMA, **{"batch_size": 4, **options})


def rows_of(batch) -> list[int]:
    found = batch.features["row"].values().tolist()
    assert batch.features["item"].lengths().tolist() == [row % 7 for row in found]
    assert batch.passthrough["text"] == [f"row {row}" for row in found]
    assert (batch.passthrough["number"] % SHIFT).tolist() == found
    return found


def take(batches, count: int) -> list[int]:
    """The rows of the next batches."""
    return [row for _ in range(count) for row in rows_of(next(batches))]


def read(loader, batches: int | None = None) -> list[int]:
    """The rows of the next batches of a new loop, of all there are if None."""
    rows: list[int] = []
    for number, batch in enumerate(loader, 1):
        rows += rows_of(batch)
        if number == batches:
            break
    return rows


def resumed(folder: Path, state, follow: Follow | None = None, **options) -> list[int]:
    """The rows of a job that goes on from a state."""
    with loader_of(folder, follow, **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        return read(loader)


def shifted(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pc.add(batch["number"], SHIFT)
    return batch.set_column(batch.schema.get_field_index("number"), "number", numbers)


def stage(rank, world_size, folder, state, batches, kind, seed):
    """One run of a job: (rows of this rank, its state at the end)."""
    balance = {"balanced": Balance(), "tokens": Balance(max_tokens=24)}
    options = {
        "shuffle": seed % 2 > 0,
        "seed": seed,
        "balance": balance.get(kind),
        "source": {"filter": pl.col("keep"), "map": shifted} if kind == "filter" else {},
        "uneven": "empty",
    }
    with loader_of(folder, Follow(**FAST, at_most=3), **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        rows = read(loader, batches)
        state = loader.state_dict()
    return rows, state
