"""Ids to values of a dimension table (numba, nogil, no Python objects).

Where the ids of a table lie close together it is an array by id, else a hash table with open addressing: M ids in S
places, S a power of two of at least 2 M, probed one after another. All values of an id lie side by side, so that the
second field finds in the cache what the first has brought.
"""

import numpy as np
from numba import carray

from fsdata.kernels.memory import ask_for, pointer, stream
from fsranks.libraries import kernel

# The table of one column, int64 [NUMBERS]: addresses of live memory. Behind the last row stands one of defaults.
LOW = 0  # of an array by id: the id of its first row
SIZE = 1  # rows, or places
IDS = 2  # address of int64 [S], the id at each place; 0: an array by id
VALUES = 3  # address of the first value
WIDTH = 4  # bytes of each; values of 4 bytes become int64 if those of the field have 8
STEP = 5  # words of 4 bytes from one row to the next
TABLE = 6  # address of the rows of the table: the columns of one table find an id at one place
NUMBERS = 7

EMPTY = -(2**63)  # no id
_AHEAD = 16  # places of a hash table that are asked for before they are needed


@kernel(inline="always")
def _place(id, size):
    """Where an id is looked for first: the high bits of a product spread ids that are multiples of each other."""
    mixed = np.uint64(id) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1))


@kernel(called_with="int64[::1], int64[::1], int64[::1]")
def fill_places(ids: np.ndarray, at: np.ndarray, places: np.ndarray) -> None:
    """Put distinct ids, int64 [M], at places, int64 [S] that are EMPTY. Written: at int64 [M], the place of each."""
    for m in range(len(ids)):
        place = _place(ids[m], len(places))
        while places[place] != EMPTY:
            place = (place + 1) & (len(places) - 1)
        places[place] = ids[m]
        at[m] = place


@kernel
def find_rows(ids, lookup):
    """Written in place of each of `ids`, int64 [n]: the word at which its row begins."""
    size, step = lookup[SIZE], lookup[STEP]
    if lookup[IDS] == 0:
        low, behind = lookup[LOW], np.uint64(size)
        for i in range(len(ids)):
            ids[i] = np.int64(min(np.uint64(ids[i] - low), behind)) * step  # ids below wrap around, to large numbers
        return
    known = carray(pointer(lookup[IDS]), (size,), np.int64)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            ask_for(lookup[IDS] + 8 * _place(ids[i + _AHEAD], size))
        id = ids[i]
        place = _place(id, size)
        while known[place] != id and known[place] != EMPTY:
            place = (place + 1) & (size - 1)
        ids[i] = (size if known[place] == EMPTY else place) * step


@kernel
def take(target, rows, lookup, itemsize):
    """The values of `rows`, as of `find_rows`, to `target`: of 8 bytes, int64; of 4 bytes, float32.

    The loops have no branch: then the processor brings many rows at once.
    """
    at, most = pointer(lookup[VALUES]), 1 << 60
    words = carray(at, (most,), np.int32)
    if lookup[WIDTH] == 8:
        pairs = carray(at, (most,), np.int64)
        for i in range(len(rows)):
            stream(target + 8 * i, pairs[np.uint64(rows[i]) >> np.uint64(1)])
    elif itemsize == 8:
        for i in range(len(rows)):
            stream(target + 8 * i, np.int64(words[np.uint64(rows[i])]))
    else:
        to = carray(pointer(target), (len(rows),), np.int32)
        for i in range(len(rows)):
            to[i] = words[np.uint64(rows[i])]
