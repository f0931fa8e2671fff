"""Reads a column chunk: unpacks its pages and finds the lengths of its rows and the addresses of their values.

Values stay in the pages until their position in a batch is known. Decompression and checksums run without the GIL.
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

_own = threading.local()  # a decompressor serves one thread at a time


def _unzstd(data: memoryview, target: memoryview) -> int:
    """The number of decompressed bytes; more than `target` has room for if there are more.

    zstandard is a quarter faster than cramjam.
    """
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdDecompressor()
    with _own.zstd.stream_reader(data) as reader:
        count = reader.readinto(target)
        # One byte more: finds excess data, and reads the end of the frame, which has a checksum.
        return count + len(reader.read(1))


_INTO = {
    "ZSTD": _unzstd,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
    "GZIP": cramjam.gzip.decompress_into,
    "LZ4": cramjam.lz4.decompress_block_into,
}


class LeftToArrow(Exception):
    """The column chunk has to be decoded by pyarrow; the message has the reason."""


class Damaged(Exception):
    """The column chunk is damaged; the message has the page and the fault."""


class Page(NamedTuple):
    """One page, unpacked.

    Attributes:
        header: int64, see `fsdata.pages.kernels.headers`, with the address of the unpacked bytes.
        owner: object that owns these bytes.
        number: of the page in its chunk.
    """

    header: np.ndarray
    owner: Any
    number: int


def page_headers(chunk: np.ndarray, *, values: int, unpacked: int) -> np.ndarray:
    """int64 [P, headers.COLUMNS], the pages of a column chunk; see `fsdata.pages.kernels.headers`.

    Args:
        chunk: uint8, its bytes.
        values, unpacked: of the chunk, from the footer.

    Raises:
        Damaged, LeftToArrow.
    """
    table, code, at = headers.read_headers(chunk, values, unpacked)
    if code == pages.DAMAGED:
        raise Damaged(f"page {at}: an invalid header, or pages that do not have {values} values")
    if code == pages.UNKNOWN:
        raise LeftToArrow("a page of an unknown kind or size, or bytes after all values")
    return table


def unpacked_pages(
    chunk: np.ndarray, owner: Any, table: np.ndarray, *, codec: str, pool: Pool, needed: np.ndarray | None = None
) -> Iterator[Page]:
    """The pages in order, checked as far as their headers and checksums go.

    Args:
        chunk: uint8, the bytes of the column chunk. owner: object that owns them.
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
            raise Damaged(f"page {number}: its bytes do not match the checksum of its header")
        levels = 0  # bytes of levels that are not compressed, in pages of version 2
        if line[headers.KIND] == headers.DATA_V2:
            levels = line[headers.REPETITION] + line[headers.DEFINITION]
        # A page of levels only has nothing to decompress, whatever follows the levels.
        if codec == "UNCOMPRESSED" or not line[headers.COMPRESSED] or size == levels:
            if stored != size and size != levels:
                raise Damaged(f"page {number}: {stored} bytes, but its header states {size}")
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
    """Decompress into `raw`. The first `levels` bytes are not compressed."""
    raw[:levels] = data[:levels]
    size = _INTO[codec](data[levels:].data, raw[levels:].data)
    if size != len(raw) - levels:
        raise ValueError(f"{size} bytes after decompression, but the header states {len(raw) - levels}")


_SHORT = 32  # mean length of lists below which values are decoded at once: finding a run costs as much as some values
_CACHED = 1 << 18  # bytes of pages that are unpacked and then read together, while they are in the CPU's cache

_FAULTS = {
    rows.LEVELS_BEYOND: "levels beyond its end",
    rows.LEVELS_WRONG: "invalid levels",
    rows.ROWS_WRONG: "other rows than its header or the offset index states",
    rows.VALUES_WRONG: "values that end too early, or contradict themselves",
    rows.WIDTH_WRONG: "positions of more than 32 bits",
    rows.POSITIONS_WRONG: "positions that end too early, or are outside the dictionary",
}
_LEFT = {
    rows.LEVELS_OTHER: "levels of another encoding than RLE",
    rows.NO_DICTIONARY: "positions without a dictionary",
    rows.GROUP_CUT: "positions whose last group is cut",
    rows.MORE_OR_FEWER: "more or fewer deltas or booleans than the page states",
    rows.TOO_LARGE: "integers that are too large for their type",
}


