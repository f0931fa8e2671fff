"""Remote files and the bytes of their row groups: read by several threads, then decoded from memory."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fsdata.catalog.footers import column_ranges, parquet_file
from fsdata.decode.readers.open_files import ExpectedFile, OpenParquet, modified
from fsdata.remote.byte_ranges import ByteRange, requests

_MOST_OPEN = 64


@dataclass(slots=True)
class _Slot:
    """One file. The lock is held while the file is opened, so that one thread opens it and the others wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: OpenParquet | None = None


class RemoteFiles:
    """Remote files; those used last stay open. Thread-safe.

    A file is compared with its identity when it is opened. A store may replace an object at any time, so `check`
    compares it again after reads: all bytes read in between are then of one object.

    Args:
        open: opens a file and compares it; see `OpenFiles.open`.

    Attributes:
        bytes_read: bytes of row groups, without footers.
        unplanned_reads: number of reads by decoders that were not planned.
    """

    def __init__(self, open: Callable[[ExpectedFile], OpenParquet]) -> None:
        self.bytes_read = 0
        self.unplanned_reads = 0
        self._open = open
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()

    def group(self, expected: ExpectedFile, index: int, leaves: Sequence[int]) -> "RowGroupBytes":
        """The bytes of leaf columns of a row group; nothing is read yet."""
        return RowGroupBytes(self, expected, index, leaves)

    def get(self, expected: ExpectedFile) -> OpenParquet:
        """The open file. Blocks for some requests to the store if it is not open yet. Raises as `open`."""
        with self._lock:
            slot = self._slots.setdefault(expected.file.path, _Slot())
            self._slots.move_to_end(expected.file.path)
            while len(self._slots) > _MOST_OPEN:
                self._slots.popitem(last=False)  # not closed, as other threads may be reading from it
        with slot.lock:
            if slot.opened is None:
                slot.opened = self._open(expected)
            return slot.opened

    def forget(self, opened: OpenParquet) -> None:
        """Open the file again at the next `get`."""
        with self._lock:
            slot = self._slots.get(opened.file.path)
            if slot is not None and slot.opened is opened:
                del self._slots[opened.file.path]

    def read(self, opened: OpenParquet, begin: int, end: int, *, planned: bool = True) -> bytes:
        """All of the bytes [begin, end) of the file. Blocks; several threads may read one file concurrently.

        Raises as `RemoteFile`.
        """
        content: bytes = opened.source.read_at(end - begin, begin)
        with self._lock:
            self.bytes_read += end - begin
            self.unplanned_reads += not planned
        return content

    def check(self, opened: OpenParquet, expected: ExpectedFile) -> None:
        """Check that the file is still the one that was opened. Blocks for a request to the store.

        Raises:
            CorruptFileError: it is another file.
            ConnectionError: it was written again with the same footer, so that it has to be read again.
        """
        if modified(opened.file) != opened.stamp:
            self.forget(opened)
            self.get(expected)
            raise ConnectionError(f"{opened.file.path}: written again while it was being read")


