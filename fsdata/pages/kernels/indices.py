"""Locates the runs of dictionary indices in a page, and checks every index against the dictionary (numba, nogil).

The indices stay bit-packed: `fsdata.kernels.columns` looks them up when it copies values.
"""

import numpy as np

from fsdata.kernels.memory import word_at
from fsdata.kernels.runs import AT, FIRST, FORM, REPEATED
from fsdata.kernels.thrift import varint32
from fsdata.pages.kernels import DAMAGED, OK, UNKNOWN
from fsranks.libraries import kernel

TAIL = 64  # last bytes of a page that are copied in front of 8 zeros, so that a word can be read at each of them


@kernel
def _next_run(raw, at, end, width):
    """(values, whether they differ, their first byte, end of the run: after `end` if it is cut off); 0 values if it is
    invalid."""
    head, begin = varint32(raw, at)
    count = head >> 1
    if begin > end or count == 0:
        return 0, False, end, end
    if head & 1:
        stop = begin + count * width
        if stop > end:  # cut off: `index_positions` leaves the page to pyarrow
            return (end - begin) * 8 // width, True, begin, stop
        return count * 8, True, begin, stop
    stop = begin + ((width + 7) >> 3)
    return (0 if stop > end else count), False, begin, stop


@kernel
def count_runs(raw, at, end, width, count):
    """An upper bound of the runs of `count` values: `index_positions` may cut each in two."""
    runs = 0
    while count > 0:
        values, _, _, at = _next_run(raw, at, end, width)
        if values == 0:
            return runs
        count -= values
        runs += 2
    return runs


@kernel
def _outside(at, width, count, size):
    """Whether one of `count` indices of `width` bits is not below `size`. A word must be readable at all of them.

    All indices of a word are compared at once: adding 2**width - size to an index sets the bit above it exactly if the
    index is too large. Every second index is masked out for that, so that the bit above is free; then come the others.
    """
    if size >= 1 << width:
        return False
    per_word = max(57 // width, 1)  # indices in a word: of its 64 bits, up to 7 belong to earlier ones
    mask, missing, bits = np.uint64((1 << width) - 1), np.uint64((1 << width) - size), np.uint64(width)
    # Entry 0 is for the indices 0, 2, ... of a word, entry 1 for the indices 1, 3, ..., shifted to the same places.
    masks, add, carry = np.zeros(2, np.uint64), np.zeros(2, np.uint64), np.zeros(2, np.uint64)
    for i in range(per_word):
        place = np.uint64((i - i % 2) * width)
        masks[i % 2] |= mask << place
        add[i % 2] |= missing << place
        carry[i % 2] |= np.uint64(1) << (place + bits)
    wrong = np.uint64(0)
    whole = count - count % per_word
    # No exit at the first wrong index: without a branch the loop is faster, and damage is rare.
    for i in range(0, whole, per_word):
        word = word_at(at + (i * width >> 3)) >> np.uint64(i * width & 7)
        wrong |= ((word & masks[0]) + add[0]) & carry[0]
        wrong |= (((word >> bits) & masks[1]) + add[1]) & carry[1]
    for i in range(whole, count):
        word = word_at(at + (i * width >> 3)) >> np.uint64(i * width & 7)
        wrong |= np.uint64((word & mask) >= np.uint64(size))
    return wrong != 0


@kernel
def index_positions(raw, begin, end, address, count, size, tail, runs, first):
    """Write the runs of `count` indices into a dictionary of `size` values. Returns (code, runs written).

    raw: uint8, the page; `begin` is the byte with the width of the indices. address: of the page. tail: uint8
    [TAIL + 8], which must live as long as the runs. first: values before the page.
    """
    if count == 0:
        return OK, 0
    if begin >= end or raw[begin] > 32:
        return DAMAGED, 0
    width = np.int64(raw[begin])
    copied = min(end - begin, TAIL)
    for i in range(len(tail)):
        tail[i] = raw[end - copied + i] if i < copied else 0
    moved = tail.ctypes.data - (end - copied)  # plus the position of a byte in the page: its address in `tail`
    at, written = begin + 1, 0
    while count > 0:
        in_run, differ, start, at = _next_run(raw, at, end, width)
        in_run = min(in_run, count)
        if in_run == 0:
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
            first += in_run
            count -= in_run
            continue
        count -= in_run
        # The copy kernel reads a word of 8 bytes per index, which must not pass the end of the page: the last groups
        # are read in `tail`. A run is cut between groups of eight, as only these begin at a whole byte.
        in_page = min(max((end - 7 - start) // width, 0) * 8, in_run)
        for from_tail in range(2):
            values = in_run - in_page if from_tail else in_page
            if values == 0:
                continue
            begin_at = moved + start + (in_page // 8) * width if from_tail else address + start
            if _outside(begin_at, width, values, size):
                return DAMAGED, 0
            runs[written, FIRST], runs[written, FORM], runs[written, AT] = first, width, begin_at
            written += 1
            first += values
    return OK, written
