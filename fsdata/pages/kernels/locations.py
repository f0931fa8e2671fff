"""Reads the offset index of a column chunk, and checks that pages begin with a row (numba, nogil)."""

import numpy as np

from fsdata.kernels.thrift import DEPTH, LIST, STRUCT, after, items, next_field, signed, varint
from fsdata.pages.kernels import headers
from fsranks.libraries import kernel

# Columns of the table of locations, int64 [P, 3].
AT = 0  # first byte of the header of the page in the file
BYTES = 1  # of header and page
ROW = 2  # the first row of the page in the row group


@kernel
def _location(raw, at, location, inside):
    """Read one PageLocation into `location`. Returns its end."""
    before = np.int64(0)
    while True:
        before, kind, at = next_field(raw, at, before)
        if kind == 0:
            return at
        if (before == 2 and kind == 5) or ((before == 1 or before == 3) and kind == 6):
            location[before - 1], at = signed(raw, at)
        else:
            at = after(raw, at, kind, inside)


@kernel(called_with="Array(uint8, 1, 'C', True), int64")
def read_locations(raw, count):
    """int64 [count, 3] from the offset index `raw`; -1 for missing numbers, or all -1 if it has not `count` pages."""
    locations = np.full((count, 3), -1, np.int64)
    inside = np.empty((DEPTH, 2), np.int64)
    before, at, is_read = np.int64(0), np.int64(0), False
    while True:
        before, kind, at = next_field(raw, at, before)
        if kind == 0:
            return locations
        if before == 1 and kind == LIST:
            number_of_pages, inner, at = items(raw, at)
            # A second list of a damaged index would overwrite the first one.
            if number_of_pages != count or inner != STRUCT or is_read:
                return locations
            for number in range(count):
                at = _location(raw, at, locations[number], inside)
            is_read = True
        else:
            at = after(raw, at, kind, inside)


@kernel(called_with="Array(uint8, 1, 'C', True), int64[:, ::1]")
def begin_with_rows(raw, pages):
    """Whether every page of version 2 of a column of lists begins with a new row: its first level of repetition is 0.

    raw: uint8, the chunk; pages: int64 [P, headers.COLUMNS]. Levels of version 2 are never compressed.
    """
    for number in range(len(pages)):
        page = pages[number]
        if page[headers.KIND] == headers.DATA_V2 and page[headers.VALUES] > 0:
            _, at = varint(raw, page[headers.AT])  # the head of the first run; bit 0 after it is the first level
            if at >= page[headers.AT] + page[headers.REPETITION] or raw[at] & 1:
                return False
    return True
