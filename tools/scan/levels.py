"""The lengths of the lists of a column chunk, from the levels of its pages: no value is decoded.

A page is read completely if its values and levels are compressed together, or if it has a checksum; other pages only up
to the end of their levels. Decompression also stops there if the codec allows it: the libraries of Snappy and LZ4 only
decompress whole pages. So damaged values in a page without a checksum may not be detected.
"""

import functools
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from isal.isal_zlib import crc32

from freescale_tools.scan import level_kernels
from fsdata.catalog.binding.arrow_types import plain
from fsdata.catalog.footers import column_ranges
from fsdata.kernels.thrift import DEPTH
from fsdata.pages import kernels as pages
from fsdata.pages.chunk import Damaged, LeftToArrow
from fsdata.pages.forms import why_left
from fsdata.pages.kernels import headers
from fsdata.remote.byte_ranges import ByteRange

_SIZED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
_HEADER_BYTES = 1 << 10  # bytes of a first read; most headers are shorter
_MOST_HEADER_BYTES = 16 << 20  # as in pyarrow
# Bytes of a page that are read or decompressed first: enough for the levels of most pages with long lists. zstd
# decompresses blocks of 128 KiB.
_STORED_BYTES, _UNPACKED_BYTES = 1 << 12, (1 << 17) - 1
_IN_PARTS = frozenset({"ZSTD", "GZIP"})  # codecs that can stop before the end of a page
_own = threading.local()  # a zstd decompressor is not thread-safe
_WITH_HEADER = 47  # zlib detects its own header or that of gzip

Read = Callable[[int, int], bytes | bytearray | memoryview]
"""(count, first byte) -> `count` bytes of the file; fewer at its end."""


class ListLevels(NamedTuple):
    """Levels of definition: `top` of an element that is not null, `empty` of a list without elements. Rows with lower
    levels are null."""

    top: int
    empty: int


class Lengths(NamedTuple):
    """Lengths of the lists of some rows.

    Attributes:
        of_row: int64 [N]; 0 for null rows.
        null_rows, null_elements: their numbers. Null elements are included in the lengths.
    """

    of_row: np.ndarray
    null_rows: int
    null_elements: int


def read_lengths(row_group: pq.RowGroupMetaData, leaf: int, levels: ListLevels, read: Read) -> Lengths:
    """The lengths of all rows of a row group. Blocks for reading.

    leaf: the index of the column, a list with these `levels`.

    Raises:
        Damaged: with the number of the page.
        LeftToArrow: a form that only pyarrow reads.
    """
    chunk = row_group.column(leaf)
    reason = why_left(chunk)
    if reason:
        raise LeftToArrow(reason)
    lengths = np.zeros(row_group.num_rows, np.int64)
    counts = np.zeros(3, np.int64)
    if len(lengths):
        for number, header, data in _data_pages(chunk, column_ranges(row_group, [leaf])[0], read):
            try:
                raw, bounds = _levels(header, chunk.compression, data)
            except ValueError as error:
                raise Damaged(f"page {number}: {error}") from error
            count = int(header[headers.VALUES])
            if level_kernels.add_lengths(raw, bounds, count, levels.top, levels.empty, lengths, counts) != pages.OK:
                raise Damaged(f"page {number}: invalid levels")
    rows, null_rows, null_elements = counts.tolist()
    if rows != len(lengths):
        raise Damaged(f"{rows} rows instead of the {len(lengths)} of the footer")
    return Lengths(lengths, null_rows, null_elements)


Stored = Callable[[int], np.ndarray]
"""n -> uint8 [n], the first stored bytes of a page."""


def _data_pages(
    chunk: pq.ColumnChunkMetaData, where: ByteRange, read: Read
) -> Iterator[tuple[int, np.ndarray, Stored]]:
    """(number of the page, its header, its stored bytes) of the data pages with values."""
    page, inside = np.zeros(headers.COLUMNS, np.int64), np.empty((DEPTH, 2), np.int64)
    (at, end), number, values, room = where, 0, chunk.num_values, chunk.total_uncompressed_size
    while at < end and values:
        size, length = 0, 1
        while length > size and size < min(end - at, _MOST_HEADER_BYTES):  # until the whole header is read
            size = min(max(8 * size, _HEADER_BYTES), end - at)
            length = headers.read_header(_bytes(read, at, size), np.int64(0), page, inside)
        begin = at + length if length <= size else end + 1
        code = headers.check_header(page, begin, end, number == 0, values, room)
        if code == pages.DAMAGED:
            raise Damaged(f"page {number}: invalid header")
        if code == pages.UNKNOWN:
            raise LeftToArrow("a page of an unknown kind or size")
        stored, checksum = int(page[headers.STORED]), int(page[headers.CHECKSUM])
        data: Stored = functools.partial(_bytes, read, begin)
        if checksum >= 0:
            whole = data(stored)
            if crc32(whole.data) != checksum:
                raise Damaged(f"page {number}: its bytes do not match the checksum in its header")
            data = functools.partial(_front, whole)
        if page[headers.KIND] != headers.DICTIONARY and page[headers.VALUES]:
            yield number, page, data
            values -= int(page[headers.VALUES])
        room -= int(page[headers.UNPACKED])
        at, number = begin + stored, number + 1
    if values:
        raise Damaged(f"page {number}: missing, with {values} values")
    if at != end:
        raise LeftToArrow("bytes after all values")


