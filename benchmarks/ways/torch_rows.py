"""The ordinary PyTorch way: an IterableDataset of rows (dicts of numpy views) and a collate function.

Each worker takes every n-th row group, in permuted order, and permutes the rows inside.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas  # noqa: F401  as in huggingface.py
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .common import COLUMNS, KEYS, LISTS, READ, SCALARS, Delivered, Run, delivered, flat_list

Row = dict[str, Any]


def batches(run: Run, *, workers: int = 0) -> Iterator[Delivered]:
    """`workers` processes; 0 reads in the calling thread."""
    yield from DataLoader(_Rows(run), batch_size=run.batch_size, num_workers=workers, collate_fn=_collate)


class _Rows(IterableDataset[Row]):
    def __init__(self, run: Run) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        units = [(path, g) for path in self._run.paths for g in range(pq.read_metadata(path).num_row_groups)]
        rng = np.random.default_rng(self._run.seed)
        for unit in rng.permutation(len(units))[index::count]:
            path, group = units[unit]
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=READ, use_threads=False)
            columns = {name: table.column(name).combine_chunks() for name in READ}
            yield from _rows_of(columns, rng.permutation(table.num_rows))


def _rows_of(columns: dict[str, Any], order: np.ndarray) -> Iterator[Row]:
    scalars = {name: columns[name].to_numpy() for name in (*SCALARS, *COLUMNS.dense)}
    lists = {}
    for name in (*LISTS, COLUMNS.label):
        values, lengths = flat_list(columns[name])
        lists[name] = values, np.append(0, np.cumsum(lengths))
    for i in order:
        row = {name: values[i] for name, values in scalars.items()}
        for name, (values, offsets) in lists.items():
            row[name] = values[offsets[i] : offsets[i + 1]]
        yield row


def _collate(rows: list[Row]) -> Delivered:
    lengths = np.ones((len(KEYS), len(rows)), np.int64)
    for i, name in enumerate(LISTS, start=len(SCALARS)):
        lengths[i] = [len(row[name]) for row in rows]
    parts = [np.array([row[name] for row in rows]) for name in SCALARS]
    parts += [row[name] for name in LISTS for row in rows]
    return delivered(
        np.concatenate(parts),
        lengths,
        np.array([[row[name] for name in COLUMNS.dense] for row in rows], np.float32),
        np.concatenate([row[COLUMNS.label] for row in rows]),
        np.array([len(row[COLUMNS.label]) for row in rows]),
    )
