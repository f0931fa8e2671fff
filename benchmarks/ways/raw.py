"""The yardstick: what decoding the columns costs when nothing is done with them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq

from .common import READ, Run

THREADS = 2


def row_groups(run: Run) -> Iterator[int]:
    """`read_row_group` on 2 Python threads, one row group each; yields row counts, drops the tables."""
    mine = threading.local()

    def decode(path: str, group: int) -> int:
        if getattr(mine, "path", None) != path:  # a ParquetFile must not be shared between threads
            mine.path, mine.file = path, pq.ParquetFile(path)
        return mine.file.read_row_group(group, columns=READ, use_threads=False).num_rows

    units = [(path, group) for path in run.paths for group in range(pq.read_metadata(path).num_row_groups)]
    with ThreadPoolExecutor(THREADS) as threads:
        yield from threads.map(decode, *zip(*units, strict=True))
