"""One row group of a remote file: read by several threads, then decoded from memory."""

import bisect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow.parquet as pq

from fsdata.catalog.footers import parquet_file
from fsdata.decode.open_files import Known, OpenParquet, RemoteFiles
from fsdata.remote.byte_ranges import ByteRange, column_ranges, requests

Result = TypeVar("Result")


class RowGroupBytes:
    """The bytes of one row group of which a decoder needs some columns.

    Read-ahead calls `plan`, `read` for each range, from any threads, and then `finish`, or `fail` with what one of them
    has raised. The decoder then calls `use`, which reads what is missing. Without read-ahead this is everything.

    Args:
        known, group: its file, and its place there.
        leaves: the leaf columns that are decoded.
    """

    def __init__(self, files: RemoteFiles, known: Known, group: int, leaves: Sequence[int]) -> None:
        self._files = files
        self._known = known
        self._group = group
        self._leaves = leaves
        self._opened: OpenParquet | None = None
        self._stamp = 0
        self._ranges: list[ByteRange] = []
        self._parts: dict[ByteRange, bytes] = {}
        self._checked = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def plan(self) -> list[ByteRange]:
        """What is still to be read. Opens the file, which blocks if it is not open.

        Raises:
            CorruptFileError: the file is not the one whose footer was read.
            OSError: it cannot be reached.
        """
        if self._opened is None:
            opened = self._files.get(self._known)
            row_group = opened.parquet.metadata.row_group(self._group)
            self._ranges = requests(column_ranges(row_group, self._leaves))
            if opened.stamp != self._stamp:
                self._parts.clear()
            self._opened, self._stamp = opened, opened.stamp
        return [part for part in self._ranges if part not in self._parts]

    def read(self, part: ByteRange) -> None:
        """Read one range. Blocks; see `RemoteFile` for errors."""
        assert self._opened is not None
        self._parts[part] = self._files.read(self._opened, *part)

    def finish(self) -> None:
        """Check that what was read is of one file. Blocks for a request to the store; `use` raises what is wrong."""
        if self._error is None:
            try:
                self._check()
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Let `use` raise the error; the first one counts."""
        with self._lock:
            self._error = self._error or error

    def use(self, decode: Callable[[pq.ParquetFile, Any], Result]) -> Result:
        """`decode` of the file, in which this row group is in memory, and of what the file reads from. Blocks while
        bytes are missing.

        Raises:
            ConnectionError: bytes are missing. What has arrived is kept, so that the next call need not read it again.
            CorruptFileError, OSError: see `plan` and `RemoteFile`.
            What `decode` raises; the next call then reads everything again.
        """
        metadata = self._complete()
        source = _InMemory(self._parts, self._known.size, self._unplanned)
        try:
            # pre_buffer would read the gaps between columns, too
            file = parquet_file(source, metadata=metadata, pre_buffer=False)
            result = decode(file, source)
            if not self._checked:
                self._check()
        except BaseException:
            self._parts.clear()
            self._reopen()
            raise
        return result

    def _complete(self) -> pq.FileMetaData:
        """Read what is missing."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            for part in self.plan():
                self.read(part)
            if not self._checked:
                self._check()
        except OSError:
            self._reopen()
            raise
        assert self._opened is not None
        return self._opened.parquet.metadata

    def _check(self) -> None:
        assert self._opened is not None
        self._files.check(self._opened, self._known)
        self._checked = True

    def _reopen(self) -> None:
        """The next `plan` opens the file again, and keeps what was read if the time of modification is the same."""
        opened, self._opened, self._checked = self._opened, None, False
        if opened is not None:
            self._files.forget(opened)

    def _unplanned(self, begin: int, end: int) -> bytes:
        assert self._opened is not None
        self._checked = False
        return self._files.read(self._opened, begin, end, planned=False)


class _InMemory:
    """What pyarrow takes for a file: bytes of `parts`, without a copy if one part has them all; others by `read`."""

    closed = False

    def __init__(self, parts: Mapping[ByteRange, bytes], size: int, read: Callable[[int, int], bytes]) -> None:
        self._ranges = sorted(parts)
        self._bytes = [memoryview(parts[each]) for each in self._ranges]
        self._size = size
        self._read = read
        self._at = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes | memoryview:
        begin = self._at
        self._at = end = self._size if count < 0 else min(begin + count, self._size)
        first = max(bisect.bisect_right(self._ranges, (begin, self._size + 1)) - 1, 0)
        found, at = [], begin
        for (low, high), held in zip(self._ranges[first:], self._bytes[first:], strict=True):
            if not low <= at < min(high, end):
                break
            found.append(held[at - low : end - low])
            at = min(high, end)
        if at < end:
            return self._read(begin, end)
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """pyarrow closes what it has opened; there is nothing to close."""