def read_column(
    unpacked: Iterable[Page],
    form: Form,
    count: int,
    stop: int,
    pool: Pool,
    some: int | None = None,
    *,
    policy: Policy = "error",
    default: float = 0,
) -> Column:
    """Reads the lengths of rows and the addresses of their values. Blocks for unpacking; checks values, but mostly does
    not decode them.

    Elements that are null or not finite get the value `default`. Under the policy `drop` their lists become null.

    Args:
        unpacked: the pages of the chunk. count: rows of the row group. stop: rows from there on are not needed; they
            are read only in pages that also have earlier rows.
        some: number of rows in `unpacked`, if it lacks pages of the chunk; headers have their row numbers. Other rows
            are empty.

    Raises:
        Damaged; LeftToArrow: unknown encodings, and elements that the policy forbids (pyarrow's path names the row).
    """
    reading = _Reading(form, count, pool, policy, default)
    state = reading.state
    for some_pages in _fitting_cache(unpacked, one_by_one=stop < count):
        table = np.array([page.header for page in some_pages])
        # Runs keep addresses in both arrays, so they are new in each round and belong to the owners.
        tails = np.empty((len(some_pages), indices.TAIL + 8), np.uint8)
        values = np.empty(rows.room_for(table, form.numbers), np.uint8)
        state[rows.MADE] = state[rows.PAGE] = 0
        while True:
            reading.absent, reading.runs = rows.read_pages(
                table, form.numbers, state, reading.length, reading.absent, reading.runs, tails, values
            )
            if state[rows.FAULT] != rows.RARE:
                break
            rows.decode_page(table[state[rows.PAGE]], form.numbers, state, values)  # then it goes on behind this page
            if state[rows.FAULT]:
                break
        if state[rows.FAULT]:
            raise _fault(int(state[rows.FAULT]), some_pages[int(state[rows.PAGE])], form)
        if policy == "error" and state[levels.ABSENT]:
            raise LeftToArrow("elements of lists that are null")
        if policy == "error" and state[rows.NOT_FINITE]:
            raise LeftToArrow("numbers that are not finite")
        reading.keep(some_pages, tails, values)
        if reading.rows > stop:
            return reading.finish()
    if some is None and reading.rows != count:
        raise Damaged(f"{reading.rows} rows, but the footer states {count}")
    return reading.finish(some)


def _fitting_cache(unpacked: Iterable[Page], *, one_by_one: bool) -> Iterator[list[Page]]:
    """The pages, a few at a time: a call of the kernel reads them while the CPU's cache still has them."""
    waiting: list[Page] = []
    size = 0
    for page in unpacked:
        waiting.append(page)
        size += int(page.header[headers.UNPACKED])
        if one_by_one or size > _CACHED:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


class _Reading:
    """What the kernel has found in the pages read so far.

    Attributes:
        length, absent, runs, state: see `fsdata.pages.kernels.rows`.
    """

    def __init__(self, form: Form, count: int, pool: Pool, policy: Policy, default: float) -> None:
        self._form = form
        self._pool = pool
        self._policy, self._default = policy, default
        self.length = np.zeros(count, np.int64)
        self.absent = np.empty(8, np.int64)
        self.state = np.zeros(rows.STATE, np.int64)
        self.state[rows.SIZE] = -1
        self.runs = np.empty((4, runs.COLUMNS), np.int64)
        self._owners: list[Any] = []
        self._kept = 0  # bytes of memory that the column keeps alive

    @property
    def rows(self) -> int:
        """Number of rows that begin in the pages read so far."""
        return int(self.state[levels.ROWS])

    def keep(self, pages: list[Page], tails: np.ndarray, values: np.ndarray) -> None:
        """Keep the memory that runs point to: of the pages, and what the kernel made of them."""
        # `values` also has the converted dictionary, so the page of the dictionary can go.
        self._owners += [tails, values]
        self._owners += [page.owner for page in pages if page.header[headers.KIND] != headers.DICTIONARY]
        self._kept += tails.nbytes + values.nbytes + sum(int(page.header[headers.UNPACKED]) for page in pages)

    def finish(self, some: int | None = None) -> Column:
        values, form, state = int(self.state[levels.VALUES]), self._form, self.state
        count = self.rows if some is None else some
        table = self.runs[: int(state[rows.RUNS]) + 1]
        table[-1, runs.FIRST] = values
        dictionary = int(state[rows.DICTIONARY])
        column = np.array([table.ctypes.data, len(table) - 1, dictionary, form.stored])
        dtype = np.dtype(form.dtype)
        first, absent = np.empty(len(self.length), np.int64), self.absent[: int(state[levels.ABSENT])]
        as_stored = not len(absent) and not state[rows.NOT_FINITE]
        if as_stored and values >= _SHORT * count:
            rows.finish_rows(column, len(first), self.length, first, dtype.itemsize, 0, absent)
            return Column(
                table,
                first,
                self.length,
                dictionary=dictionary,
                stored=form.stored,
                owners=tuple(self._owners),
                bytes=self._kept,
            )
        # Short lists, or elements to replace: copy all values now, in their final type, into memory of the pool.
        elements = values + len(absent)
        lease = self._pool.take(max(elements * dtype.itemsize, 1))
        rows.finish_rows(column, len(first), self.length, first, dtype.itemsize, lease.address, absent)
        decoded = lease.array(elements, dtype.str)
        if not as_stored:
            self._replace(decoded, absent, first)
        return Column.of(decoded, start=first, length=self.length)

    def _replace(self, decoded: np.ndarray, absent: np.ndarray, first: np.ndarray) -> None:
        """Set elements that are null (indices `absent`) or not finite to the default, by the policy."""
        if self.state[rows.NOT_FINITE]:
            decoded[absent] = np.nan  # not written before: one search then finds all elements to replace
            absent = np.flatnonzero(~np.isfinite(decoded))
        decoded[absent] = self._default
        if self._policy == "drop":  # like a null list: the row is dropped later
            self.length[np.searchsorted(first, absent, side="right") - 1] = levels.NULL


def _fault(fault: int, page: Page, form: Form) -> Damaged | LeftToArrow:
    if fault in _FAULTS:
        return Damaged(f"page {page.number}: {_FAULTS[fault]}")
    if fault in _LEFT:
        return LeftToArrow(_LEFT[fault])
    return LeftToArrow(f"encoding {page.header[headers.ENCODING]} of {form.physical}")
