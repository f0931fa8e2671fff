"""The one reader of rows: of one file, batch by batch, or the lengths of its lists alone.

Memory holds some MiB at a time of any row group. Lengths are read page by page, without values, and take 8 bytes per
row. Damage is named with file and row group, files that were replaced since their footer was read are refused, and
reads of remote files are repeated.
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

_REQUEST_BYTES = 8 << 20  # a request to a store costs as much time as a megabyte


class Rows:
    """The rows of one file, for one thread. A context manager: the file is opened when it is first read.

    Attributes:
        seconds: processor time that this thread has spent on decoding batches.

    Every method that reads raises CorruptFileError, with file and row group, if the file is damaged or is not that of
    its footer any more; what was wrong is the cause of the error. It raises OSError if the file cannot be reached.
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
        """With the metadata by key."""
        return arrow_schema(self._footer.metadata)

    def batches(self, columns: list[str] | None = None, *, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, or the first `rows`, in order and some MiB at a time."""
        left = self._footer.metadata.num_rows if rows is None else rows
        for group in range(self._footer.metadata.num_row_groups):
            for batch in self.group(group, columns):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return

    def group(self, group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows of one row group, as `batches` gives them. columns: also leaves, by their whole paths."""
        found = self._batches(group, columns)

        def timed() -> pa.RecordBatch | None:
            start = time.thread_time()
            try:
                return next(found, None)
            finally:
                self.seconds += time.thread_time() - start

        while (batch := self._told(group, timed)) is not None:
            yield batch

    def lengths(self, group: int, column: str, leaf: Leaf) -> Lengths:
        """Of the lists of all rows of a row group.

        From the levels of the pages where FreeScale can read these, else by pyarrow, with all values.
        """
        return self._told(group, lambda: self._again(lambda: self._lengths(group, column, leaf)))

    def column(self, group: int, column: str, leaf: Leaf) -> pa.Array:
        """A column of all rows of a row group. Rows with a null struct above it are null."""
        found = self._told(group, lambda: self._again(lambda: list(self._arrays(group, column, leaf))))
        return pa.concat_arrays(found) if found else pa.array([], pa.int64())

    def _lengths(self, group: int, column: str, leaf: Leaf) -> Lengths:
        self._check_plain([first_name(self.schema.names, column)[0]])
        row_group, source = self._footer.metadata.row_group(group), self._source()
        buffered = None
        if not self._footer.file.local:  # bytes are read in large requests, one after another
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
            parts = [lengths_of(array) for array in self._arrays(group, column, leaf)]
        except Damaged as error:
            raise OSError(f"column {column!r}, {error}") from error
        finally:
            if buffered is not None:
                buffered.detach()  # it would close the file
        of_row = np.concatenate([np.empty(0, np.int64), *(part.of_row for part in parts)])
        return Lengths(of_row, sum(part.null_rows for part in parts), sum(part.null_elements for part in parts))

    def _arrays(self, group: int, column: str, leaf: Leaf) -> Iterator[pa.Array]:
        """The column of all rows of a row group."""
        rows = 0
        for batch in self._batches(group, [leaf.path]):
            rows += batch.num_rows
            yield widen.unwrap(array_at(batch, ".".join(inside_structs(batch.schema, column)[0])))
        if rows != self._footer.metadata.row_group(group).num_rows:
            raise pa.ArrowInvalid(f"{rows} rows where the footer says otherwise")

    def _batches(self, group: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        metadata = self._footer.metadata
        if metadata.row_group(group).num_rows == 0:
            return
        names = self.schema.names if columns is None else [first_name(self.schema.names, name)[0] for name in columns]
        self._check_plain(names)
        size = batch_rows(metadata, group, leaves_at(self.schema, [(name,) for name in names]))
        source = self._source()
        if self._parquet is None:
            self._parquet = parquet_file(source, metadata=metadata)
        yield from self._parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)

    def _check_plain(self, names: Sequence[str]) -> None:
        for name in encrypted_columns(self._footer.schema):
            if name in names:
                raise CorruptFileError(
                    f"{self._footer.file.path}: column {name!r} is encrypted, and there is no key. Write the file "
                    "again without encryption, or leave the column out"
                )

    def _again(self, read: Callable[[], Result]) -> Result:
        """`read()`, of a remote file several times, each with a file that is opened anew."""

        def attempt() -> Result:
            try:
                return read()
            except BaseException:
                self._close()
                raise

        return self._retry.call(attempt, self._footer.file)

    def _told(self, group: int, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except (pa.ArrowException, OSError) as error:
            if unreachable(error) or isinstance(error, CorruptFileError):
                raise
            what = f"{self._footer.file.path}, row group {group}: cannot be decoded: {first_line(error)}"
            raise CorruptFileError(what) from error

    def _source(self) -> Any:
        """What bytes are read from."""
        if self._opened is None:
            footer = self._footer
            source = open_file(footer.file)
            try:
                same = source.size() == footer.size
                if not same or digest(footer_bytes(source, footer.size, footer.file)) != footer.digest:
                    raise CorruptFileError(
                        f"{footer.file.path}: replaced while in use: its footer is not the one that was read at the "
                        "start. Run the command again, with files that are not written any more"
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


def written(path: Path) -> Rows:
    """The rows of a file of this machine that was just written."""
    return Rows(read_footer(FileRef.from_path(LocalFileSystem(), str(path)), {}))


def lengths_of(array: pa.Array) -> Lengths:
    """The lengths of a list array of any kind: list, large_list, list_view, fixed_size_list."""
    counted = pc.list_value_length(array)
    elements = array.flatten()
    while pa.types.is_struct(elements.type):
        elements = pc.struct_field(elements, [0])
    of_row, _ = widen.numbers_of(pc.fill_null(counted, 0).cast(pa.int64()))
    return Lengths(of_row, counted.null_count, elements.null_count)
