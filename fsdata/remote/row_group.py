"""Files that are not local, and their row groups: read by several threads, then decoded from memory."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fsdata.catalog.footers import column_ranges, parquet_file
from fsdata.decode.open_files import ExpectedFile, OpenParquet, modified
from fsdata.remote.byte_ranges import ByteRange, requests

_KEPT = 64


@dataclass(slots=True)
class _Slot:
    """One file. The lock is held while it is opened, so that one thread opens and the others wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: OpenParquet | None = None


class RemoteFiles:
    """Remote files, those used last kept open. Thread-safe.

    A file is compared with its identity when it is opened. `check` says whether what was read since then is all of that
    file: a store may put another object in its place at any time.

    Args:
        open: opens a file and compares it; see `OpenFiles.open`.

    Attributes:
        bytes_read: all bytes of row groups, those of footers not counted.
        unplanned_reads: how often a decoder asked for bytes that were not planned.
    """

    def __init__(self, open: Callable[[ExpectedFile], OpenParquet]) -> None:
        self.bytes_read = 0
        self.unplanned_reads = 0
        self._open = open
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()

    def group(self, known: ExpectedFile, index: int, leaves: Sequence[int]) -> "RowGroupBytes":
        """What the leaf columns of a row group take; nothing is read."""
        return RowGroupBytes(self, known, index, leaves)

    def get(self, known: ExpectedFile) -> OpenParquet:
        """The open file. Blocks for some requests to the store if it is not open yet.

        Raises what `open` raises.
        """
        with self._lock:
            slot = self._slots.setdefault(known.file.path, _Slot())
            self._slots.move_to_end(known.file.path)
            while len(self._slots) > _KEPT:
                self._slots.popitem(last=False)  # not closed, as others may be reading from it
        with slot.lock:
            if slot.opened is None:
                slot.opened = self._open(known)
            return slot.opened

    def forget(self, opened: OpenParquet) -> None:
        """Open the file anew when it is asked for the next time."""
        with self._lock:
            slot = self._slots.get(opened.file.path)
            if slot is not None and slot.opened is opened:
                del self._slots[opened.file.path]

    def read(self, opened: OpenParquet, begin: int, end: int, *, planned: bool = True) -> bytes:
        """Bytes [begin, end) of the file, all of them. Blocks; several threads read the same file at the same time.

        Raises as `RemoteFile` does.
        """
        found: bytes = opened.source.read_at(end - begin, begin)
        with self._lock:
            self.bytes_read += end - begin
            self.unplanned_reads += not planned
        return found

    def check(self, opened: OpenParquet, known: ExpectedFile) -> None:
        """Check that the file is still the one that was opened. Blocks for a request to the store.

        Raises:
            CorruptFileError: it is another file.
            ConnectionError: it was written again with the same footer, so that it has to be read again.
        """
        if modified(opened.file) != opened.stamp:
            self.forget(opened)
            self.get(known)
            raise ConnectionError(f"{opened.file.path}: written again while it was being read")


class RowGroupBytes:
    """The bytes of one row group of which a decoder needs some columns.

    Read-ahead calls `plan`, `read` for each range, from any threads, and then `finish`, or `fail` with what one of them
    has raised. The decoder then calls `opened`, which reads what is missing. Without read-ahead this is everything.

    Args:
        known, group: its file, and its place there.
        leaves: the leaf columns that are decoded.
    """

    def __init__(self, files: RemoteFiles, known: ExpectedFile, group: int, leaves: Sequence[int]) -> None:
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
        """Check that what was read is of one file. Blocks for a request to the store; `opened` raises what is wrong."""
        if self._error is None:
            try:
                self._check()
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Let `opened` raise the error; the first one counts."""
        with self._lock:
            self._error = self._error or error

    @contextmanager
    def opened(self) -> Iterator[OpenParquet]:
        """The file for the block, in which this row group is in memory. Blocks while bytes are missing.

        Raises:
            ConnectionError: bytes are missing. What has arrived is kept, so that the next call need not read it again.
            CorruptFileError, OSError: see `plan` and `RemoteFile`.
            What the block raises; the next call then reads everything again.
        """
        opened = self._complete()
        source = _InMemory(self._parts, self._known.size, self._unplanned)
        try:
            # pre_buffer would read the gaps between columns, too
            parquet = parquet_file(source, metadata=opened.parquet.metadata, pre_buffer=False)
            yield replace(opened, parquet=parquet, source=source, whole=False)
            if not self._checked:
                self._check()
        except BaseException:
            self._parts.clear()
            self._reopen()
            raise

    def _complete(self) -> OpenParquet:
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
        return self._opened

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
