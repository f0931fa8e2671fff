"""Levels of repetition and definition -> how many elements the list of every row has, null or not (numba, nogil).

`fsdata.pages.kernels.levels` does the same for the loader, which also needs the places of null elements, and reads
levels of three bits at most.
"""

import numpy as np

from fsdata.pages.kernels import DAMAGED, OK
from fsdata.pages.kernels.levels import next_run
from fsranks.libraries import kernel

# Of what is known after some pages of a chunk, int64 [3].
ROWS = 0  # that have begun
NULL_ROWS = 1
NULL_ELEMENTS = 2


@kernel(called_with="Array(uint8, 1, 'C', True), int64[::1], int64, int64, int64, int64[::1], int64[::1]")
def add_lengths(raw, bounds, count, top, empty, length, known):
    """Add a page to `length`; a code.

    Args:
        raw: uint8, what begins with the levels of the page. bounds: int64 [4], where those of repetition begin and end,
            and those of definition.
        count: levels of each kind.
        top: the level of definition of an element that is not null, at most 255. empty: that of a list of no elements.
        length: int64 [rows], 0 at first; elements of the rows up to the one that has begun, 0 where the row is null.
        known: int64 [3], changed in place.
    """
    row = known[ROWS] - 1
    left_r, level_r, bit_r, at_r = np.int64(0), np.int64(0), np.int64(0), bounds[0]
    left_d, level_d, bit_d, at_d = np.int64(0), np.int64(0), np.int64(0), bounds[2]
    width = 0
    while top >> width:
        width += 1
    while count > 0:
        if left_r == 0:
            left_r, level_r, bit_r, at_r = next_run(raw, at_r, bounds[1], np.int64(1), np.int64(1))
        if left_d == 0:
            left_d, level_d, bit_d, at_d = next_run(raw, at_d, bounds[3], width, top)
        some = min(left_r, left_d, count)
        if some == 0:
            return DAMAGED
        count -= some
        left_r -= some
        left_d -= some
        if level_d > empty:  # elements, or nulls in their place
            known[NULL_ELEMENTS] += some if level_d < top else 0
            goes_on = level_r == 1 if level_r >= 0 else (raw[bit_r >> 3] >> (bit_r & 7)) & 1 == 1
            if goes_on and (row < 0 or length[row] == 0):
                return DAMAGED
            if level_r == 1:
                length[row] += some
                continue
            for _ in range(some):
                repetition = level_r if level_r >= 0 else np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
                row += 1 - repetition  # without a branch, as nobody can guess which way it goes
                if row == len(length):
                    return DAMAGED
                length[row] += 1
            continue
        for _ in range(some):
            repetition, definition = level_r, level_d
            if level_r < 0:
                repetition = np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
            if level_d < 0:  # a number of `width` bits, at most 8
                at, shift = bit_d >> 3, bit_d & 7
                definition = np.int64(raw[at]) >> shift
                if shift + width > 8:
                    definition |= np.int64(raw[at + 1]) << (8 - shift)
                definition &= (1 << width) - 1
                bit_d += width
                if definition > top:
                    return DAMAGED
            if repetition == 0:
                row += 1
                if row == len(length):
                    return DAMAGED
                known[NULL_ROWS] += definition < empty
            elif row < 0 or length[row] == 0 or definition <= empty:
                return DAMAGED
            length[row] += definition > empty
            known[NULL_ELEMENTS] += empty < definition < top
    known[ROWS] = row + 1
    return OK
