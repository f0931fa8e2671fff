"""A file of an object store, of which every read gives all bytes or an error."""

import io
from typing import Any

from pyarrow.fs import FSSpecHandler

from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import unreachable

_MARK, _OTHER_MARK = b"\xa5", b"\x5a"


class RemoteFile(io.RawIOBase):
    """An open file. `read_at` may be called by several threads at a time; Arrow reads by `seek` and `readinto`.

    Arrow's S3 says that all bytes have come where the store has answered with fewer or with none (seen in 26.0): what
    was in memory before stands in their place. So the last byte is marked before it is read. If it looks like the mark
    afterwards, it is read again, with another mark in its place.

    Args:
        handle: of the file; closed with this object.

    Raises (whatever reads): ConnectionError, naming the file: fewer bytes came, or the filesystem does not say what is
    wrong. Nothing was decoded then: it is no damage. FileNotFoundError, PermissionError.
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
            if isinstance(handler, FSSpecHandler):  # its open files serve one thread at a time, and read too much
                found = handler.fs.cat_file(path, offset, offset + count)
            else:
                found = self._marked(count, offset)
        except OSError as error:
            if unreachable(error):
                raise
            raise ConnectionError(f"{path}: {error}") from error
        if len(found) != count:
            raise ConnectionError(f"{path}: only {len(found)} of {count} bytes arrived, from byte {offset} on")
        return found

    def _marked(self, count: int, offset: int) -> bytearray:
        """What has come of a range, as far as it tells."""
        found = bytearray(count)
        arrived = self._fill(found, offset, _MARK)
        if arrived == count and found[-1:] == _MARK:
            arrived = self._fill(found, offset, _OTHER_MARK)
            if arrived == count and found[-1:] != _MARK:
                raise ConnectionError(f"{self._file.path}: not all of {count} bytes arrived, from byte {offset} on")
        return found[:arrived] if arrived < count else found

    def _fill(self, found: bytearray, offset: int, mark: bytes) -> int:
        """How many bytes are said to have come."""
        found[-1:] = mark[: len(found)]
        arrived: int = self._handle.get_stream(offset, len(found)).readinto(found)
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