def _bytes(read: Read, at: int, count: int) -> np.ndarray:
    """uint8 [count]."""
    raw = np.frombuffer(read(count, at), np.uint8)
    if len(raw) < count:
        raise Damaged(f"{len(raw)} bytes instead of {count}: the file ends too early")
    raw.flags.writeable = False  # as for bytes: kernels are compiled for read-only arrays only
    return raw


def _front(whole: np.ndarray, count: int) -> np.ndarray:
    return whole[:count]


def _levels(header: np.ndarray, codec: str, data: Stored) -> tuple[np.ndarray, np.ndarray]:
    """(uint8, a page up to the end of its levels; int64 [4], begin and end of its levels of repetition and definition).

    Raises:
        LeftToArrow: a form that only pyarrow reads.
        ValueError: the page is damaged.
    """
    stored, size = int(header[headers.STORED]), int(header[headers.UNPACKED])
    uncompressed = codec == "UNCOMPRESSED" or not header[headers.COMPRESSED]
    if header[headers.KIND] == headers.DATA_V2:
        middle = int(header[headers.REPETITION])
        end = middle + int(header[headers.DEFINITION])
        if uncompressed and stored != size != end:
            raise ValueError(f"{stored} bytes instead of the {size} of its header")
        return data(end), np.array([0, middle, middle, end])  # levels of version 2 are never compressed
    if header[headers.LEVELS] != headers.RLE:
        raise LeftToArrow(f"levels of encoding {header[headers.LEVELS]}")
    if uncompressed and stored != size:
        raise ValueError(f"{stored} bytes instead of the {size} of its header")
    needed = _STORED_BYTES if uncompressed else _UNPACKED_BYTES if codec in _IN_PARTS else size
    # The sizes of the levels are stored in the page itself: try with a first part, then with as much as they need.
    while True:
        count = min(needed, size)
        raw = data(count) if uncompressed else unpacked(data(stored), codec, count)
        bounds, needed = _bounds(raw)
        if needed > size:
            raise ValueError("levels beyond its end")
        if needed <= len(raw):
            return raw, bounds


def _bounds(raw: np.ndarray) -> tuple[np.ndarray, int]:
    """(int64 [4], bounds of the levels of a page of version 1; number of bytes needed to read them: if it exceeds
    `raw`, the bounds are incomplete)."""
    bounds, at = np.zeros(4, np.int64), 0
    for place in (0, 2):
        if at + 4 > len(raw):
            return bounds, at + 4
        size = int.from_bytes(raw[at : at + 4].tobytes(), "little")
        bounds[place : place + 2] = at + 4, at + 4 + size
        at += 4 + size
    return bounds, at


def _zstd(data: memoryview, target: memoryview) -> int:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdDecompressor()
    with _own.zstd.stream_reader(data) as reader:
        return reader.readinto(target)


def _gzip(data: memoryview, target: memoryview) -> int:
    done, rest = 0, data.tobytes()
    while rest and done < len(target):  # a page may consist of several gzip members
        member = zlib.decompressobj(_WITH_HEADER)
        raw = member.decompress(rest, len(target) - done)
        target[done : done + len(raw)] = raw
        done, rest = done + len(raw), member.unused_data
    return done


_UNPACK: dict[str, Callable[[memoryview, memoryview], int]] = {
    "ZSTD": _zstd,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
    "GZIP": _gzip,
    "LZ4": cramjam.lz4.decompress_block_into,
}


def unpacked(data: np.ndarray, codec: str, count: int) -> np.ndarray:
    """uint8 [count], the first bytes of the decompressed `data`; all of them if the codec is not in `_IN_PARTS`.

    Raises:
        ValueError: `data` is damaged in the part that was decompressed.
    """
    target = np.empty(count, np.uint8)
    try:
        written = _UNPACK[codec](data.data, target.data)
    except (OSError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise ValueError(f"{codec}: {error}") from error
    if written != count:
        raise ValueError(f"{codec}: {written} bytes instead of at least {count}")
    target.flags.writeable = False
    return target


def list_levels(schema: pq.ParquetSchema, arrow: pa.Schema, leaf: int) -> ListLevels | None:
    """The levels of a leaf column inside one list; None if it is in no list or in several, or in a list of fixed size
    or a map, in which pyarrow checks more than the lengths.

    Args:
        schema, arrow: of one file.
    """
    leaves = [level for field in arrow for level in _leaves(field, 0, ())]
    column = schema.column(leaf)
    if len(leaves) != len(schema) or column.max_definition_level > 255:
        return None
    top, lists = leaves[leaf]
    if (top, len(lists)) != (column.max_definition_level, column.max_repetition_level) or len(lists) != 1:
        return None
    return None if lists[0] is None else ListLevels(top, lists[0])


def _leaves(field: pa.Field, top: int, lists: tuple[int | None, ...]) -> Iterator[tuple[int, tuple[int | None, ...]]]:
    """(level of definition of a value; for every list around it the level of an empty list, None for maps and lists of
    fixed size) of every leaf. top, lists: those of the parent of the field.
    """
    kind = plain(field.type)
    top += field.nullable
    sized = any(test(kind) for test in _SIZED)
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner, lists, top = [kind.key_field, kind.item_field], (*lists, None), top + 1
    elif sized or pa.types.is_fixed_size_list(kind):
        inner, lists, top = [kind.value_field], (*lists, top if sized else None), top + 1
    else:
        yield top, lists
        return
    for child in inner:
        yield from _leaves(child, top, lists)
