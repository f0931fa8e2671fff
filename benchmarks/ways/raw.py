"""The yardstick: what decoding the columns costs when nothing is done with them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq

from fsdata.catalog.binding.column_paths import leaves_at
from fsdata.decode.files.byte_ranges import column_ranges
from fsdata.decode.pages.chunk import page_headers
from fsdata.decode.pages.chunk import unpacked_pages as pages
from fsdata.decode.reused_buffers import Pool

from .common import READ, Run

THREADS = 2


def row_groups(run: Run) -> Iterator[int]:
    """`read_row_group` on 2 Python threads, one row group each; yields row counts, drops the tables."""

    def decode(file: pq.ParquetFile, group: int) -> int:
        return file.read_row_group(group, columns=READ, use_threads=False).num_rows

    yield from _every_group(run, decode)


def small_batches(run: Run) -> Iterator[int]:
    """The same with `iter_batches(512)` inside each row group, which keeps allocations small."""

    def decode(file: pq.ParquetFile, group: int) -> int:
        batches = file.iter_batches(512, row_groups=[group], columns=READ, use_threads=False)
        return sum(batch.num_rows for batch in batches)

    yield from _every_group(run, decode)


def unpacked_pages(run: Run) -> Iterator[int]:
    """The floor of every decoder: bytes read, checksums compared, pages decompressed; 2 threads, nothing decoded."""
    pool = Pool()

    def unpack(file: pq.ParquetFile, group: int) -> int:
        chunks = file.metadata.row_group(group)
        for leaf in leaves_at(file.schema_arrow, [(name,) for name in READ]):
            chunk = chunks.column(leaf)
            ((begin, end),) = column_ranges(chunks, [leaf])
            lease = pool.take(end - begin)
            raw = np.asarray(lease)[: end - begin]
            with open(file.reader_path, "rb", buffering=0) as handle:
                handle.seek(begin)
                handle.readinto(raw)
            sizes = {"values": chunk.num_values, "unpacked": chunk.total_uncompressed_size}
            for _ in pages(raw, lease, page_headers(raw, **sizes), codec=chunk.compression, pool=pool):
                pass
        return chunks.num_rows

    yield from _every_group(run, unpack)


def _every_group(run: Run, decode: Callable[[pq.ParquetFile, int], int]) -> Iterator[int]:
    mine = threading.local()

    def task(path: str, group: int) -> int:
        if getattr(mine, "path", None) != path:  # a ParquetFile must not be shared between threads
            mine.path, mine.file = path, pq.ParquetFile(path)
            mine.file.reader_path = path
        return decode(mine.file, group)

    units = [(path, group) for path in run.paths for group in range(pq.read_metadata(path).num_row_groups)]
    with ThreadPoolExecutor(THREADS) as threads:
        yield from threads.map(task, *zip(*units, strict=True))
