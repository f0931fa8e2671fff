"""Open Parquet files, kept between row groups; a file is used by one thread at a time.

A footer is read twice in a job: for the catalog at the start, and when the file is opened for decoding. The second read
shows that the file was not replaced, and has the numbers that decoders need and a catalog does not keep. pyarrow parses
the footer only here, once as long as the cache has room; for the catalog it parses one footer of each schema.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.footers import (
    ParsedFooter,
    Schemas,
    check_footer,
    digest,
    footer_bytes,
    open_file,
    parquet_file,
    parse_footer,
)
from fsdata.catalog.listing.file_list import FileRef
from fsdata.errors import CorruptFileError
from fsdata.kernels import footer as kernel

FOOTER_BYTES = 128 << 20  # of the cache of parsed footers: parsing that of a wide file takes longer than a row group
_PARSED = 12  # bytes of memory per byte of a parsed footer: 8 to 12, measured on 1 to 100 columns


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedFile:
    """A file with the properties that planning has read, which are compared when it is opened.

    Attributes:
        size, identity: bytes, and the digest of the footer.
        rows, schema: from a catalog file, which may be out of date or damaged: the rows of the row groups, int64
            [groups], and the schema; None if this job has read the footer itself. With them the time of modification
            is compared, too: the footers of two files may be equal if they have no statistics.
    """

    file: FileRef
    size: int
    identity: str
    rows: np.ndarray | None = None
    schema: pa.Schema | None = None


class RemoteGroup(Protocol):
    """A row group of a remote file, see `fsdata.remote.row_group`."""

    def opened(self) -> AbstractContextManager["OpenParquet"]:
        """The file, with the bytes of this row group in memory. Blocks."""


class RemoteReads(Protocol):
    """The reader of remote files, see `fsdata.remote.row_group`.

    Attributes:
        bytes_read: of row groups. unplanned_reads: reads by decoders outside the planned byte ranges.
    """

    bytes_read: int
    unplanned_reads: int

    def group(self, expected: ExpectedFile, index: int, leaves: Sequence[int]) -> RemoteGroup:
        """The leaf columns of a row group; nothing is read yet."""


@dataclass(frozen=True, slots=True)
class OpenParquet:
    """One open file.

    Attributes:
        stamp: its time of modification when it was opened, 0 if unknown.
        parquet: pyarrow's reader of `source`, which has `seek` and `read`.
        schema: the object that files of one schema share.
        chunks: int64 [row groups, leaf columns, kernel.CHUNK_COLUMNS], see `fsdata.kernels.footer`.
        whole: `source` has the whole file. That of a remote file has the bytes that were read ahead; each further read
            is a request.
    """

    file: FileRef
    stamp: int
    parquet: pq.ParquetFile
    source: Any
    schema: pa.Schema
    chunks: np.ndarray
    whole: bool = True

    def indexes(self, group: int) -> np.ndarray | None:
        """int64 [leaf columns, 2], first byte and length of the offset index, length 0 without one; None if reading
        them would take requests."""
        if not self.whole:
            return None
        return self.chunks[group][:, [kernel.INDEX_AT, kernel.INDEX_BYTES]]

    @property
    def footer_bytes(self) -> int:
        """Memory of the parsed footer."""
        return _memory(self.parquet.metadata)

    def close(self) -> None:
        self.source.close()


def modified(file: FileRef) -> int:
    """Time of modification in ns, 0 if the filesystem does not have it. Blocks for a request if the file is remote.

    Raises:
        FileNotFoundError: a local file is missing; for a missing remote file 0 is returned.
        OSError: it cannot be reached.
    """
    if file.local:
        return os.stat(file.path).st_mtime_ns
    return file.filesystem.get_file_info(file.path).mtime_ns or 0


class _ParsedFooters:
    """A cache of parsed footers, bounded in bytes: a file may be opened again soon. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], ParsedFooter] = OrderedDict()  # the one used last at the end
        self._bytes = 0
        self._schemas: Schemas = {}
        self._lock = threading.Lock()

    def get(self, expected: ExpectedFile, raw: bytes) -> ParsedFooter:
        """The parsed footer of a file. raw: with length and magic; its digest is the expected one."""
        key = expected.file.path, expected.identity
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # Outside the lock, so that threads parse the footers of several files at a time.
        footer = parse_footer(check_footer(raw, expected.size, expected.file), expected.file, self._schemas)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = footer
                self._bytes += _memory(footer.metadata)
            while self._bytes > FOOTER_BYTES:
                self._bytes -= _memory(self._kept.popitem(last=False)[1].metadata)
        return footer


