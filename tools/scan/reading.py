"""Reads the rows of a file as record batches, names damage, and counts seconds of decoding."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import first_line
from fsdata.catalog.footers import Footer
from fsdata.catalog.retry import unreachable
from fsdata.decode.arrow.record_batches import batch_rows, wide_columns
from fsdata.decode.files.open_files import Known, OpenFiles
from fsdata.errors import CorruptFileError


class Reading:
    """The rows of one open file. `seconds`: processor time that this thread has spent on decoding."""

    def __init__(self, parquet: pq.ParquetFile, path: str) -> None:
        self.seconds = 0.0
        self.schema: pa.Schema = parquet.schema_arrow
        self._parquet = parquet
        self._path = path

    def batches(self, columns: list[str] | None = None, *, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, or the first `rows`, in order and some MiB at a time.

        Raises CorruptFileError with file and row group if the file is damaged.
        """
        left = self._parquet.metadata.num_rows if rows is None else rows
        for group in range(self._parquet.metadata.num_row_groups):
            for batch in self.group(group, columns):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return

    def group(self, group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows of one row group, as `batches` gives them."""
        metadata = self._parquet.metadata
        if metadata.row_group(group).num_rows == 0:
            return
        wide = wide_columns(metadata, self.schema.names if columns is None else columns)
        size = batch_rows(metadata.row_group(group), wide)
        read = self._parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
        while True:
            with self._decoding(group):
                batch = next(read, None)
            if batch is None:
                return
            yield batch

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
            reason = first_line(error)
            raise CorruptFileError(f"{self._path}, row group {group}: cannot be decoded: {reason}") from error
        finally:
            self.seconds += time.thread_time() - start


@contextlib.contextmanager
def reading_source(footer: Footer) -> Iterator[Reading]:
    """Open a source file and verify page checksums, if it has any.

    Raises CorruptFileError if the file has changed since its footer was read.
    """
    handle = OpenFiles(keep=1).take(Known(footer.file, footer.size, footer.digest))
    try:
        yield Reading(handle.parquet, footer.file.path)
    finally:
        handle.close()


@contextlib.contextmanager
def reading_written(path: Path) -> Iterator[Reading]:
    """Open a file that was just written, and verify its page checksums."""
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        yield Reading(parquet, str(path))
