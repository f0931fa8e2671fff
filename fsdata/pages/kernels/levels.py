"""Computes the length and the nulls of every row's list from the levels of repetition and definition (numba, nogil).

Levels are small numbers in runs: one number repeated (RLE), or groups of eight numbers of one to three bits.
"""

import numpy as np

from fsdata.kernels.thrift import varint32
from fsdata.pages.kernels import DAMAGED, OK
from fsranks.libraries import kernel

NULL = -1  # the length of a list that is null

# Counts after some pages of a chunk, int64 [3].
ROWS = 0  # rows that have begun: the last one may continue on the next page
VALUES = 1  # elements that are not null
ABSENT = 2  # null elements


@kernel
def next_run(raw, at, end, width, top):
    """(number of levels; the level, -1 if they differ; position of their first bit; end of the run); 0 levels if the
    run is invalid."""
    head, begin = varint32(raw, at)
    count = head >> 1
    if begin > end or count == 0:
        return 0, 0, 0, end
    if head & 1:
        stop = begin + count * width
        return (count * 8 if stop <= end else 0), -1, begin * 8, stop
    if begin == end or raw[begin] > top:
        return 0, 0, 0, end
    return count, np.int64(raw[begin]), 0, begin + 1


@kernel
def _twice_as_long(absent):
    longer = np.empty(2 * len(absent), np.int64)
    for i in range(len(absent)):
        longer[i] = absent[i]
    return longer


@kernel
def read_levels(raw, bounds, count, top, present, length, counts, absent):
    """Add a page to `length` and `absent`. Returns (a code; `absent` or a longer array).

    Args:
        raw: uint8, the page. bounds: int64 [4], begin and end of its levels of repetition, then of definition.
        count: levels of each kind.
        top: the level of definition of a value, 1 to 7. present: the one of a list without elements.
        length: int64 [rows], written up to the last row that has begun: elements, or NULL. counts: int64 [3], see ROWS,
            changed in place.
        absent: int64 [1 or more], the null elements so far, as ascending numbers among all elements.
    """
    # The last row of the page before: this page may continue its list.
    row, values, nulls = counts[ROWS] - 1, counts[VALUES], counts[ABSENT]
    left_r, level_r, bit_r, at_r = np.int64(0), np.int64(0), np.int64(0), bounds[0]
    left_d, level_d, bit_d, at_d = np.int64(0), np.int64(0), np.int64(0), bounds[2]
    width_d = 1 if top < 2 else 2 if top < 4 else 3
    while count > 0:
        if left_r == 0:
            left_r, level_r, bit_r, at_r = next_run(raw, at_r, bounds[1], np.int64(1), np.int64(1))
        if left_d == 0:
            left_d, level_d, bit_d, at_d = next_run(raw, at_d, bounds[3], width_d, top)
        # The levels for which neither run ends.
        number = min(left_r, left_d, count)
        if number == 0:
            return DAMAGED, absent
        count -= number
        left_r -= number
        left_d -= number
        # Fast path: most levels of long lists are two repeated ones, which mean further elements of one list.
        if level_r == 1 and level_d == top:
            if row < 0 or length[row] <= 0:
                return DAMAGED, absent
            length[row] += number
            values += number
            continue
        for _ in range(number):
            repetition, definition = level_r, level_d
            if level_r < 0:
                repetition = np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
            if level_d < 0:
                bits = np.int64(raw[bit_d >> 3]) >> (bit_d & 7)
                if (bit_d & 7) + width_d > 8:  # three bits in two bytes. The second exists: runs end with a whole byte
                    bits |= np.int64(raw[(bit_d >> 3) + 1]) << (8 - (bit_d & 7))
                definition = bits & ((1 << width_d) - 1)
                bit_d += width_d
                if definition > top:
                    return DAMAGED, absent
            if repetition == 0:
                row += 1
                if row == len(length):
                    return DAMAGED, absent
                length[row] = 0
            elif row < 0 or length[row] <= 0 or definition <= present:
                return DAMAGED, absent  # a further element needs a list that is neither null nor empty
            if definition == top:
                length[row] += 1
                values += 1
            elif definition < present:
                length[row] = NULL
            elif definition > present:
                if nulls == len(absent):
                    absent = _twice_as_long(absent)
                absent[nulls] = values + nulls  # its number among all elements, nulls included
                nulls += 1
                length[row] += 1
    counts[ROWS], counts[VALUES], counts[ABSENT] = row + 1, values, nulls
    return OK, absent
