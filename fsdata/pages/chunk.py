"""A column chunk: its pages are unpacked, and say how long the lists of its rows are and where their values lie.

Lengths come first; values stay in the pages until their place is known. Decompression and checksums run without the
GIL.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import cramjam
import numpy as np
import zstandard
from isal.isal_zlib import crc32

from fsdata.decode.block import Column
from fsdata.decode.reused_buffers import Pool
from fsdata.kernels import runs
from fsdata.pages import kernels as pages
from fsdata.pages.forms import Form
from fsdata.pages.kernels import headers, indices, levels, rows
from fsdata.sources.source import Policy

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
        header: int64, see `fsdata.pages.kernels.headers`; its address is that of the unpacked bytes.
        owner: keeps them.
        number: of the page in its chunk.
    """

    header: np.ndarray
    owner: Any
    number: int


def page_headers(chunk: np.ndarray, *, values: int, unpacked: int) -> np.ndarray:
    """int64 [P, headers.COLUMNS], the pages of a column chunk; see `fsdata.pages.kernels.headers`.

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


_SHORT = 32  # lists with fewer values on average are decoded at once: to find a run costs as much as some values
_CACHED = 1 << 18  # bytes of pages that are read while the processor still has them

_FAULTS = {
    rows.LEVELS_BEYOND: "levels beyond its end",
    rows.LEVELS_WRONG: "levels that cannot be",
    rows.ROWS_WRONG: "other rows than its header or the offset index says",
    rows.VALUES_WRONG: "values that end too early, or contradict themselves",
    rows.WIDTH_WRONG: "positions of more than 32 bits",
    rows.POSITIONS_WRONG: "positions that end too early, or are outside the dictionary",
}
_LEFT = {
    rows.LEVELS_OTHER: "levels of another encoding than RLE",
    rows.NO_DICTIONARY: "positions without a dictionary",
    rows.GROUP_CUT: "positions whose last group is cut",
    rows.MORE_OR_FEWER: "deltas or booleans that are more or fewer than the page says",
    rows.TOO_LARGE: "integers that are too large for their type",
}


def read_column(
    found: Iterable[Page],
    form: Form,
    count: int,
    stop: int,
    pool: Pool,
    some: int | None = None,
    *,
    policy: Policy = "error",
    default: float = 0,
) -> Column:
    """Levels and places of the values of rows. Blocks for unpacking; values are checked, but mostly not decoded.

    Elements that are null or not finite have the value `default`. Under the policy `drop` their lists are null, too.

    Args:
        found: the pages of the chunk. count: rows of the row group. stop: rows from there on are not needed, and only
            read as far as they stand in a page with one that is.
        some: rows of the pages in `found`, if others of the chunk are missing; headers say which. Other rows are empty.

    Raises:
        Damaged; LeftToArrow: unknown encodings, and elements that the policy forbids, which pyarrow's path names.
    """
    reading = _Reading(form, count, pool, policy, default)
    for page in found:
        reading.add(page, at_once=stop < count)
        if reading.rows > stop:
            return reading.finish()
    reading.read()
    if some is None and reading.rows != count:
        raise Damaged(f"{reading.rows} rows where the footer says {count}")
    return reading.finish(some)


class _Reading:
    """Adds one page after another; pages are read a few at a time."""

    def __init__(self, form: Form, count: int, pool: Pool, policy: Policy, default: float) -> None:
        self._form = form
        self._pool = pool
        self._policy, self._default = policy, default
        self._length = np.zeros(count, np.int64)
        self._absent = np.empty(8, np.int64)
        self._state = np.zeros(rows.STATE, np.int64)
        self._state[rows.SIZE] = -1
        self._runs = np.empty((4, runs.COLUMNS), np.int64)
        self._waiting: list[Page] = []
        self._bytes = 0  # of the pages that wait
        self._owners: list[Any] = []
        self._kept = 0  # bytes

    @property
    def rows(self) -> int:
        """How many have begun, in the pages that were read."""
        return int(self._state[levels.ROWS])

    def add(self, page: Page, at_once: bool) -> None:
        self._waiting.append(page)
        self._bytes += int(page.header[headers.UNPACKED])
        if at_once or self._bytes > _CACHED:
            self.read()

    def read(self) -> None:
        """Read the pages that wait."""
        waiting, form, state = self._waiting, self._form, self._state
        if not waiting:
            return
        pages = np.array([page.header for page in waiting])
        tails = np.empty((len(waiting), indices.TAIL + 8), np.uint8)
        made = np.empty(rows.room_for(pages, form.numbers), np.uint8)
        state[rows.MADE] = state[rows.PAGE] = 0
        while True:
            self._absent, self._runs = rows.read_pages(
                pages, form.numbers, state, self._length, self._absent, self._runs, tails, made
            )
            if state[rows.FAULT] != rows.RARE:
                break
            rows.decode_page(pages[state[rows.PAGE]], form.numbers, state, made)
            if state[rows.FAULT]:
                break
        if state[rows.FAULT]:
            raise _fault(int(state[rows.FAULT]), waiting[int(state[rows.PAGE])], form)
        if self._policy == "error" and state[levels.ABSENT]:
            raise LeftToArrow("elements of lists that are null")
        if self._policy == "error" and state[rows.NOT_FINITE]:
            raise LeftToArrow("numbers that are not finite")
        self._kept += tails.nbytes + made.nbytes + self._bytes
        self._owners += [
            tails,
            made,
            *(page.owner for page in waiting if page.header[headers.KIND] != headers.DICTIONARY),
        ]
        self._waiting, self._bytes = [], 0

    def finish(self, some: int | None = None) -> Column:
        values, form, state = int(self._state[levels.VALUES]), self._form, self._state
        count = self.rows if some is None else some
        table = self._runs[: int(state[rows.RUNS]) + 1]
        table[-1, runs.FIRST] = values
        dictionary = int(state[rows.DICTIONARY])
        column = np.array([table.ctypes.data, len(table) - 1, dictionary, form.stored])
        dtype = np.dtype(form.dtype)
        first, absent = np.empty(len(self._length), np.int64), self._absent[: int(state[levels.ABSENT])]
        as_stored = not len(absent) and not state[rows.NOT_FINITE]
        if as_stored and values >= _SHORT * count:
            rows.finish_rows(column, len(first), self._length, first, dtype.itemsize, 0, absent)
            return Column(
                table,
                first,
                self._length,
                dictionary=dictionary,
                stored=form.stored,
                owners=tuple(self._owners),
                bytes=self._kept,
            )
        elements = values + len(absent)
        lease = self._pool.take(max(elements * dtype.itemsize, 1))
        rows.finish_rows(column, len(first), self._length, first, dtype.itemsize, lease.address, absent)
        found = lease.array(elements, dtype.str)
        if not as_stored:
            self._replace(found, absent, first)
        return Column.of(found, start=first, length=self._length)

    def _replace(self, found: np.ndarray, absent: np.ndarray, first: np.ndarray) -> None:
        """Elements that are null, those at `absent`, or not finite become the default, by the policy."""
        if self._state[rows.NOT_FINITE]:
            found[absent] = np.nan
            absent = np.flatnonzero(~np.isfinite(found))
        found[absent] = self._default
        if self._policy == "drop":  # the row goes, as that of a null list does
            self._length[np.searchsorted(first, absent, side="right") - 1] = levels.NULL


def _fault(fault: int, page: Page, form: Form) -> Damaged | LeftToArrow:
    if fault in _FAULTS:
        return Damaged(f"page {page.number}: {_FAULTS[fault]}")
    if fault in _LEFT:
        return LeftToArrow(_LEFT[fault])
    return LeftToArrow(f"encoding {page.header[headers.ENCODING]} of {form.physical}")
