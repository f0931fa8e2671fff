"""What a column chunk says of its rows: lengths first; values stay in the pages until their place is known."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsdata.decode.pages.chunk import Damaged, LeftToArrow, Page
from fsdata.decode.pages.forms import Form
from fsdata.decode.pages.held import hold
from fsdata.decode.reused_buffers import Pool
from fsdata.kernels import pages
from fsdata.kernels.pages import deltas, fetch, headers, levels, runs

_SHORT = 32  # lists with fewer values on average are decoded at once: to find a run costs as much as some values


@dataclass(frozen=True, slots=True)
class Column:
    """The rows of a column chunk.

    Attributes:
        length: int64 [rows], values of each row, -1 where it is null.
        first: int64 [rows], values before the row.
        base: address of the first value: of memory, or paged (`fsdata.kernels.pages.fetch`).
        values: int64 or float32 [n], the values themselves; None if they stay in the pages.
        owner: keeps `base` valid.
    """

    length: np.ndarray
    first: np.ndarray
    base: int
    values: np.ndarray | None
    owner: Any


def read_column(found: Iterable[Page], form: Form, rows: int, stop: int, pool: Pool) -> Column:
    """Levels and places of the values of rows. Blocks for unpacking; values are checked, but not decoded.

    Args:
        found: the pages of the chunk. rows: of the row group. stop: rows from there on are not needed, and only read
            as far as they stand in a page with one that is.

    Raises:
        Damaged; LeftToArrow: elements of lists that are null, numbers that are not finite, unknown encodings.
    """
    reading = _Reading(form, rows, pool)
    for page in found:
        reading.add(page)
        if reading.rows > stop:
            return reading.finish()
    if reading.rows != rows:
        raise Damaged(f"{reading.rows} rows where the footer says {rows}")
    return reading.finish()


class _Reading:
    """Adds one page after another."""

    def __init__(self, form: Form, rows: int, pool: Pool) -> None:
        self._form = form
        self._pool = pool
        self._length = np.zeros(rows, np.int64)
        self._known = np.zeros(2, np.int64)
        self._dictionary: np.ndarray | None = None
        self._parts: list[np.ndarray] = []  # lines of the table of runs
        self._owners: list[Any] = []

    def add(self, page: Page) -> None:
        encoding = int(page.header[headers.ENCODING])
        if page.header[headers.KIND] == headers.DICTIONARY:
            if encoding not in (headers.PLAIN, headers.PLAIN_DICTIONARY):
                raise LeftToArrow(f"a dictionary of encoding {encoding}")
            self._dictionary = self._values(page, 0, int(page.header[headers.VALUES]))
            return
        first = int(self._known[levels.VALUES])
        begin = self._add_levels(page)
        count = int(self._known[levels.VALUES]) - first
        if encoding in (headers.RLE_DICTIONARY, headers.PLAIN_DICTIONARY):
            self._add_positions(page, begin, first, count)
            return
        form, at, owner = self._add_values(page, begin, count, encoding)
        if count:
            self._parts.append(np.array([[first, form, at]]))
            self._owners.append(owner)

    @property
    def rows(self) -> int:
        """How many have begun."""
        return int(self._known[levels.ROWS])

    def finish(self) -> Column:
        rows, count = self.rows, int(self._known[levels.VALUES])
        first = np.cumsum(np.maximum(self._length, 0))
        first -= np.maximum(self._length, 0)
        table = np.concatenate([*self._parts, np.array([[count, 0, 0]])])
        dictionary = 0 if self._dictionary is None else self._dictionary.ctypes.data
        column = np.array([table.ctypes.data, len(table) - 1, dictionary, self._form.stored])
        itemsize = np.dtype(self._form.dtype).itemsize
        owners = (table, self._dictionary, *self._owners)
        if self._form.repeated and count >= _SHORT * rows and count * itemsize < fetch.MOST_BYTES:
            held = hold(column, *owners)
            if held is not None:
                return Column(self._length, first, held.base, None, held)
        lease = self._pool.take(max(count * itemsize, 1))
        values = np.asarray(lease)[: count * itemsize].view(self._form.dtype)
        if count:
            fetch.fetch(lease.address, column, 0, count, itemsize, 0)
        return Column(self._length, first, lease.address, values, lease)

    def _add_levels(self, page: Page) -> int:
        """Where the values of the page begin."""
        header, raw, form = page.header, page.raw, self._form
        bounds = np.zeros(4, np.int64)
        if header[headers.KIND] == headers.DATA_V2:
            middle = int(header[headers.REPETITION])
            bounds[:] = 0, middle, middle, middle + int(header[headers.DEFINITION])
        else:
            if header[headers.LEVELS] != headers.RLE and (form.repeated or form.top):
                raise LeftToArrow(f"levels of encoding {header[headers.LEVELS]}")
            at = 0
            for place, there in ((0, form.repeated), (2, form.top > 0)):
                size = int.from_bytes(raw[at : at + 4].tobytes(), "little") if there else 0
                begin = at + 4 * there
                if begin + size > len(raw):
                    raise Damaged(f"page {page.number}: levels beyond its end")
                bounds[place], bounds[place + 1] = begin, begin + size
                at = begin + size
        count = int(header[headers.VALUES])
        code = levels.read_levels(raw, bounds, count, form.repeated, form.top, form.present, self._length, self._known)
        if code == pages.UNKNOWN:
            raise LeftToArrow("elements of lists that are null")
        if code == pages.DAMAGED:
            raise Damaged(f"page {page.number}: levels that cannot be")
        return int(bounds[3])

    def _add_positions(self, page: Page, begin: int, first: int, count: int) -> None:
        if self._dictionary is None:
            raise LeftToArrow("positions without a dictionary")
        raw = page.raw
        width = int(raw[begin]) if begin < len(raw) else 0
        if width > 32:
            raise Damaged(f"page {page.number}: positions of {width} bits")
        if not count:
            return
        table = np.empty((runs.count_runs(raw, begin + 1, len(raw), width, count), runs.COLUMNS), np.int64)
        tail = np.empty(runs.TAIL + 8, np.uint8)
        size = len(self._dictionary)
        code, written = runs.index_positions(raw, begin, len(raw), page.address, count, size, tail, table, first)
        if code == pages.UNKNOWN:
            raise LeftToArrow("positions whose last group is cut")
        if code != pages.OK:
            raise Damaged(f"page {page.number}: positions that end too early, or are outside a dictionary of {size}")
        self._parts.append(table[:written])
        self._owners += [page.owner, tail]

    def _values(self, page: Page, begin: int, count: int) -> np.ndarray:
        """The values of a PLAIN page, decoded."""
        form, at, kept = self._add_values(page, begin, count, headers.PLAIN)
        found = np.empty(count, self._form.dtype)
        if count:
            stored = self._form.stored if form == runs.PLAIN else fetch.SAME
            fetch.convert(found.ctypes.data, at, count, stored, found.itemsize)
        del kept
        return found

    def _add_values(self, page: Page, begin: int, count: int, encoding: int) -> tuple[int, int, Any]:
        """(form, address, what keeps it) of values that are no positions; checked."""
        raw, physical, number = page.raw, self._form.physical, page.number
        if encoding == headers.PLAIN and physical != "BOOLEAN":
            size = self._form.raw.itemsize * count
            if size > len(raw) - begin:
                raise Damaged(f"page {number}: {count} values in {len(raw) - begin} bytes")
            self._check(raw[begin : begin + size].view(self._form.raw))
            return runs.PLAIN, page.address + begin, page.owner
        code = pages.OK
        if encoding == headers.DELTA_BINARY_PACKED and physical in ("INT32", "INT64"):
            found = np.empty(count, np.int64)
            code = deltas.read_deltas(raw, begin, len(raw), physical == "INT32", found)
        elif encoding == headers.BYTE_STREAM_SPLIT and physical != "BOOLEAN":
            width = self._form.raw.itemsize
            if len(raw) - begin != count * width:
                raise Damaged(f"page {number}: {count} values in {len(raw) - begin} bytes")
            split = np.empty(count * width, np.uint8)
            deltas.read_split(raw, begin, count, width, split)
            self._check(split.view(self._form.raw))
            return runs.PLAIN, split.ctypes.data, split
        elif physical == "BOOLEAN" and encoding == headers.PLAIN:
            if (count + 7) >> 3 > len(raw) - begin:
                raise Damaged(f"page {number}: {count} booleans in {len(raw) - begin} bytes")
            found = np.empty(count, np.int64)
            deltas.read_bits(raw, begin, found)
        elif physical == "BOOLEAN" and encoding == headers.RLE:
            found = np.empty(count, np.int64)
            size = int.from_bytes(raw[begin : begin + 4].tobytes(), "little")
            code = pages.DAMAGED
            if begin + 4 + size <= len(raw):
                code = deltas.read_bit_runs(raw, begin + 4, begin + 4 + size, found)
        else:
            raise LeftToArrow(f"encoding {encoding} of {physical}")
        if code == pages.UNKNOWN:
            raise LeftToArrow("deltas or booleans that are more or fewer than the page says")
        if code != pages.OK:
            raise Damaged(f"page {number}: values that end too early, or contradict themselves")
        if self._form.stored in (fetch.UINT32, fetch.UINT32_FLOAT):
            found &= 0xFFFFFFFF
        self._check(found)
        made = found if self._form.dtype is np.int64 else found.astype(np.float32)
        return runs.FINAL, made.ctypes.data, made

    def _check(self, values: np.ndarray) -> None:
        """Values are what the field can hold; others are left to pyarrow, which names them."""
        if values.dtype.kind == "f" and len(values) and not _finite(values):
            raise LeftToArrow("numbers that are not finite")
        within = self._form.within
        if within is not None and len(values) and (values.min() < within[0] or values.max() > within[1]):
            raise LeftToArrow("integers that are too large for their type")


def _finite(values: np.ndarray) -> bool:
    """Whether all are finite float32."""
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()) and np.abs(values).max() <= _LARGEST)


_LARGEST = float(np.finfo(np.float32).max)
