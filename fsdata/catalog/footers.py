"""Reads, checks and parses the footer of one file; a counter for the terminal while many are read."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import marked
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.remote_file import RemoteFile
from fsdata.errors import CorruptFileError
from fsdata.kernels import footer as kernel

SHOWN_AFTER_S = 2.0
_REDRAWN_AFTER_S = 0.1
_TO_LINE_START, _ERASE_TO_LINE_END = "\r", "\x1b[K"
_LOG = logging.getLogger("fsdata")


class Counter:
    """Counts up to `total`. After two seconds the count is shown on stderr if that is a terminal, else logged.

    Use as a context manager. Thread-safe.
    """

    def __init__(self, what: str, total: int, *, shown: bool) -> None:
        self._what = what
        self._total = total
        self._shown = shown
        self._due = time.monotonic() + SHOWN_AFTER_S
        self._done = 0
        self._lock = threading.Lock()
        self._logged = self._drawn = False

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if not self._shown or time.monotonic() < self._due:
                return
            if sys.stderr.isatty():
                self._draw(f"{self._what}: {self._done:,} of {self._total:,}")
                self._due = time.monotonic() + _REDRAWN_AFTER_S  # 100,000 files are not 100,000 writes
            elif not self._logged:
                _LOG.info("%s: %d of %d so far", self._what, self._done, self._total)
                self._logged = True

    def _draw(self, line: str) -> None:
        sys.stderr.write(_TO_LINE_START + line + _ERASE_TO_LINE_END)
        sys.stderr.flush()
        self._drawn = bool(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._draw("")


MAGIC = b"PAR1"
_TAIL_BYTES = 65_536  # first read of a remote file: most footers need no second request
_LOCAL_TAIL_BYTES = 8  # of a local file: length and magic, as a second read costs little
Schemas = dict[tuple[bytes, bytes | None, tuple[int, ...]], pa.Schema]
_END = b"????PAR1"  # length and magic
_FAULTS = {
    kernel.NO_SCHEMA: "it has no schema, or more row groups than fit into it",
    kernel.COLUMNS: "{found} column chunks for {allowed} columns",
    kernel.TYPE: "physical type {found}, in the schema {allowed}",
    kernel.STATISTIC: "a least or greatest value of {found} bytes for a type of {allowed}",
    kernel.REPETITIONS: "a histogram of {found} repetition levels for {allowed}",
    kernel.DEFINITIONS: "a histogram of {found} definition levels for {allowed}",
    kernel.BYTES_OF_NUMBERS: "a size of byte arrays in a column that has none",
    kernel.NULL_COUNT: "{found} nulls",
    kernel.CHUNK_VALUES: "{found} values for {allowed} rows",
    kernel.GROUP_ROWS: "{found} rows",
    kernel.FILE_ROWS: "{found} rows in all, {allowed} in the row groups",
    kernel.POSITION: "data up to byte {found}, outside the bytes before the footer, 4 to {allowed}",
    kernel.EXPANDED: "not compressed, and {found} bytes become {allowed}",
    kernel.CODEC: "compressed by the unknown codec {found}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file, or one of its row groups, that was skipped under `on_error="skip"`.

    `row_group` is None and `rows` 0 if the footer was unreadable: the number of rows is unknown.
    """

    file: str
    row_group: int | None
    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedFooter:
    """A footer whose numbers are consistent with each other and with the size of the file.

    Attributes:
        raw: with length and magic.
        chunks: int64 [row groups x leaf columns, 11], see `fsdata.kernels.footer`.
        rows: int64 [row groups].
        schema_bytes, key_value_bytes: the parts of `raw` with the schema and with the key-value metadata.
    """

    raw: bytes
    chunks: np.ndarray
    rows: np.ndarray
    schema_bytes: bytes
    key_value_bytes: bytes

    @property
    def encrypted(self) -> tuple[int, ...]:
        """The leaf columns that are encrypted in any row group."""
        if not self.chunks[:, kernel.ENCRYPTION].any():
            return ()
        leaves = len(self.chunks) // len(self.rows)
        return tuple(sorted({chunk % leaves for chunk in np.flatnonzero(self.chunks[:, kernel.ENCRYPTION]).tolist()}))


