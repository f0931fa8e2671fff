"""The rows of a file as a stream of record batches: bounded memory, damage named, seconds of decoding counted."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fsdata.errors import CorruptFileError
from fsdata.sources.batch_rows import batch_rows, wide_columns
from fsdata.sources.footers import Footer
from fsdata.sources.handles import Handles
from fsdata.sources.retry import unreachable


class Reading:
    """The rows of one open file. `seconds`: time of this thread spent on decoding so far."""

    def __init__(self, parquet: pq.ParquetFile, path: str) -> None:
        self.seconds = 0.0
        self.schema: pa.Schema = parquet.schema_arrow
        self._parquet = parquet
        self._path = path

    def batches(self, columns: list[str] | None = None, *, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in order, some MiB at a time, at most the first `rows`.

        Raises CorruptFileError, naming file and row group, where the file is damaged.
        """
        metadata = self._parquet.metadata
        wide = wide_columns(metadata, self.schema.names if columns is None else columns)
        left = metadata.num_rows if rows is None else rows
        for group in range(metadata.num_row_groups):
            if metadata.row_group(group).num_rows == 0:
                continue
            size = batch_rows(metadata.row_group(group), wide)
            read = self._parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
            while left > 0:
                with self._decoding(group):
                    batch = next(read, None)
                if batch is None:
                    break
                yield batch.slice(0, left)
                left -= batch.num_rows

    def table(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches()), self.schema)

    @contextlib.contextmanager
    def _decoding(self, group: int) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if unreachable(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CorruptFileError(f"{self._path}, row group {group}: cannot be decoded: {reason}") from error
        finally:
            self.seconds += time.thread_time() - start


@contextlib.contextmanager
def reading_source(footer: Footer) -> Iterator[Reading]:
    """Page checksums, where there are some, are verified. CorruptFileError if the file is not that of the footer."""
    handle = Handles(keep=1).take(footer)
    try:
        yield Reading(handle.parquet, footer.file.path)
    finally:
        handle.discard()


@contextlib.contextmanager
def reading_written(path: Path) -> Iterator[Reading]:
    """A file that was just written, its pages compared with their checksums."""
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        yield Reading(parquet, str(path))


def sorting(footer: Footer, column: str) -> np.ndarray | None:
    """int64 [rows]: the rows of a file in order of `column`, ties as they stand, nulls last. None if they are so.

    Reads this one column.
    """
    with reading_source(footer) as reading:
        key = pa.Table.from_batches(list(reading.batches([column])), pa.schema([reading.schema.field(column)]))[column]
    order = np.asarray(pc.sort_indices(key)).astype(np.int64)
    return None if (np.diff(order) > 0).all() else order


def ordered(reading: Reading, order: np.ndarray | None, rows: int) -> Iterator[pa.RecordBatch]:
    """All rows in `order`, `rows` at a time; as they stand if it is None. Sorting holds the whole file in memory."""
    if order is None:
        yield from reading.batches()
        return
    table = reading.table()
    for start in range(0, len(order), rows):
        yield from table.take(pa.array(order[start : start + rows])).combine_chunks().to_batches()
