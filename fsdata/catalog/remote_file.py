"""A file of an object store. A read returns all requested bytes or raises."""

import io
from typing import Any

from pyarrow.fs import FSSpecHandler

from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import unreachable

_MARK, _OTHER_MARK = b"\xa5", b"\x5a"


class RemoteFile(io.RawIOBase):
    """An open file. `read_at` may be called by several threads at a time; Arrow reads by `seek` and `readinto`.

    Arrow's S3 filesystem reports all bytes as read even if the store answered with fewer or none (seen in 26.0): the
    rest of the buffer then keeps its old contents. The last byte is therefore marked before a read. If it equals the
    mark afterwards, the range is read again with another mark.

    Args:
        handle: of the file; closed with this object.

    Raises (all reads): ConnectionError, naming the file: fewer bytes arrived, or the filesystem gives no reason. It is
    not reported as damage, as nothing was decoded. FileNotFoundError, PermissionError.
    """

    def __init__(self, file: FileRef, handle: Any) -> None:
        self._file = file
        self._handle = handle
        self._size: int = handle.size()
        self._at = 0

    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read_at(self, count: int, offset: int) -> bytes | bytearray:
        """`count` bytes from `offset` on. Blocks."""
        path, handler = self._file.path, getattr(self._file.filesystem, "handler", None)
        try:
            if isinstance(handler, FSSpecHandler):  # open files of fsspec are not thread-safe, and read more than asked
                raw = handler.fs.cat_file(path, offset, offset + count)
            else:
                raw = self._marked(count, offset)
        except OSError as error:
            if unreachable(error):
                raise
            raise ConnectionError(f"{path}: {error}") from error
        if len(raw) != count:
            raise ConnectionError(f"{path}: only {len(raw)} of {count} bytes arrived, from byte {offset} on")
        return raw

    def _marked(self, count: int, offset: int) -> bytearray:
        """The bytes of a range that arrived, as far as that can be detected."""
        raw = bytearray(count)
        arrived = self._fill(raw, offset, _MARK)
        if arrived == count and raw[-1:] == _MARK:  # perhaps not read; or the file has this byte there
            arrived = self._fill(raw, offset, _OTHER_MARK)
            if arrived == count and raw[-1:] != _MARK:
                raise ConnectionError(f"{self._file.path}: not all of {count} bytes arrived, from byte {offset} on")
        return raw[:arrived] if arrived < count else raw

    def _fill(self, raw: bytearray, offset: int, mark: bytes) -> int:
        """Read into `raw`; the number of bytes that the filesystem reports."""
        raw[-1:] = mark[: len(raw)]
        # A stream per read: it has no position that other threads could move.
        arrived: int = self._handle.get_stream(offset, len(raw)).readinto(raw)
        return arrived

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, memory: Any) -> int:
        """Blocks."""
        count = max(min(memoryview(memory).nbytes, self._size - self._at), 0)
        memoryview(memory).cast("B")[:count] = self.read_at(count, self._at)
        self._at += count
        return count

    def close(self) -> None:
        self._handle.close()
        super().close()