def check_footer(raw: bytes, size: int, file: FileRef) -> CheckedFooter:
    """Check every number of the footer on which reading relies.

    pyarrow must not see a footer before this check: it throws C++ exceptions for some wrong numbers, which end the
    process. size: bytes of the file.

    Raises:
        CorruptFileError: the footer contradicts itself, or the size of the file.
    """
    report = np.zeros(5, np.int64)
    room = size - len(raw)  # data of a chunk must end before the footer
    chunks, positions, rows = kernel.read_chunks(np.frombuffer(raw, np.uint8, len(raw) - len(_END)), room, report)
    if report[0] != kernel.OK:
        raise _contradiction(file, report.tolist())
    begin, end, unordered, first, last = positions.tolist()
    # The kernel only notices chunks out of order: few files have them, and only these are sorted here.
    if unordered and _overlap(chunks):
        raise CorruptFileError(
            f"{file.path}: the footer contradicts itself: column chunks overlap. Write the file again"
        )
    return CheckedFooter(raw, chunks, rows, raw[begin:end], raw[first:last])


class ParsedFooter(NamedTuple):
    """A checked footer, as pyarrow parses it.

    Attributes:
        metadata: of encrypted columns only the public part.
        schema: without the key-value metadata; with marks on `encrypted_columns`; one object for all files of the same
            schema.
        chunks: int64 [row groups, leaf columns, 11], see `fsdata.kernels.footer`.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    chunks: np.ndarray


def parse_footer(footer: CheckedFooter, file: FileRef, schemas: Schemas) -> ParsedFooter:
    """Parse a footer with pyarrow.

    schemas: Arrow schemas of other files, by the bytes from which they are made. Making one takes a third of the time
        of parsing a footer, so files of one schema share it.

    Raises:
        CorruptFileError: pyarrow cannot parse it, or finds another number of column chunks.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + _without_encryption(footer)))
        shape = metadata.num_row_groups, metadata.num_columns
        if len(footer.chunks) != shape[0] * shape[1]:
            raise _contradiction(file, (kernel.COLUMNS, -1, -1, len(footer.chunks), shape[0] * shape[1]))
        key = footer.schema_bytes, (metadata.metadata or {}).get(b"ARROW:schema"), footer.encrypted
        schema = schemas.get(key)
        if schema is None:
            plain = arrow_schema(metadata).remove_metadata()
            # setdefault: another thread may have made it meanwhile, and all files must share one object
            schema = schemas.setdefault(key, marked(plain, footer.encrypted) if footer.encrypted else plain)
    except CorruptFileError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"{file.path}: the footer cannot be parsed: {_first_line(error)}") from error
    return ParsedFooter(metadata, schema, footer.chunks.reshape(*shape, kernel.CHUNK_COLUMNS))


def arrow_schema(metadata: pq.FileMetaData) -> pa.Schema:
    """The Arrow schema that `parquet_file` reads, with the key-value metadata."""
    parquet = metadata.schema
    # Only an opened file applies `coerce_int96_timestamp_unit` to the schema; for other columns this is faster.
    if all(parquet.column(leaf).physical_type != "INT96" for leaf in range(metadata.num_columns)):
        return parquet.to_arrow_schema()
    return parquet_file(pa.BufferReader(b""), metadata=metadata).schema_arrow


def parquet_file(source: Any, **options: Any) -> pq.ParquetFile:
    """A Parquet file for decoding. INT96 timestamps of Spark are read as microseconds: nanoseconds would silently wrap
    around outside the years 1678 to 2261."""
    return pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us", **options)


