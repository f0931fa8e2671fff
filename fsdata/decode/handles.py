"""Open Parquet files, kept between row groups and never shared by two threads at a time."""

import os
import threading
from typing import Any

import pyarrow.parquet as pq

from fsdata.catalog.footers import Footer, digest, footer_bytes, open_file
from fsdata.errors import CorruptFileError


class Handles:
    """A pool of open files: a thread takes one, reads a row group, gives it back.

    A file is compared with its footer when it is opened, and a local one again whenever its time of modification
    is another: a file that was replaced must not be decoded with the old footer. Thread-safe.

    Args:
        keep: idle files kept open; with as many as there are decode threads no file is opened per row group.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._idle: list[tuple[Footer, int, pq.ParquetFile, Any]] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, footer: Footer) -> "Handle":
        """An open file that belongs to the caller until `give`.

        Raises:
            CorruptFileError: the file is not the one whose footer was read.
        """
        stamp = _stamp(footer)
        with self._lock:
            for position in range(len(self._idle) - 1, -1, -1):
                idle = self._idle[position]
                if idle[0] is footer:
                    del self._idle[position]
                    if idle[1] == stamp:
                        return Handle(*idle)
                    idle[3].close()
                    break
        source = open_file(footer.file)
        try:
            _compare(footer, source)
            parquet = pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True)
        except BaseException:
            source.close()
            raise
        return Handle(footer, stamp, parquet, source)

    def give(self, handle: "Handle") -> None:
        """Keep the file for the next row group; the longest idle one is closed if there are too many."""
        with self._lock:
            if not self._closed:
                self._idle.append((handle.footer, handle.stamp, handle.parquet, handle.source))
                surplus = self._idle[: -self._keep] if len(self._idle) > self._keep else []
                self._idle = self._idle[len(surplus) :]
            else:
                surplus = [(handle.footer, handle.stamp, handle.parquet, handle.source)]
        for _, _, _, source in surplus:
            source.close()

    def close(self) -> None:
        """Close idle files; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, _, _, source in idle:
            source.close()


class Handle:
    """One open file. `discard` instead of `Handles.give` after an error."""

    __slots__ = ("footer", "parquet", "source", "stamp")

    def __init__(self, footer: Footer, stamp: int, parquet: pq.ParquetFile, source: Any) -> None:
        self.footer = footer
        self.stamp = stamp
        self.parquet = parquet
        self.source = source

    def discard(self) -> None:
        self.source.close()


def _stamp(footer: Footer) -> int:
    return os.stat(footer.file.path).st_mtime_ns if footer.file.local else 0


def _compare(footer: Footer, source: Any) -> None:
    size = source.size()
    if size != footer.size:
        raise CorruptFileError(
            f"{footer.file.path}: replaced while in use: {size} bytes, {footer.size} when its footer was read. "
            "Start the job again, with files that nobody writes"
        )
    if digest(footer_bytes(source, size, footer.file)) != footer.digest:
        raise CorruptFileError(
            f"{footer.file.path}: replaced while in use: its footer is not the one that was read at the start. "
            "Start the job again, with files that nobody writes"
        )
