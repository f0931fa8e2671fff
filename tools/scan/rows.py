"""`Rows` reads the rows of a file, batch by batch, or only the lengths of its lists.

A row group of any size needs a few MiB of memory at a time. Lengths are read page by page, without values, and take 8
bytes per row. Errors of damaged files name file and row group, files that were replaced after their footer was read are
rejected, and reads of remote files are retried.
"""

import functools
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from freescale_tools.console.errors import first_line
from freescale_tools.scan.columns import Leaf, first_name, inside_structs
from freescale_tools.scan.footers import Footer, read_footer
from freescale_tools.scan.levels import Lengths, read_lengths
from fsdata.catalog.binding.arrow_types import encrypted_columns
from fsdata.catalog.binding.column_paths import array_at, leaves_at
from fsdata.catalog.footers import arrow_schema, digest, footer_bytes, open_file, parquet_file
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import Retrying, unreachable
from fsdata.decode.arrow import widen
from fsdata.decode.arrow.record_batches import batch_rows
from fsdata.errors import CorruptFileError
from fsdata.pages.chunk import Damaged, LeftToArrow

Result = TypeVar("Result")

_REQUEST_BYTES = 8 << 20  # large, because the latency of a request to a store equals the transfer of about a megabyte


class Rows:
    """The rows of one file, for one thread. A context manager: the file is opened by the first read.

    Attributes:
        seconds: processor time of this thread for decoding batches.

    Every method that reads raises CorruptFileError, with file and row group, if the file is damaged or was replaced;
    the fault is the cause of the error. It raises OSError if the file cannot be reached.
    """

    def __init__(self, footer: Footer) -> None:
        self.seconds = 0.0
        self._footer = footer
        self._retry = Retrying()
        self._opened: Any = None
        self._parquet: pq.ParquetFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Including the key-value metadata."""
        return arrow_schema(self._footer.metadata)

    def batches(self, columns: list[str] | None = None, *, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, or the first `rows`, in order and a few MiB at a time."""
        left = self._footer.metadata.num_rows if rows is None else rows
        for group in range(self._footer.metadata.num_row_groups):
            for batch in self.group(group, columns):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return

    def group(self, group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows of one row group, in batches like those of `batches`. columns: also leaves, by their full paths."""
        decoded = self._batches(group, columns)

        def timed() -> pa.RecordBatch | None:
            start = time.thread_time()
            try:
                return next(decoded, None)
            finally:
                self.seconds += time.thread_time() - start

        while (batch := self._with_context(group, timed)) is not None:
            yield batch

    def lengths(self, group: int, column: str, leaf: Leaf) -> Lengths:
        """The lengths of the lists of all rows of a row group.

        From the levels of the pages if FreeScale supports their form; otherwise pyarrow decodes the column.
        """
        return self._with_context(group, lambda: self._retried(lambda: self._lengths(group, column, leaf)))

    def column(self, group: int, column: str, leaf: Leaf) -> pa.Array:
        """A column of all rows of a row group. Rows with a null struct above it are null."""
        arrays = self._with_context(group, lambda: self._retried(lambda: list(self._arrays(group, column, leaf))))
        return pa.concat_arrays(arrays) if arrays else pa.array([], pa.int64())

    def _lengths(self, group: int, column: str, leaf: Leaf) -> Lengths:
        self._check_unencrypted([first_name(self.schema.names, column)[0]])
        row_group, source = self._footer.metadata.row_group(group), self._source()
        buffered = None
        if not self._footer.file.local:  # pages are small: read them through a buffer, by few large requests
            stored = row_group.column(leaf.index).total_compressed_size
            buffered = io.BufferedReader(source, max(min(stored, _REQUEST_BYTES), 1))

        def read(count: int, at: int) -> bytes:
            if buffered is None:
                return source.read_at(count, at)
            buffered.seek(at)
            return buffered.read(count)

        try:
            if leaf.levels is None:
                raise LeftToArrow("no list, or one of another kind")
            return read_lengths(row_group, leaf.index, leaf.levels, read)
        except LeftToArrow:
            batches = [lengths_of(array) for array in self._arrays(group, column, leaf)]
        except Damaged as error:
            raise OSError(f"column {column!r}, {error}") from error
        finally:
            if buffered is not None:
                buffered.detach()  # otherwise its finalizer closes the file
        of_row = np.concatenate([np.empty(0, np.int64), *(batch.of_row for batch in batches)])
        return Lengths(of_row, sum(batch.null_rows for batch in batches), sum(batch.null_elements for batch in batches))

    def _arrays(self, group: int, column: str, leaf: Leaf) -> Iterator[pa.Array]:
        """The column of all rows of a row group."""
        rows = 0
        for batch in self._batches(group, [leaf.path]):
            rows += batch.num_rows
            yield widen.unwrap(array_at(batch, ".".join(inside_structs(batch.schema, column)[0])))
        if rows != self._footer.metadata.row_group(group).num_rows:
            raise pa.ArrowInvalid(f"{rows} rows, not the number in the footer")

    def _batches(self, group: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        metadata = self._footer.metadata
        if metadata.row_group(group).num_rows == 0:
            return
        names = self.schema.names if columns is None else [first_name(self.schema.names, name)[0] for name in columns]
        self._check_unencrypted(names)
        size = batch_rows(metadata, group, leaves_at(self.schema, [(name,) for name in names]))
        source = self._source()
        if self._parquet is None:
            self._parquet = parquet_file(source, metadata=metadata)
        yield from self._parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)

    def _check_unencrypted(self, names: Sequence[str]) -> None:
        for name in encrypted_columns(self._footer.schema):
            if name in names:
                raise CorruptFileError(
                    f"{self._footer.file.path}: column {name!r} is encrypted, and there is no key. Write the file "
                    "again without encryption, or leave the column out"
                )

    def _retried(self, read: Callable[[], Result]) -> Result:
        """`read()`, retried for a remote file; every attempt opens the file again."""

        def attempt() -> Result:
            try:
                return read()
            except BaseException:
                self._close()
                raise

        return self._retry.call(attempt, self._footer.file)

    def _with_context(self, group: int, read: Callable[[], Result]) -> Result:
        """`read()`, with errors of a damaged file raised as CorruptFileError with file and row group."""
        try:
            return read()
        except (pa.ArrowException, OSError) as error:
            if unreachable(error) or isinstance(error, CorruptFileError):
                raise
            message = f"{self._footer.file.path}, row group {group}: cannot be decoded: {first_line(error)}"
            raise CorruptFileError(message) from error

    def _source(self) -> Any:
        """The open file, after a check that it still has the footer that was read."""
        if self._opened is None:
            footer = self._footer
            source = open_file(footer.file)
            try:
                same = source.size() == footer.size
                if not same or digest(footer_bytes(source, footer.size, footer.file)) != footer.digest:
                    raise CorruptFileError(
                        f"{footer.file.path}: replaced while in use: its footer is not the one that was read at the "
                        "start. Run the command again when no job writes these files"
                    )
            except BaseException:
                source.close()
                raise
            self._opened = source
        return self._opened

    def _close(self) -> None:
        opened, self._opened, self._parquet = self._opened, None, None
        if opened is not None:
            opened.close()


def rows_of_file(path: Path) -> Rows:
    """The rows of a local file, whose footer is read now."""
    return Rows(read_footer(FileRef.from_path(LocalFileSystem(), str(path)), {}))


def lengths_of(array: pa.Array) -> Lengths:
    """The lengths of an array of lists: list, large_list, list_view or fixed_size_list."""
    counted = pc.list_value_length(array)
    elements = array.flatten()
    while pa.types.is_struct(elements.type):
        elements = pc.struct_field(elements, [0])
    of_row, _ = widen.numbers_of(pc.fill_null(counted, 0).cast(pa.int64()))
    return Lengths(of_row, counted.null_count, elements.null_count)
