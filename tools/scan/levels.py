"""How long the lists of a column chunk are, from the levels of its pages alone: no value is decoded.

A page is read whole if its bytes are compressed together with its levels, or if it has a checksum; other pages only as
far as their levels go. It is unpacked as far, where its codec can be: the libraries of Snappy and LZ4 unpack all or
nothing. So damaged values in a page without a checksum may not be noticed.
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
_HEADER_BYTES = 1 << 10  # that are read first; most headers need fewer
_MOST_HEADER_BYTES = 16 << 20  # as in pyarrow
# Of a page that are read or unpacked first; most pages with long lists need no more. zstd unpacks blocks of 128 KiB.
_STORED_BYTES, _UNPACKED_BYTES = 1 << 12, (1 << 17) - 1
_IN_PARTS = frozenset({"ZSTD", "GZIP"})
_own = threading.local()
_WITH_HEADER = 47  # zlib looks for the header of gzip or its own

Read = Callable[[int, int], bytes | bytearray | memoryview]
"""(count, first byte) -> these bytes of the file; fewer if it ends before."""


class ListLevels(NamedTuple):
    """Of definition: `top` of an element that is not null, `empty` of a list without elements; lower ones are null."""

    top: int
    empty: int


class Lengths(NamedTuple):
    """Lengths of the lists of some rows.

    Attributes:
        of_row: int64 [N]; 0 for null rows.
        null_rows, null_elements: how many. A null element counts in the length.
    """

    of_row: np.ndarray
    null_rows: int
    null_elements: int


def read_lengths(row_group: pq.RowGroupMetaData, leaf: int, levels: ListLevels, read: Read) -> Lengths:
    """The lengths of all rows of a row group. Blocks for reading.

    leaf: the column, a list of `levels`.

    Raises:
        Damaged: says which page. LeftToArrow: a form that only pyarrow reads.
    """
    chunk = row_group.column(leaf)
    reason = why_left(chunk)
    if reason:
        raise LeftToArrow(reason)
    found = np.zeros(row_group.num_rows, np.int64)
    known = np.zeros(3, np.int64)
    if len(found):
        for number, header, data in _data_pages(chunk, column_ranges(row_group, [leaf])[0], read):
            try:
                raw, bounds = _levels(header, chunk.compression, data)
            except ValueError as error:
                raise Damaged(f"page {number}: {error}") from error
            count = int(header[headers.VALUES])
            if level_kernels.add_lengths(raw, bounds, count, levels.top, levels.empty, found, known) != pages.OK:
                raise Damaged(f"page {number}: levels that cannot be")
    rows, null_rows, null_elements = known.tolist()
    if rows != len(found):
        raise Damaged(f"{rows} rows where the footer says {len(found)}")
    return Lengths(found, null_rows, null_elements)


Stored = Callable[[int], np.ndarray]
"""n -> uint8 [n], the first stored bytes of a page."""


def _data_pages(
    chunk: pq.ColumnChunkMetaData, where: ByteRange, read: Read
) -> Iterator[tuple[int, np.ndarray, Stored]]:
    """(number of the page, its header, its stored bytes) of the pages that have levels."""
    page, inside = np.zeros(headers.COLUMNS, np.int64), np.empty((DEPTH, 2), np.int64)
    (at, end), number, values, room = where, 0, chunk.num_values, chunk.total_uncompressed_size
    while at < end and values:
        size, length = 0, 1
        while length > size and size < min(end - at, _MOST_HEADER_BYTES):  # until all of the header is read
            size = min(max(8 * size, _HEADER_BYTES), end - at)
            length = headers.read_header(_bytes(read, at, size), np.int64(0), page, inside)
        begin = at + length if length <= size else end + 1
        code = headers.check_header(page, begin, end, number == 0, values, room)
        if code == pages.DAMAGED:
            raise Damaged(f"page {number}: a header that cannot be")
        if code == pages.UNKNOWN:
            raise LeftToArrow("a page of an unknown kind or size")
        stored, checksum = int(page[headers.STORED]), int(page[headers.CHECKSUM])
        data: Stored = functools.partial(_bytes, read, begin)
        if checksum >= 0:
            whole = data(stored)
            if crc32(whole.data) != checksum:
                raise Damaged(f"page {number}: its bytes do not have the checksum that its header says")
            data = functools.partial(_front, whole)
        if page[headers.KIND] != headers.DICTIONARY and page[headers.VALUES]:
            yield number, page, data
            values -= int(page[headers.VALUES])
        room -= int(page[headers.UNPACKED])
        at, number = begin + stored, number + 1
    if values:
        raise Damaged(f"page {number}: it is missing, {values} values are")
    if at != end:
        raise LeftToArrow("bytes after all values")


def _bytes(read: Read, at: int, count: int) -> np.ndarray:
    """uint8 [count]."""
    found = np.frombuffer(read(count, at), np.uint8)
    if len(found) < count:
        raise Damaged(f"{len(found)} bytes where {count} should be: the file ends too early")
    found.flags.writeable = False  # as bytes are: kernels that read them are compiled once
    return found


def _front(whole: np.ndarray, count: int) -> np.ndarray:
    return whole[:count]


def _levels(header: np.ndarray, codec: str, data: Stored) -> tuple[np.ndarray, np.ndarray]:
    """(uint8, the levels of a page; int64 [4], where those of repetition and of definition begin and end in it).

    Raises:
        LeftToArrow; ValueError: the page is damaged.
    """
    stored, size = int(header[headers.STORED]), int(header[headers.UNPACKED])
    as_it_is = codec == "UNCOMPRESSED" or not header[headers.COMPRESSED]
    if header[headers.KIND] == headers.DATA_V2:
        middle = int(header[headers.REPETITION])
        end = middle + int(header[headers.DEFINITION])
        if as_it_is and stored != size != end:
            raise ValueError(f"{stored} bytes where {size} are said")
        return data(end), np.array([0, middle, middle, end])
    if header[headers.LEVELS] != headers.RLE:
        raise LeftToArrow(f"levels of encoding {header[headers.LEVELS]}")
    if as_it_is and stored != size:
        raise ValueError(f"{stored} bytes where {size} are said")
    wanted = _STORED_BYTES if as_it_is else _UNPACKED_BYTES if codec in _IN_PARTS else size
    while True:
        count = min(wanted, size)
        raw = data(count) if as_it_is else unpacked(data(stored), codec, count)
        bounds, wanted = _bounds(raw)
        if wanted > size:
            raise ValueError("levels beyond its end")
        if wanted <= len(raw):
            return raw, bounds


def _bounds(raw: np.ndarray) -> tuple[np.ndarray, int]:
    """(where the levels of a page of version 1 begin and end; up to which byte `raw` is needed to know them)."""
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
    while rest and done < len(target):
        member = zlib.decompressobj(_WITH_HEADER)
        found = member.decompress(rest, len(target) - done)
        target[done : done + len(found)] = found
        done, rest = done + len(found), member.unused_data
    return done


_UNPACK: dict[str, Callable[[memoryview, memoryview], int]] = {
    "ZSTD": _zstd,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
    "GZIP": _gzip,
    "LZ4": cramjam.lz4.decompress_block_into,
}


def unpacked(data: np.ndarray, codec: str, count: int) -> np.ndarray:
    """uint8 [count], the first bytes that `data` becomes; all that it becomes if the codec is not in `_IN_PARTS`.

    Raises:
        ValueError: `data` is not what the codec makes, as far as it was looked at.
    """
    target = np.empty(count, np.uint8)
    try:
        found = _UNPACK[codec](data.data, target.data)
    except (OSError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise ValueError(f"{codec}: {error}") from error
    if found != count:
        raise ValueError(f"{codec}: {found} bytes where {count} or more are said")
    target.flags.writeable = False
    return target


def list_levels(schema: pq.ParquetSchema, arrow: pa.Schema, leaf: int) -> ListLevels | None:
    """Of a leaf column inside one list; None if it is in none or in several, or in a list of fixed size or a map, of
    which pyarrow checks more than the lengths.

    Args:
        schema, arrow: of one file.
    """
    leaves = [each for field in arrow for each in _leaves(field, 0, ())]
    column = schema.column(leaf)
    if len(leaves) != len(schema) or column.max_definition_level > 255:
        return None
    top, lists = leaves[leaf]
    if (top, len(lists)) != (column.max_definition_level, column.max_repetition_level) or len(lists) != 1:
        return None
    return None if lists[0] is None else ListLevels(top, lists[0])


def _leaves(field: pa.Field, top: int, lists: tuple[int | None, ...]) -> Iterator[tuple[int, tuple[int | None, ...]]]:
    """(level of definition, that of an empty list for every list around it, None where others count) of every leaf.

    top, lists: of what is around the field.
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
