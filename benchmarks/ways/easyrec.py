"""As TorchEasyRec reads: record batches of the batch size, columns -> values and offsets -> KJT, in the workers.

Each worker reads a contiguous interval of row groups with `iter_batches(use_threads=False)`; what is shuffled are whole
batches, in a buffer of 32.
"""

from collections.abc import Iterator

import numpy as np
import pandas  # noqa: F401  as in huggingface.py
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .common import READ, Delivered, Run, from_arrow

BUFFER = 32


def batches(run: Run, *, workers: int = 0) -> Iterator[Delivered]:
    """`workers` processes; 0 reads in the calling thread."""
    yield from DataLoader(_RecordBatches(run), batch_size=None, num_workers=workers)


class _RecordBatches(IterableDataset[Delivered]):
    def __init__(self, run: Run) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Delivered]:
        worker = get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        units = [(path, g) for path in self._run.paths for g in range(pq.read_metadata(path).num_row_groups)]
        mine = units[len(units) * index // count : len(units) * (index + 1) // count]
        for batch in _shuffled(_exact(_read(mine, self._run.batch_size), self._run.batch_size), self._run.seed + index):
            yield from_arrow(dict(zip(batch.schema.names, batch.columns, strict=True)))


def _read(units: list[tuple[str, int]], rows: int) -> Iterator[pa.RecordBatch]:
    for path in dict.fromkeys(path for path, _ in units):
        with pq.ParquetFile(path) as file:
            groups = [group for other, group in units if other == path]
            yield from file.iter_batches(rows, row_groups=groups, columns=READ, use_threads=False)


def _exact(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The short batch at a file's end is joined with the next ones."""
    left: pa.RecordBatch | None = None
    for batch in batches:
        if left is not None:
            batch = pa.concat_batches([left, batch])
            left = None
        if batch.num_rows >= rows:
            yield batch.slice(0, rows)
        if batch.num_rows % rows:
            left = batch.slice(batch.num_rows // rows * rows)
    if left is not None:
        yield left


def _shuffled(batches: Iterator[pa.RecordBatch], seed: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    buffer: list[pa.RecordBatch] = []
    for batch in batches:
        if len(buffer) < BUFFER:
            buffer.append(batch)
            continue
        pick = int(rng.integers(BUFFER))
        yield buffer[pick]
        buffer[pick] = batch
    for pick in rng.permutation(len(buffer)):
        yield buffer[pick]
