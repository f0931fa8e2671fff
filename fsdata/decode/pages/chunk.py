"""The pages of a column chunk, unpacked. Decompression and checksums run without the GIL."""

import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np
import zstandard

from fsdata.decode.reused_buffers import Pool
from fsdata.kernels import pages
from fsdata.kernels.pages import headers

_own = threading.local()


def _unzstd(data: memoryview, target: memoryview) -> int:
    """How many bytes came out, or one more than there is room for. zstandard's is a quarter faster than cramjam's."""
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdDecompressor()
    with _own.zstd.stream_reader(data) as reader:
        count = reader.readinto(target)
        return count + len(reader.read(1))  # the end of the frame has a checksum


_INTO = {
    "ZSTD": _unzstd,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
    "GZIP": cramjam.gzip.decompress_into,
    "LZ4": cramjam.lz4.decompress_block_into,
}


class LeftToArrow(Exception):
    """A column chunk in a form that only pyarrow decodes; says which."""


class Damaged(Exception):
    """What is wrong with a column chunk."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page, unpacked.

    Attributes:
        header: int64, see `fsdata.kernels.pages.headers`.
        raw: uint8, its bytes; address: of the first. owner: keeps them.
        number: of the page in its chunk.
    """

    header: np.ndarray
    raw: np.ndarray
    address: int
    owner: Any
    number: int


def unpacked_pages(
    chunk: np.ndarray, owner: Any, *, codec: str, values: int, unpacked: int, pool: Pool
) -> Iterator[Page]:
    """The pages in order, checked as far as their headers and checksums go.

    Args:
        chunk: uint8, the bytes of the column chunk. owner: keeps them.
        values, unpacked: of the chunk, as the footer says.

    Raises:
        Damaged, LeftToArrow.
    """
    table, code, at = headers.read_headers(chunk, values, unpacked)
    if code == pages.DAMAGED:
        raise Damaged(f"page {at}: a header that cannot be, or pages that do not have {values} values")
    if code == pages.UNKNOWN:
        raise LeftToArrow("a page of an unknown kind or size, or bytes after all values")
    for number, header in enumerate(table):
        begin, stored, size = int(header[headers.AT]), int(header[headers.STORED]), int(header[headers.UNPACKED])
        data = chunk[begin : begin + stored]
        if header[headers.CHECKSUM] >= 0 and zlib.crc32(data.data) != header[headers.CHECKSUM]:
            raise Damaged(f"page {number}: its bytes do not have the checksum that its header says")
        levels = 0
        if header[headers.KIND] == headers.DATA_V2:
            levels = int(header[headers.REPETITION] + header[headers.DEFINITION])
        if codec == "UNCOMPRESSED" or not header[headers.COMPRESSED] or size == levels:
            if stored != size and size != levels:
                raise Damaged(f"page {number}: {stored} bytes where {size} are said")
            yield Page(header, data[:size], chunk.ctypes.data + begin, owner, number)
            continue
        try:
            raw, kept = _unpacked(data, levels, size, codec, pool)
        except (OSError, ValueError, cramjam.DecompressionError, zstandard.ZstdError) as error:
            raise Damaged(f"page {number}: {codec}: {error}") from error
        yield Page(header, raw, raw.ctypes.data, kept, number)


def _unpacked(data: np.ndarray, levels: int, size: int, codec: str, pool: Pool) -> tuple[np.ndarray, Any]:
    """`size` bytes, the first `levels` of which are not compressed; and what keeps them."""
    lease = pool.take(size)
    raw = np.asarray(lease)[:size]
    raw[:levels] = data[:levels]
    found = _INTO[codec](data[levels:].data, raw[levels:].data)
    if found != size - levels:
        raise ValueError(f"{found} bytes where {size - levels} are said")
    return raw, lease


ReadBytes = Callable[[int, int], tuple[np.ndarray, Any]]
"""(first byte, first byte after it) -> bytes of the file, uint8, and what keeps them."""
