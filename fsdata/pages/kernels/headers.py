"""The page headers of a column chunk (numba, nogil)."""

import numpy as np

from fsdata.kernels.thrift import DEPTH, STRUCT, after, next_field, signed
from fsdata.pages.kernels import DAMAGED, OK, UNKNOWN
from fsranks.libraries import kernel

# Columns of the table of pages, int64 [P, 15].
KIND = 0  # Parquet's type of page
AT = 1  # its first byte after the header
STORED = 2  # bytes in the file
UNPACKED = 3  # bytes after decompression
VALUES = 4  # in the page, nulls included; of a dictionary: its size
ENCODING = 5
CHECKSUM = 6  # CRC-32 of the stored bytes, -1 without one
ROWS = 7  # of a page of version 2, -1 in other pages
REPETITION = 8  # version 2: bytes of the levels, which are never compressed
DEFINITION = 9
COMPRESSED = 10  # version 2: 0 if the values are not compressed, either
LEVELS = 11  # version 1: encoding of the levels if it is not RLE, else RLE
ADDRESS = 12  # of the page after decompression; 0 before
FIRST_ROW = 13  # of the page, in the row group
END_ROW = 14  # the first one after it; 0 where rows are not known
COLUMNS = 15

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 2, 3, 5, 8, 9


@kernel
def _inner(raw, at, kind, page, inside):
    """Read the struct of one kind of page into `page`. Returns its end. VALUES is -1 if a required field is missing."""
    before, seen = np.int64(0), 0
    last = 2 if kind == DICTIONARY else 4 if kind == DATA else 6  # of the fields that must be there; all are int32
    while True:
        before, what, at = next_field(raw, at, before)
        if what == 0:
            if seen != (2 << last) - 2:  # one of the bits 1 to `last` is missing; `check_header` rejects -1
                page[VALUES] = -1
            return at
        if what == 5 and 1 <= before <= last:
            value, at = signed(raw, at)
            seen |= 1 << before
            if before == 1:
                page[VALUES] = value
            elif kind == DATA_V2 and before == 3:
                page[ROWS] = value
            elif (kind == DATA_V2 and before == 4) or (kind != DATA_V2 and before == 2):
                page[ENCODING] = value
            elif kind == DATA_V2 and before == 5:
                page[DEFINITION] = value
            elif kind == DATA_V2 and before == 6:
                page[REPETITION] = value
            elif kind == DATA and (before == 3 or before == 4) and value != RLE:
                page[LEVELS] = value
        elif kind == DATA_V2 and before == 7 and (what == 1 or what == 2):
            page[COMPRESSED] = what == 1
        else:
            at = after(raw, at, what, inside)


@kernel
def read_header(raw, at, page, inside):
    """Read one page header into `page`, int64 [COLUMNS]. Returns its end, which is beyond `raw` if that is too short.

    inside: int64 [DEPTH, 2], a stack, see `fsdata.kernels.thrift.after`.
    """
    for column in range(COLUMNS):
        page[column] = -1 if column <= ROWS else 0
    page[COMPRESSED], page[LEVELS] = 1, RLE
    before = np.int64(0)
    while True:
        before, what, at = next_field(raw, at, before)
        if what == 0:
            return at
        if what == 5 and before <= 4:
            value, at = signed(raw, at)
            if before == 1:
                page[KIND] = value
            elif before == 2:
                page[UNPACKED] = value
            elif before == 3:
                page[STORED] = value
            else:
                page[CHECKSUM] = value & 0xFFFFFFFF
        elif what == STRUCT and before == page[KIND] + 5:  # fields 5 to 8: data, index, dictionary, data of version 2
            at = _inner(raw, at, page[KIND], page, inside)
        elif 5 <= before <= 8:
            page[KIND] = -1  # a struct of another kind than the page: the header is invalid
            at = after(raw, at, what, inside)
        else:
            at = after(raw, at, what, inside)


@kernel
def check_header(page, at, end, first, values, room):
    """Check the numbers of a page header. Returns a code.

    Args:
        at: end of the header. end: of the chunk.
        first: whether it is the first page. values, room: largest number of values and of unpacked bytes.
    """
    if page[STORED] < 0 or page[UNPACKED] < 0 or at > end or page[STORED] > end - at:
        return DAMAGED
    if page[KIND] == DATA or page[KIND] == DATA_V2:
        if page[VALUES] < 0 or page[VALUES] > values:
            return DAMAGED
    elif page[KIND] == DICTIONARY:
        if not first or page[VALUES] < 0:
            return DAMAGED
    else:
        return UNKNOWN
    if page[KIND] == DATA_V2 and page[ROWS] < 0:
        return DAMAGED
    if page[UNPACKED] > room:
        return UNKNOWN
    if page[KIND] == DATA_V2:
        least = min(page[STORED], page[UNPACKED])  # differences, as the sum of two numbers of a file may overflow
        if not 0 <= page[REPETITION] <= least or not 0 <= page[DEFINITION] <= least - page[REPETITION]:
            return DAMAGED
    return OK


@kernel(called_with="Array(uint8, 1, 'C', True), int64, int64")
def read_headers(raw, values, unpacked):
    """(pages int64 [P, COLUMNS]; code; the page that is damaged or unknown).

    Args:
        raw: uint8, the bytes of the chunk.
        values, unpacked: of the chunk, from the footer: bounds of all pages together, and so of the memory they take.
    """
    pages = np.zeros((8, COLUMNS), np.int64)
    inside = np.empty((DEPTH, 2), np.int64)
    at, count, seen, room = np.int64(0), 0, np.int64(0), np.int64(unpacked)
    while at < len(raw) and seen < values:
        if count == len(pages):
            more = np.zeros((2 * count, COLUMNS), np.int64)
            for line in range(count):
                for column in range(COLUMNS):
                    more[line, column] = pages[line, column]
            pages = more
        page = pages[count]
        at = read_header(raw, at, page, inside)
        code = check_header(page, at, len(raw), count == 0, values - seen, room)
        if code != OK:
            return pages[:count], code, count
        page[AT] = at
        at += page[STORED]
        if page[KIND] != DICTIONARY:
            seen += page[VALUES]
        room -= page[UNPACKED]
        count += 1
    if seen < values:
        return pages[:count], DAMAGED, count
    return pages[:count], OK if at == len(raw) else UNKNOWN, count  # UNKNOWN: bytes after the last page
