"""The pages of a column chunk, unpacked. Decompression and checksums run without the GIL."""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import cramjam
import numpy as np
import zstandard
from isal.isal_zlib import crc32

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


class Page(NamedTuple):
    """One page, unpacked.

    Attributes:
        header: int64, see `fsdata.kernels.pages.headers`; its address is that of the unpacked bytes.
        owner: keeps them.
        number: of the page in its chunk.
    """

    header: np.ndarray
    owner: Any
    number: int


def page_headers(chunk: np.ndarray, *, values: int, unpacked: int) -> np.ndarray:
    """int64 [P, headers.COLUMNS], the pages of a column chunk; see `fsdata.kernels.pages.headers`.

    Args:
        chunk: uint8, its bytes.
        values, unpacked: of the chunk, as the footer says.

    Raises:
        Damaged, LeftToArrow.
    """
    table, code, at = headers.read_headers(chunk, values, unpacked)
    if code == pages.DAMAGED:
        raise Damaged(f"page {at}: a header that cannot be, or pages that do not have {values} values")
    if code == pages.UNKNOWN:
        raise LeftToArrow("a page of an unknown kind or size, or bytes after all values")
    return table


def unpacked_pages(
    chunk: np.ndarray, owner: Any, table: np.ndarray, *, codec: str, pool: Pool, needed: np.ndarray | None = None
) -> Iterator[Page]:
    """The pages in order, checked as far as their headers and checksums go.

    Args:
        chunk: uint8, the bytes of the column chunk. owner: keeps them.
        table: see `page_headers`. needed: bool [P]; None: all.

    Raises:
        Damaged.
    """
    for number, (header, line) in enumerate(zip(table, table.tolist(), strict=True)):
        if needed is not None and not needed[number]:
            continue
        begin, stored, size = line[headers.AT], line[headers.STORED], line[headers.UNPACKED]
        data = chunk[begin : begin + stored]
        if line[headers.CHECKSUM] >= 0 and crc32(data.data) != line[headers.CHECKSUM]:
            raise Damaged(f"page {number}: its bytes do not have the checksum that its header says")
        levels = 0
        if line[headers.KIND] == headers.DATA_V2:
            levels = line[headers.REPETITION] + line[headers.DEFINITION]
        if codec == "UNCOMPRESSED" or not line[headers.COMPRESSED] or size == levels:
            if stored != size and size != levels:
                raise Damaged(f"page {number}: {stored} bytes where {size} are said")
            header[headers.ADDRESS] = data.ctypes.data
            yield Page(header, owner, number)
            continue
        lease = pool.take(size)
        try:
            _unpack(data, levels, lease.array(size, "|u1"), codec)
        except (OSError, ValueError, cramjam.DecompressionError, zstandard.ZstdError) as error:
            raise Damaged(f"page {number}: {codec}: {error}") from error
        header[headers.ADDRESS] = lease.address
        yield Page(header, lease, number)


def _unpack(data: np.ndarray, levels: int, raw: np.ndarray, codec: str) -> None:
    """Fill `raw`; the first bytes, `levels` many, are not compressed."""
    raw[:levels] = data[:levels]
    found = _INTO[codec](data[levels:].data, raw[levels:].data)
    if found != len(raw) - levels:
        raise ValueError(f"{found} bytes where {len(raw) - levels} are said")
