"""Reading the footers of many files at once."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.errors import CorruptFileError
from fsdata.sources.discover import FileRef
from fsdata.sources.retry import Retry

MAGIC = b"PAR1"
_TAIL_BYTES = 65_536  # read at once from remote files: one request for most footers
_LOCAL_TAIL_BYTES = 8  # local reads are cheap, so read exactly what is there


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file said about itself. `digest` is a hash of the raw footer: it is the file's identity."""

    file: FileRef
    size: int
    mtime_ns: int
    digest: str
    metadata: pq.FileMetaData = field(repr=False)
    schema: pa.Schema = field(repr=False)

    @property
    def row_groups(self) -> list[int]:
        """Rows of every row group."""
        return [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file, or one row group of it, that was left out under `on_error="skip"`.

    `row_group` is None and `rows` 0 where the footer was unreadable: how many rows the file had is not known.
    """

    file: str
    row_group: int | None
    rows: int
    reason: str


def read_footers(files: Sequence[FileRef], *, threads: int, retry: Retry) -> list[Footer | CorruptFileError]:
    """One entry per file, in order: its footer, or why it has none."""

    def one(file: FileRef) -> Footer | CorruptFileError:
        try:
            return retry.call(lambda: read_footer(file), file)
        except CorruptFileError as error:
            return error

    if threads <= 1 or len(files) == 1:
        return [one(file) for file in files]
    with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="fsdata-footer") as pool:
        return list(pool.map(one, files))


def read_footer(file: FileRef) -> Footer:
    """Read and parse one footer.

    Raises:
        FileNotFoundError, PermissionError: naming the file.
        CorruptFileError: not Parquet, truncated, or a footer that cannot be parsed.
    """
    with open_file(file) as handle:
        size = handle.size()
        raw = footer_bytes(handle, size, file)
    sink = pa.BufferReader(MAGIC + raw)
    try:
        metadata = pq.read_metadata(sink)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"{file.path}: the footer cannot be parsed: {_first_line(error)}") from error
    return Footer(file, size, mtime_ns(file), digest(raw), metadata, schema)


def open_file(file: FileRef) -> Any:
    """A pyarrow random access file."""
    try:
        return file.filesystem.open_input_file(file.path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file.path}: no such file") from error
    except PermissionError as error:
        raise PermissionError(f"{file.path}: no permission to read this file") from error


def mtime_ns(file: FileRef) -> int:
    """Modification time of a local file, 0 for others: only a hint to look at the footer again."""
    return os.stat(file.path).st_mtime_ns if file.local else 0


def digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=16).hexdigest()


def footer_bytes(handle: Any, size: int, file: FileRef) -> bytes:
    """The footer with its length and magic, as it stands at the end of the file."""
    if size < 12:
        raise CorruptFileError(f"{file.path}: not a Parquet file: only {size} bytes")
    guess = min(_LOCAL_TAIL_BYTES if file.local else _TAIL_BYTES, size)
    tail = handle.read_at(guess, size - guess)
    if tail[-4:] != MAGIC:
        raise CorruptFileError(f"{file.path}: {_what_instead(handle.read_at(4, 0), tail[-4:], size)}")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length + 4 > size:
        raise CorruptFileError(
            f"{file.path}: the footer claims {length} bytes in a file of {size}: it was cut or overwritten"
        )
    if length > guess:
        tail = handle.read_at(length - guess, size - length) + tail
    return tail[-length:]


def _what_instead(head: bytes, end: bytes, size: int) -> str:
    if b"PARE" in (head, end):
        return "an encrypted Parquet file; encryption is not supported"
    if head == MAGIC:
        return f"truncated: it begins like Parquet but has no footer at its end ({size} bytes)"
    return f"not a Parquet file: it begins with {head!r}"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
