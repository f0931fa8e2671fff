"""torchdata.nodes: row groups decoded and permuted by `Table.take` in threads, sliced, converted, prefetched."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas  # noqa: F401  as in huggingface.py
import pyarrow as pa
import pyarrow.parquet as pq
from torchdata.nodes import BaseNode, IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher

from .common import READ, Delivered, Run, from_table


def batches(run: Run) -> Iterator[Delivered]:
    """Units in permuted order; rows permuted inside each; batches run on over unit borders."""
    units = [(path, group) for path in run.paths for group in range(pq.read_metadata(path).num_row_groups)]
    order = np.random.default_rng(run.seed).permutation(len(units))
    source: BaseNode[Any] = IterableWrapper([(*units[i], run.seed + int(i)) for i in order])
    tables: BaseNode[pa.Table] = ParallelMapper(source, _Decode(), num_workers=2, method="thread", max_concurrent=2)
    node = Prefetcher(Mapper(_Slices(tables, run.batch_size), from_table), prefetch_factor=2)
    yield from Loader(node)


class _Decode:
    def __init__(self) -> None:
        self._mine = threading.local()

    def __call__(self, unit: tuple[str, int, int]) -> pa.Table:
        path, group, seed = unit
        if getattr(self._mine, "path", None) != path:
            self._mine.path, self._mine.file = path, pq.ParquetFile(path)
        table = self._mine.file.read_row_group(group, columns=READ, use_threads=False)
        return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


class _Slices(BaseNode[pa.Table]):
    """Tables of any size -> tables of exactly `rows` rows, without copies; the last may be shorter."""

    def __init__(self, source: BaseNode[pa.Table], rows: int) -> None:
        super().__init__()
        self._source, self._rows = source, rows

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._source.reset(None)
        self._left: pa.Table | None = None

    def next(self) -> pa.Table:
        while self._left is None or self._left.num_rows < self._rows:
            try:
                more = next(self._source)
            except StopIteration:
                if self._left is None or self._left.num_rows == 0:
                    raise
                break
            self._left = more if self._left is None else pa.concat_tables([self._left, more])
        batch, self._left = self._left.slice(0, self._rows), self._left.slice(self._rows)
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"source": self._source.state_dict()}
