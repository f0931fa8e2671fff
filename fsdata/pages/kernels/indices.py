"""Positions in a dictionary as runs: where they lie in a page, and that none is outside of it (numba, nogil)."""

import numpy as np

from fsdata.kernels.memory import word_at
from fsdata.kernels.runs import AT, FIRST, FORM, REPEATED
from fsdata.kernels.thrift import varint32
from fsdata.pages.kernels import DAMAGED, OK, UNKNOWN
from fsranks.libraries import kernel

TAIL = 64  # bytes at the end of a page that are copied, so that a word can be read at every one of them


@kernel
def _next_run(raw, at, end, width):
    """(values, whether they differ, where they begin, where the run ends, after `end` if it is cut); no values where
    that is not possible."""
    head, begin = varint32(raw, at)
    count = head >> 1
    if begin > end or count == 0:
        return 0, False, end, end
    if head & 1:
        stop = begin + count * width
        if stop > end:
            return (end - begin) * 8 // width, True, begin, stop
        return count * 8, True, begin, stop
    stop = begin + ((width + 7) >> 3)
    return (0 if stop > end else count), False, begin, stop


@kernel
def count_runs(raw, at, end, width, count):
    """How many runs `count` values have at most, those that are cut in two included."""
    runs = 0
    while count > 0:
        some, _, _, at = _next_run(raw, at, end, width)
        if some == 0:
            return runs
        count -= some
        runs += 2
    return runs


@kernel
def _outside(at, width, count, size):
    """Whether one of `count` positions of `width` bits is not below `size`. A word must be readable at all of them.

    What is too large has a carry if it is added to as much as is missing from `size` to the next power of two. So the
    positions of a word are compared at once, first every other one, then the rest.
    """
    if size >= 1 << width:
        return False
    held = max(57 // width, 1)  # by a word, at whichever bit of its first byte they begin
    mask, missing, bits = np.uint64((1 << width) - 1), np.uint64((1 << width) - size), np.uint64(width)
    these, add, carry = np.zeros(2, np.uint64), np.zeros(2, np.uint64), np.zeros(2, np.uint64)
    for i in range(held):
        place = np.uint64((i - i % 2) * width)
        these[i % 2] |= mask << place
        add[i % 2] |= missing << place
        carry[i % 2] |= np.uint64(1) << (place + bits)
    wrong = np.uint64(0)
    whole = count - count % held
    for i in range(0, whole, held):
        word = word_at(at + (i * width >> 3)) >> np.uint64(i * width & 7)
        wrong |= ((word & these[0]) + add[0]) & carry[0]
        wrong |= (((word >> bits) & these[1]) + add[1]) & carry[1]
    for i in range(whole, count):
        word = word_at(at + (i * width >> 3)) >> np.uint64(i * width & 7)
        wrong |= np.uint64((word & mask) >= np.uint64(size))
    return wrong != 0


@kernel
def index_positions(raw, begin, end, address, count, size, tail, runs, first):
    """Runs of `count` positions in a dictionary of `size` values -> (code, runs written).

    raw: uint8, the page; they begin with their width at `begin`. address: of the page. tail: uint8 [TAIL + 8], to keep.
    first: values before the page.
    """
    if count == 0:
        return OK, 0
    if begin >= end or raw[begin] > 32:
        return DAMAGED, 0
    width = np.int64(raw[begin])
    copied = min(end - begin, TAIL)
    for i in range(len(tail)):
        tail[i] = raw[end - copied + i] if i < copied else 0
    moved = tail.ctypes.data - (end - copied)  # where a byte of the end of the page stands now
    at, written = begin + 1, 0
    while count > 0:
        some, differ, start, at = _next_run(raw, at, end, width)
        some = min(some, count)
        if some == 0:
            return DAMAGED, 0
        if at > end:
            return UNKNOWN, 0
        if not differ or width == 0:
            value = np.int64(0)
            for i in range(0 if differ else (width + 7) >> 3):
                value |= np.int64(raw[start + i]) << (8 * i)
            if value >= size:
                return DAMAGED, 0
            runs[written, FIRST], runs[written, FORM], runs[written, AT] = first, REPEATED, value
            written += 1
            first += some
            count -= some
            continue
        count -= some
        # Groups of eight begin at a byte. Those that are too near to the end are read in the copy of it.
        here = min(max((end - 7 - start) // width, 0) * 8, some)
        for part in range(2):
            values = here if part == 0 else some - here
            if values == 0:
                continue
            of = address + start if part == 0 else moved + start + (here // 8) * width
            if _outside(of, width, values, size):
                return DAMAGED, 0
            runs[written, FIRST], runs[written, FORM], runs[written, AT] = first, width, of
            written += 1
            first += values
    return OK, written