def _memory(metadata: pq.FileMetaData) -> int:
    """Bytes of memory of a parsed footer."""
    return int(metadata.serialized_size) * _PARSED


class OpenFiles:
    """A pool of open files: a thread takes one, reads a row group, and gives it back, or closes it after an error.

    A file is compared with its identity when it is opened; a local file is opened and compared again whenever its time
    of modification has changed. Otherwise a replaced file would be decoded with the plans of the old one. Thread-safe.

    Args:
        keep: number of idle files that stay open; with one per decode thread no file is opened per row group.
        more: number of further idle files, as far as all their footers fit into `FOOTER_BYTES`: when rows are shuffled,
            the next row group is in another file.
        advice: the remedy for a replaced file, for messages.
    """

    def __init__(self, keep: int, advice: str = "", more: int = 0) -> None:
        self._keep = keep
        self._more = more
        self._advice = advice
        self._idle: list[OpenParquet] = []
        self._footers = _ParsedFooters()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def using(self, expected: ExpectedFile) -> Iterator[OpenParquet]:
        """An open file for the block, which closes it if it raises. Raises as `take`."""
        opened = self.take(expected)
        try:
            yield opened
        except BaseException:
            opened.close()
            raise
        self.give(opened)

    def take(self, expected: ExpectedFile) -> OpenParquet:
        """An open file that belongs to the caller until `give`.

        Raises:
            CorruptFileError: the file is not the expected one, or pyarrow cannot parse the footer.
        """
        file = expected.file
        stamp = modified(file) if file.local else 0  # for a remote file a request, which only `open` makes
        with self._lock:
            # The one used last: other open ones of this file then stay idle longest, and `give` closes them.
            position = next((n for n in reversed(range(len(self._idle))) if self._idle[n].file.path == file.path), None)
            if position is not None:
                idle = self._idle.pop(position)
                if idle.stamp == stamp:
                    return idle
                idle.close()
        return self.open(expected, stamp)

    def open(self, expected: ExpectedFile, stamp: int | None = None) -> OpenParquet:
        """Open the file and compare it. Blocks for some requests to the store if it is remote. Raises as `take` does.

        stamp: its time of modification; None to ask the filesystem for it.
        """
        file = expected.file
        source = open_file(file)
        try:
            stamp = modified(file) if stamp is None else stamp
            raw = self._compared(expected, stamp, source)
            metadata, schema, chunks = self._footers.get(expected, raw)
            if expected.rows is not None:
                _compare(metadata, schema, expected, expected.rows)
            parquet = parquet_file(source, metadata=metadata)
        except BaseException:
            source.close()
            raise
        return OpenParquet(file, stamp, parquet, source, schema, chunks)

    def give(self, file: OpenParquet) -> None:
        """Keep the file for the next row group; closes those that have been idle longest if there are too many."""
        with self._lock:
            self._idle.append(file)
            kept = 0 if self._closed else self._keep
            if kept:
                # Idle files keep their parsed footers in memory, even those that the cache has dropped.
                totals = accumulate(idle.footer_bytes for idle in reversed(self._idle))
                kept = max(kept, min(sum(total <= FOOTER_BYTES for total in totals), kept + self._more))
            surplus = self._idle[: max(len(self._idle) - kept, 0)]
            del self._idle[: len(surplus)]
        for idle in surplus:
            idle.close()

    def close(self) -> None:
        """Close idle files; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for file in idle:
            file.close()

    def _compared(self, expected: ExpectedFile, stamp: int, source: Any) -> bytes:
        """The footer with its length and magic, once file and footer are the expected ones."""
        size, path = source.size(), expected.file.path
        if expected.rows is not None and 0 < expected.file.modified != stamp > 0:
            raise CorruptFileError(
                f"{path}: replaced after it was listed: its time of modification is another. {self._advice}"
            )
        if size != expected.size:
            raise CorruptFileError(
                f"{path}: replaced while in use: {size} bytes, {expected.size} when its footer was read. {self._advice}"
            )
        raw = footer_bytes(source, size, expected.file)
        if digest(raw) != expected.identity:
            raise CorruptFileError(
                f"{path}: replaced while in use: its footer is not the one that was read at the start. {self._advice}"
            )
        return raw


def _compare(metadata: pq.FileMetaData, schema: pa.Schema, expected: ExpectedFile, rows: np.ndarray) -> None:
    """Compare a footer with the row groups and the schema in a catalog file."""
    row_counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if row_counts != rows.tolist() or not schema.equals(expected.schema, check_metadata=True):
        raise CorruptFileError(
            f"{expected.file.path}: its catalog and its footer have different rows or columns. Make the catalog "
            "again with `freescale catalog`"
        )