class RowGroupBytes:
    """The bytes of some leaf columns of a row group.

    Read-ahead calls `plan`, then `read` for every range, in any threads, and then `finish`, or `fail` after an error.
    The decoder then calls `opened`, which reads missing bytes. Without read-ahead, `opened` reads all of them.

    Errors of read-ahead are stored and raised by `opened`, where they belong to a row group that is decoded: there they
    are retried, or treated as damage.

    Args:
        expected, group: the file, and the index of the row group in it.
        leaves: the leaf columns that are decoded.
    """

    def __init__(self, files: RemoteFiles, expected: ExpectedFile, group: int, leaves: Sequence[int]) -> None:
        self._files = files
        self._expected = expected
        self._group = group
        self._leaves = leaves
        self._opened: OpenParquet | None = None
        self._stamp = 0
        self._ranges: list[ByteRange] = []
        self._contents: dict[ByteRange, bytes] = {}
        self._checked = False  # whether `_contents` is known to be of one object
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def plan(self) -> list[ByteRange]:
        """Ranges that have not been read yet. Opens the file, which blocks if it is not open.

        Raises:
            CorruptFileError: the file is not the one whose footer was read.
            OSError: it cannot be reached.
        """
        if self._opened is None:
            opened = self._files.get(self._expected)
            row_group = opened.parquet.metadata.row_group(self._group)
            self._ranges = requests(column_ranges(row_group, self._leaves))
            if opened.stamp != self._stamp:
                self._contents.clear()
            self._opened, self._stamp = opened, opened.stamp
        return [each for each in self._ranges if each not in self._contents]

    def read(self, byte_range: ByteRange) -> None:
        """Read one range. Blocks; see `RemoteFile` for errors."""
        assert self._opened is not None
        self._contents[byte_range] = self._files.read(self._opened, *byte_range)

    def finish(self) -> None:
        """Check the bytes of read-ahead. Blocks for a request to the store; `opened` raises errors."""
        if self._error is None:
            try:
                self._check()
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Let `opened` raise an error; the first one counts."""
        with self._lock:
            self._error = self._error or error

    @contextmanager
    def opened(self) -> Iterator[OpenParquet]:
        """Context with the file, of which this row group is in memory. Blocks while bytes are missing.

        Raises:
            ConnectionError: bytes are missing. The bytes that were read stay, and the next call reads only the others.
            CorruptFileError, OSError: see `plan` and `RemoteFile`.
            Errors raised in the context; the next call then reads everything again.
        """
        opened = self._complete()
        source = _InMemory(self._contents, self._expected.size, self._unplanned)
        try:
            # pre_buffer would read the gaps between columns, too
            parquet = parquet_file(source, metadata=opened.parquet.metadata, pre_buffer=False)
            yield replace(opened, parquet=parquet, source=source, whole=False)
            if not self._checked:  # there were unplanned reads
                self._check()
        except BaseException:
            self._contents.clear()  # they may be the cause
            self._reopen()
            raise

    def _complete(self) -> OpenParquet:
        """Read and check missing bytes."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            for byte_range in self.plan():
                self.read(byte_range)
            if not self._checked:
                self._check()
        except OSError:
            self._reopen()
            raise
        assert self._opened is not None
        return self._opened

    def _check(self) -> None:
        assert self._opened is not None
        self._files.check(self._opened, self._expected)
        self._checked = True

    def _reopen(self) -> None:
        """Let the next `plan` open the file again. It keeps the bytes if the time of modification is the same."""
        opened, self._opened, self._checked = self._opened, None, False
        if opened is not None:
            self._files.forget(opened)

    def _unplanned(self, begin: int, end: int) -> bytes:
        assert self._opened is not None
        self._checked = False
        return self._files.read(self._opened, begin, end, planned=False)


class _InMemory:
    """A file object for pyarrow over ranges of bytes in memory. Bytes inside one range are not copied; bytes that no
    range has are read by `read`."""

    closed = False

    def __init__(self, contents: Mapping[ByteRange, bytes], size: int, read: Callable[[int, int], bytes]) -> None:
        self._ranges = sorted(contents)
        self._bytes = [memoryview(contents[each]) for each in self._ranges]
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
        # The last range that begins at `begin` or before; long column chunks continue in the ranges after it.
        first = max(bisect.bisect_right(self._ranges, (begin, self._size + 1)) - 1, 0)
        slices, at = [], begin
        for (low, high), content in zip(self._ranges[first:], self._bytes[first:], strict=True):
            if not low <= at < min(high, end):
                break
            slices.append(content[at - low : end - low])
            at = min(high, end)
        if at < end:
            return self._read(begin, end)
        return slices[0] if len(slices) == 1 else b"".join(slices)

    def close(self) -> None:
        """Called by pyarrow. There is nothing to close."""
