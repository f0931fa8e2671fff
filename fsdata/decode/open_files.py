"""Open Parquet files, kept between row groups and never shared by two threads at a time."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.footers import Schemas, digest, footer_bytes, open_file, parquet_file, parsed
from fsdata.catalog.listing.file_list import FileRef
from fsdata.errors import CorruptFileError
from fsdata.kernels import footer as kernel

FOOTER_BYTES = 128 << 20  # of parsed footers that are kept: to parse those of wide files takes longer than a row group
_PARSED = 12  # bytes that pyarrow and we need for a byte of a footer: 8 to 12, measured on 1 to 100 columns


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A file, and what planning knows of it.

    Attributes:
        size, identity: bytes, and the digest of the footer.
        rows, schema: of the row groups, int64 [groups], and of the file, where a catalog says so; None where they are
            what a footer of that digest says. With them the time of modification has to be that of the catalog, too:
            where footers have no statistics, those of two files may be equal.
    """

    file: FileRef
    size: int
    identity: str
    rows: np.ndarray | None = None
    schema: pa.Schema | None = None


class RemoteGroup(Protocol):
    """A row group of a file that is not local, see `fsdata.remote.row_group`."""

    def opened(self) -> AbstractContextManager["OpenParquet"]:
        """The file, in which this row group is in memory. Blocks."""


class RemoteReads(Protocol):
    """What reads files that are not local, see `fsdata.remote.row_group`.

    Attributes:
        bytes_read: of row groups. unplanned_reads: how often a decoder asked for bytes that were not planned.
    """

    bytes_read: int
    unplanned_reads: int

    def group(self, known: Known, index: int, leaves: Sequence[int]) -> RemoteGroup:
        """What the leaf columns of a row group take; nothing is read."""


@dataclass(frozen=True, slots=True)
class OpenParquet:
    """One open file.

    Attributes:
        stamp: its time of modification when it was opened, 0 if unknown.
        parquet: reads it by pyarrow, from `source`, which has `seek` and `read`.
        schema: the object that files of one schema share.
        chunks: int64 [row groups, leaf columns, kernel.CHUNK_COLUMNS], see `fsdata.kernels.footer`.
        whole: `source` has all of the file. Of a remote one it has what was read ahead; each further read is a request.
    """

    file: FileRef
    stamp: int
    parquet: pq.ParquetFile
    source: Any
    schema: pa.Schema
    chunks: np.ndarray
    whole: bool = True

    def indexes(self, group: int) -> np.ndarray | None:
        """int64 [leaf columns, 2], first byte of the offset index and how many, 0 without one; None where it would have
        to be fetched."""
        if not self.whole:
            return None
        return self.chunks[group][:, [kernel.INDEX_AT, kernel.INDEX_BYTES]]

    @property
    def footer_bytes(self) -> int:
        """Memory of the parsed footer."""
        return self.parquet.metadata.serialized_size * _PARSED

    def close(self) -> None:
        self.source.close()


def modified(file: FileRef) -> int:
    """Time of modification in ns, 0 if the filesystem does not know it. Blocks for a request if the file is remote.

    Raises:
        FileNotFoundError: a local file is missing; a missing remote file has 0.
        OSError: it cannot be reached.
    """
    if file.local:
        return os.stat(file.path).st_mtime_ns
    return file.filesystem.get_file_info(file.path).mtime_ns or 0


_Parsed = tuple[pq.FileMetaData, pa.Schema, np.ndarray]
"""A footer, its schema, and `OpenParquet.chunks`."""


