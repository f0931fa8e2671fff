"""How long the lists of a column chunk are, from the levels of its pages alone: no value is decoded.

A page is read whole if its bytes are compressed together with its levels, or if it has a checksum; other pages only as
far as their levels go. It is unpacked as far, where its codec can be: the libraries of Snappy and LZ4 unpack all or
nothing. So damaged values in a page without a checksum may not be noticed.
"""

import functools
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from isal.isal_zlib import crc32

from freescale_tools.scan import level_kernels
from fsdata.catalog.arrow_types import plain
from fsdata.decode.files.byte_ranges import column_ranges
from fsdata.decode.pages.chunk import Damaged, LeftToArrow
from fsdata.decode.pages.forms import why_left
from fsdata.kernels import pages
from fsdata.kernels.pages import headers
from fsdata.kernels.thrift import DEPTH

_SIZED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
_LISTS = (*_SIZED, pa.types.is_fixed_size_list)
_FIRST_BYTES = 1 << 12  # of a page that are unpacked first; most pages with long lists need no more
_ZSTD_BYTES = (1 << 17) - 1  # zstd unpacks a block of so many and one at once
_MOST_HEADER_BYTES = 16 << 20  # as in pyarrow
_IN_PARTS = frozenset({"ZSTD", "GZIP"})
_own = threading.local()
_WITH_HEADER = 47  # zlib looks for the header of gzip or its own

Read = Callable[[int, np.ndarray], int]
"""(first byte, memory) -> how many bytes of the file are now there; fewer than there is room for if it ends."""


@dataclass(frozen=True, slots=True)
class ListLevels:
    """Of definition: `top` of an element that is not null, `empty` of a list without elements; lower ones are null."""

    top: int
    empty: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of the lists of some rows.

    Attributes:
        of_row: int64 [N]; 0 for null rows.
        null_rows, null_elements: how many. A null element counts in the length.
    """

    of_row: np.ndarray
    null_rows: int
    null_elements: int


def read_lengths(row_group: pq.RowGroupMetaData, leaf: int, levels: ListLevels, read: Read, *, piece: int) -> Lengths:
    """The lengths of all rows of a row group. Blocks for reading.

    Args:
        leaf: the column, a list of `levels`. piece: bytes that are worth one `read`.

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
        ((begin, end),) = column_ranges(row_group, [leaf])
        fronts = _Fronts(chunk.compression)
        for number, header, data in _data_pages(chunk, _Window(read, begin, end, piece)):
            try:
                raw, bounds = fronts.levels(header, data)
            except ValueError as error:
                raise Damaged(f"page {number}: {error}") from error
            count = int(header[headers.VALUES])
            if level_kernels.add_lengths(raw, bounds, count, levels.top, levels.empty, found, known) != pages.OK:
                raise Damaged(f"page {number}: levels that cannot be")
    rows, null_rows, null_elements = known.tolist()
    if rows != len(found):
        raise Damaged(f"{rows} rows where the footer says {len(found)}")
    return Lengths(of_row=found, null_rows=null_rows, null_elements=null_elements)


class _Window:
    """Bytes of a column chunk, of which some are in memory."""

    def __init__(self, read: Read, begin: int, end: int, piece: int) -> None:
        self.begin, self.end = begin, end
        self._read = read
        self._piece = piece
        self._memory = np.empty(piece, np.uint8)
        self._first, self._held = begin, 0

    def bytes(self, at: int, count: int) -> np.ndarray:
        """uint8 [count], from byte `at` of the file on; fewer at the end of the chunk. Valid until the next call."""
        count = min(count, self.end - at)
        kept = self._first + self._held - at
        if at < self._first or kept < count:
            kept = kept if at >= self._first and kept > 0 else 0
            size = min(max(count, self._piece), self.end - at)
            old, begin = self._memory, at - self._first
            if size > len(old):
                self._memory = np.empty(size, np.uint8)
            self._memory[:kept] = old[begin : begin + kept]
            self._held = kept + self._read(at + kept, self._memory[kept:size])
            self._first = at
            if self._held < count:
                raise Damaged(f"{self._held} bytes where {count} should be: the file ends too early")
        found = self._memory[at - self._first :][:count]
        found.flags.writeable = False  # as bytes are: kernels that read them are compiled once
        return found

    def checksum(self, at: int, count: int) -> int:
        """CRC-32 of bytes that the chunk has, read a piece at a time if they are not in memory."""
        found, end = 0, at + count
        step = count if at + count <= self._first + self._held else self._piece
        for begin in range(at, end, max(step, 1)):
            found = crc32(self.bytes(begin, min(step, end - begin)).data, found)
        return found


