"""Levels of repetition and definition -> how long the list of every row is, and where it has nulls (numba, nogil).

Levels are small numbers in runs: one number many times (RLE), or groups of eight numbers of one to three bits.
"""

import numpy as np

from fsdata.kernels.thrift import varint32
from fsdata.pages.kernels import DAMAGED, OK
from fsranks.libraries import kernel

NULL = -1  # the length of a list that is null

# Of what is known after some pages of a chunk, int64 [3].
ROWS = 0  # that have begun
VALUES = 1  # that are not null
ABSENT = 2  # elements of lists that are null


@kernel
def next_run(raw, at, end, width, top):
    """(levels of the run, the level, -1 if they differ; the first bit of those; where the run ends); no levels where
    that is not possible."""
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
def read_levels(raw, bounds, count, top, present, length, known, absent):
    """Add a page to `length` and `absent` -> (a code; `absent` or a longer array).

    Args:
        raw: uint8, the page. bounds: int64 [4], where its levels of repetition begin and end, and of definition.
        count: levels of each kind.
        top: the level of definition of a value, 1 to 7. present: the one of a list without elements.
        length: int64 [rows], written up to the row that has begun: elements, or NULL. known: int64 [3], changed in
            place.
        absent: int64 [1 or more], which elements are null, ascending, of all that were read so far.
    """
    row, values, nulls = known[ROWS] - 1, known[VALUES], known[ABSENT]
    left_r, level_r, bit_r, at_r = np.int64(0), np.int64(0), np.int64(0), bounds[0]
    left_d, level_d, bit_d, at_d = np.int64(0), np.int64(0), np.int64(0), bounds[2]
    width_d = 1 if top < 2 else 2 if top < 4 else 3
    while count > 0:
        if left_r == 0:
            left_r, level_r, bit_r, at_r = next_run(raw, at_r, bounds[1], np.int64(1), np.int64(1))
        if left_d == 0:
            left_d, level_d, bit_d, at_d = next_run(raw, at_d, bounds[3], width_d, top)
        some = min(left_r, left_d, count)
        if some == 0:
            return DAMAGED, absent
        count -= some
        left_r -= some
        left_d -= some
        if level_r == 1 and level_d == top:  # elements of one list
            if row < 0 or length[row] <= 0:
                return DAMAGED, absent
            length[row] += some
            values += some
            continue
        for _ in range(some):
            repetition, definition = level_r, level_d
            if level_r < 0:
                repetition = np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
            if level_d < 0:
                bits = np.int64(raw[bit_d >> 3]) >> (bit_d & 7)
                if (bit_d & 7) + width_d > 8:  # three bits that lie in two bytes; a run ends with a whole byte
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
                return DAMAGED, absent
            if definition == top:
                length[row] += 1
                values += 1
            elif definition < present:
                length[row] = NULL
            elif definition > present:
                if nulls == len(absent):
                    absent = _twice_as_long(absent)
                absent[nulls] = values + nulls
                nulls += 1
                length[row] += 1
    known[ROWS], known[VALUES], known[ABSENT] = row + 1, values, nulls
    return OK, absent