class _Footers:
    """Parsed footers, those used last, up to some bytes: a file may be opened again soon. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[_Parsed, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, file: FileRef, identity: str, parse: Callable[[], _Parsed]) -> _Parsed:
        key = file.path, identity
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known[0]
        found = parse()
        size = found[0].serialized_size * _PARSED
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found, size
                self._bytes += size
            while self._bytes > FOOTER_BYTES:
                _, (_, gone) = self._kept.popitem(last=False)
                self._bytes -= gone
        return found


class OpenFiles:
    """A pool of open files: a thread takes one, reads a row group, and gives it back, or closes it after an error.

    A file is compared with its identity when it is opened, and a local one again whenever its time of modification
    is another: a file that was replaced must not be decoded with plans of the old one. Thread-safe.

    Args:
        keep: idle files kept open; with as many as there are decode threads no file is opened per row group.
        more: further ones, as many as have footers that together are no larger than those that are kept parsed: where
            rows are shuffled, the next row group is one of another file.
        advice: what to do about a file that was replaced.
    """

    def __init__(self, keep: int, advice: str = "", more: int = 0) -> None:
        self._keep = keep
        self._more = more
        self._advice = advice
        self._idle: list[OpenParquet] = []
        self._footers = _Footers()
        self._schemas: Schemas = {}
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def using(self, known: Known) -> Iterator[OpenParquet]:
        """An open file for the block, which closes it if it raises. Raises as `take`."""
        opened = self.take(known)
        try:
            yield opened
        except BaseException:
            opened.close()
            raise
        self.give(opened)

    def take(self, known: Known) -> OpenParquet:
        """An open file that belongs to the caller until `give`.

        Raises:
            CorruptFileError: the file is not the one that is known, or pyarrow cannot parse the footer.
        """
        file = known.file
        stamp = modified(file) if file.local else 0
        with self._lock:
            position = next((n for n in reversed(range(len(self._idle))) if self._idle[n].file.path == file.path), None)
            if position is not None:
                idle = self._idle.pop(position)
                if idle.stamp == stamp:
                    return idle
                idle.close()
        return self.open(known, stamp)

    def open(self, known: Known, stamp: int | None = None) -> OpenParquet:
        """The file, opened and compared. Some requests to the store if it is remote. Raises as `take` does.

        stamp: None to ask the filesystem for it.
        """
        file = known.file
        source = open_file(file)
        try:
            stamp = modified(file) if stamp is None else stamp
            raw = self._compared(known, stamp, source)
            parse = partial(parsed, raw, known.size, file, self._schemas)
            metadata, schema, chunks = self._footers.of(file, known.identity, parse)
            if known.rows is not None:
                _compare(metadata, schema, known, known.rows)
            parquet = parquet_file(source, metadata=metadata)
        except BaseException:
            source.close()
            raise
        return OpenParquet(file, stamp, parquet, source, schema, chunks)

    def give(self, file: OpenParquet) -> None:
        """Keep the file for the next row group; the longest idle ones are closed if there are too many."""
        with self._lock:
            self._idle.append(file)
            kept = 0 if self._closed else self._keep
            if kept:
                held = accumulate(idle.footer_bytes for idle in reversed(self._idle))
                kept = max(kept, min(sum(size <= FOOTER_BYTES for size in held), kept + self._more))
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

    def _compared(self, known: Known, stamp: int, source: Any) -> bytes:
        """The footer with its length and magic."""
        now, path = source.size(), known.file.path
        if known.rows is not None and 0 < known.file.modified != stamp > 0:
            raise CorruptFileError(
                f"{path}: replaced after it was listed: its time of modification is another. {self._advice}"
            )
        if now != known.size:
            raise CorruptFileError(
                f"{path}: replaced while in use: {now} bytes, {known.size} when its footer was read. {self._advice}"
            )
        raw = footer_bytes(source, now, known.file)
        if digest(raw) != known.identity:
            raise CorruptFileError(
                f"{path}: replaced while in use: its footer is not the one that was read at the start. {self._advice}"
            )
        return raw


def _compare(metadata: pq.FileMetaData, schema: pa.Schema, known: Known, rows: np.ndarray) -> None:
    """Compare a footer with what a catalog says of it."""
    found = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if found != rows.tolist() or not schema.equals(known.schema, check_metadata=True):
        raise CorruptFileError(
            f"{known.file.path}: its catalog says other rows or columns of it than its footer. Make the catalog again "
            "with `freescale catalog`"
        )
