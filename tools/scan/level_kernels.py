"""Levels of repetition and definition -> number of elements of the list of every row, null or not (numba, nogil).

`fsdata.pages.kernels.levels` does the same for the loader, which also needs the positions of null elements, and reads
levels of at most three bits.
"""

import numpy as np

from fsdata.pages.kernels import DAMAGED, OK
from fsdata.pages.kernels.levels import next_run
from fsranks.libraries import kernel

# Counts after some pages of a chunk, int64 [3].
ROWS = 0  # rows that have begun: the last one may continue on the next page
NULL_ROWS = 1
NULL_ELEMENTS = 2


@kernel(called_with="Array(uint8, 1, 'C', True), int64[::1], int64, int64, int64, int64[::1], int64[::1]")
def add_lengths(raw, bounds, count, top, empty, length, counts):
    """Add a page to `length`. Returns a code of `fsdata.pages.kernels`.

    Args:
        raw: uint8, the page, at least up to the end of its levels. bounds: int64 [4], begin and end of its levels of
            repetition, then of definition.
        count: levels of each kind.
        top: level of definition of an element that is not null, at most 255. empty: that of a list without elements.
        length: int64 [rows], zeros before the first page; elements of the rows that have begun, 0 for null rows.
        counts: int64 [3], see ROWS, changed in place.
    """
    # The last row of the page before: this page may continue its list.
    row = counts[ROWS] - 1
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
        # The levels for which neither run ends.
        number = min(left_r, left_d, count)
        if number == 0:
            return DAMAGED
        count -= number
        left_r -= number
        left_d -= number
        # Fast path, most of long lists: a run of elements, or of null elements.
        if level_d > empty:
            counts[NULL_ELEMENTS] += number if level_d < top else 0
            continues = level_r == 1 if level_r >= 0 else (raw[bit_r >> 3] >> (bit_r & 7)) & 1 == 1
            if continues and (row < 0 or length[row] == 0):
                return DAMAGED  # a further element needs a list that is neither null nor empty
            if level_r == 1:
                length[row] += number
                continue
            for _ in range(number):
                repetition = level_r if level_r >= 0 else np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
                row += 1 - repetition  # without a branch, which the processor could not predict
                if row == len(length):
                    return DAMAGED
                length[row] += 1
            continue
        for _ in range(number):
            repetition, definition = level_r, level_d
            if level_r < 0:
                repetition = np.int64(raw[bit_r >> 3] >> (bit_r & 7)) & 1
                bit_r += 1
            if level_d < 0:  # a number of `width` bits, at most 8
                at, shift = bit_d >> 3, bit_d & 7
                definition = np.int64(raw[at]) >> shift
                if shift + width > 8:  # the second byte exists: runs end with a whole byte
                    definition |= np.int64(raw[at + 1]) << (8 - shift)
                definition &= (1 << width) - 1
                bit_d += width
                if definition > top:
                    return DAMAGED
            if repetition == 0:
                row += 1
                if row == len(length):
                    return DAMAGED
                counts[NULL_ROWS] += definition < empty
            elif row < 0 or length[row] == 0 or definition <= empty:
                return DAMAGED
            length[row] += definition > empty
            counts[NULL_ELEMENTS] += empty < definition < top
    counts[ROWS] = row + 1
    return OK