def _without_encryption(footer: CheckedFooter) -> bytes:
    """The footer without its encryption fields: pyarrow 26 ends the process if a column chunk is requested for which
    it has no key."""
    raw, chunks = footer.raw, footer.chunks
    spans = chunks[chunks[:, kernel.ENCRYPTION] > 0][:, [kernel.ENCRYPTION, kernel.ENCRYPTION_END]].tolist()
    if not spans:
        return raw
    rest, at = [], 0
    for begin, end in spans:
        rest.append(raw[at:begin])
        at = end
    stripped = b"".join([*rest, raw[at : -len(_END)]])
    return stripped + len(stripped).to_bytes(4, "little") + MAGIC


def _contradiction(file: FileRef, report: Sequence[int]) -> CorruptFileError:
    code, group, leaf, found, allowed = report
    where = "" if group < 0 else f"row group {group}" + ("" if leaf < 0 else f", leaf column {leaf}") + ": "
    return CorruptFileError(
        f"{file.path}: the footer contradicts itself: {where}{_FAULTS[code].format(found=found, allowed=allowed)}. "
        "Write the file again"
    )


def _overlap(chunks: np.ndarray) -> bool:
    begin, stored = chunks[:, kernel.BEGIN], chunks[:, kernel.STORED]
    order = np.argsort(begin, kind="stable")
    order = order[chunks[order, kernel.VALUES] > 0]  # empty chunks may have any position
    return bool((begin[order[1:]] < (begin + stored)[order[:-1]]).any())


def raw_footer(file: FileRef) -> tuple[bytes, int]:
    """(the footer with its length and magic, the size of the file)."""
    with open_file(file) as handle:
        size = handle.size()
        return footer_bytes(handle, size, file), size


def column_ranges(row_group: pq.RowGroupMetaData, leaves: Iterable[int]) -> list[tuple[int, int]]:
    """First byte and end of the column chunks of `leaves`, dictionaries included, in the order of `leaves`."""
    chunks = [row_group.column(leaf) for leaf in leaves]
    # Some writers set 0 as the position of a dictionary that is not there: `filter` drops it, and None.
    begins = [min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset))) for chunk in chunks]
    return [(begin, begin + chunk.total_compressed_size) for begin, chunk in zip(begins, chunks, strict=True)]


def open_file(file: FileRef) -> Any:
    """A random access file of pyarrow, or a `RemoteFile`."""
    try:
        handle = file.filesystem.open_input_file(file.path)
        return handle if file.local else RemoteFile(file, handle)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file.path}: no such file") from error
    except PermissionError as error:
        raise PermissionError(f"{file.path}: no permission to read this file") from error


def digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=16).hexdigest()


def footer_bytes(handle: Any, size: int, file: FileRef) -> bytes:
    """The footer with its length and magic, from the end of the file."""
    if size < 12:  # magic at both ends, and the length
        raise CorruptFileError(f"{file.path}: not a Parquet file: only {size} bytes")
    guess = min(_LOCAL_TAIL_BYTES if file.local else _TAIL_BYTES, size)
    tail = handle.read_at(guess, size - guess)
    if tail[-4:] != MAGIC:
        raise CorruptFileError(f"{file.path}: {_what_instead(handle.read_at(4, 0), tail[-4:], size)}")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length + 4 > size:  # before any allocation of that length; 4: the magic at the beginning
        raise CorruptFileError(
            f"{file.path}: the footer claims {length} bytes in a file of {size}: it was cut or overwritten"
        )
    if length > guess:
        tail = handle.read_at(length - guess, size - length) + tail
    return bytes(tail[-length:])


def _what_instead(head: bytes, end: bytes, size: int) -> str:
    if b"PARE" in (head, end):
        return "an encrypted Parquet file, which is not read: write it again without encryption"
    if head == MAGIC:
        return f"truncated: it begins like Parquet but has no footer at its end ({size} bytes)"
    return f"not a Parquet file: it begins with {head!r}"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
