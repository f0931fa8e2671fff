"""Hugging Face `datasets`, in Arrow format, which is its fastest; batches are converted as `from_arrow` does."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import pandas  # noqa: F401  Array.to_numpy imports it on first use: before the clock, as for all ways

from .common import READ, Delivered, Run, from_table


def streaming(run: Run) -> Iterator[Delivered]:
    """`streaming=True`: files in order, no cache."""
    rows = datasets.load_dataset("parquet", data_files=run.paths, split="train", columns=READ, streaming=True)
    for table in rows.with_format("arrow").iter(batch_size=run.batch_size):
        yield from_table(table)


def cached_shuffled(run: Run) -> Iterator[Delivered]:
    """Map-style over the prepared cache, all rows permuted."""
    rows = datasets.load_from_disk(run.cache).shuffle(seed=run.seed)
    for table in rows.with_format("arrow").iter(batch_size=run.batch_size):
        yield from_table(table)


def prepare(paths: list[str], cache: str) -> None:
    """Write the cache that `cached_shuffled` reads, unless it is there."""
    folder = Path(cache)
    if (folder / "state.json").exists():
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as builder:
        rows = datasets.load_dataset("parquet", data_files=paths, split="train", columns=READ, cache_dir=builder)
        rows.save_to_disk(folder)


if __name__ == "__main__":
    prepare(sys.argv[2:], sys.argv[1])