def _data_pages(
    chunk: pq.ColumnChunkMetaData, window: _Window
) -> Iterator[tuple[int, np.ndarray, Callable[[int], np.ndarray]]]:
    """(number of the page, its header, its first n stored bytes) of the pages that have levels."""
    page, inside = np.zeros(headers.COLUMNS, np.int64), np.empty((DEPTH, 2), np.int64)
    at, number, values, room = window.begin, 0, chunk.num_values, chunk.total_uncompressed_size
    while at < window.end and values:
        begin = _read_header(window, at, page, inside)
        code = headers.check_header(page, begin, window.end, number == 0, values, room)
        if code == pages.DAMAGED:
            raise Damaged(f"page {number}: a header that cannot be")
        if code == pages.UNKNOWN:
            raise LeftToArrow("a page of an unknown kind or size")
        stored, checksum = int(page[headers.STORED]), int(page[headers.CHECKSUM])
        if page[headers.KIND] == headers.DATA and chunk.compression != "UNCOMPRESSED":
            window.bytes(begin, stored)  # levels need them, too: they are read once
        if checksum >= 0 and window.checksum(begin, stored) != checksum:
            raise Damaged(f"page {number}: its bytes do not have the checksum that its header says")
        if page[headers.KIND] != headers.DICTIONARY and page[headers.VALUES]:
            yield number, page, functools.partial(window.bytes, begin)
            values -= int(page[headers.VALUES])
        room -= int(page[headers.UNPACKED])
        at, number = begin + stored, number + 1
    if values:
        raise Damaged(f"page {number}: it is missing, {values} values are")
    if at != window.end:
        raise LeftToArrow("bytes after all values")


def _read_header(window: _Window, at: int, page: np.ndarray, inside: np.ndarray) -> int:
    """The header at byte `at` of the file -> `page`. Where it ends; beyond the chunk if it does not end there."""
    size = 1 << 10
    while True:
        raw = window.bytes(at, size)
        end = headers.read_header(raw, np.int64(0), page, inside)
        if end <= len(raw) or len(raw) < size or size > _MOST_HEADER_BYTES:
            return at + end if end <= len(raw) else window.end + 1
        size *= 8


class _Fronts:
    """Finds the levels of one page after another; remembers how many bytes of a page were enough."""

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._enough = _ZSTD_BYTES if codec == "ZSTD" else _FIRST_BYTES
        self._memory = np.empty(0, np.uint8)

    def levels(self, header: np.ndarray, data: Callable[[int], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(uint8, the levels of the page; int64 [4], where those of repetition and of definition begin and end in it).

        data: the first n stored bytes.

        Raises:
            LeftToArrow; ValueError: the page is damaged.
        """
        stored, size = int(header[headers.STORED]), int(header[headers.UNPACKED])
        plain = self._codec == "UNCOMPRESSED" or not header[headers.COMPRESSED]
        if header[headers.KIND] == headers.DATA_V2:
            middle = int(header[headers.REPETITION])
            end = middle + int(header[headers.DEFINITION])
            if plain and stored != size != end:
                raise ValueError(f"{stored} bytes where {size} are said")
            return data(end), np.array([0, middle, middle, end])
        if header[headers.LEVELS] != headers.RLE:
            raise LeftToArrow(f"levels of encoding {header[headers.LEVELS]}")
        if plain and stored != size:
            raise ValueError(f"{stored} bytes where {size} are said")
        wanted = self._enough
        while True:
            count = min(wanted, size)
            raw = data(count) if plain else self._unpacked(data(stored), size, count)
            bounds, wanted = _bounds(raw)
            if wanted > size:
                raise ValueError("levels beyond its end")
            if wanted <= len(raw):
                self._enough = max(self._enough, wanted)
                return raw, bounds

    def _unpacked(self, data: np.ndarray, size: int, count: int) -> np.ndarray:
        count = count if self._codec in _IN_PARTS else size
        if count > len(self._memory):
            self._memory = np.empty(count, np.uint8)
        unpack_front(data, self._codec, self._memory[:count])
        found = self._memory[:count]
        found.flags.writeable = False  # see `_Window.bytes`
        return found


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


def unpack_front(data: np.ndarray, codec: str, target: np.ndarray) -> None:
    """Fill `target`, uint8 [at least 1], with the first bytes that `data` becomes; with all if not in `_IN_PARTS`.

    Raises:
        ValueError: `data` is not what the codec makes, as far as it was looked at.
    """
    try:
        found = _UNPACK[codec](data.data, target.data)
    except (OSError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise ValueError(f"{codec}: {error}") from error
    if found != len(target):
        raise ValueError(f"{codec}: {found} bytes where {len(target)} or more are said")


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
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner, lists, top = [kind.key_field, kind.item_field], (*lists, None), top + 1
    elif any(test(kind) for test in _LISTS):
        sized = any(test(kind) for test in _SIZED)
        inner, lists, top = [kind.value_field], (*lists, top if sized else None), top + 1
    else:
        yield top, lists
        return
    for child in inner:
        yield from _leaves(child, top, lists)
