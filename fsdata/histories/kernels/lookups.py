"""Looks up ids in a dimension table (numba, nogil, no Python objects).

A table with dense ids is an array indexed by id, another one a hash table with open addressing and linear probing: M
ids in S slots, S a power of two of at least 2 M. All values of an id are adjacent, so that they are in the cache for
the second field.
"""

import numpy as np
from numba import carray

from fsdata.kernels.memory import pointer, prefetch_line, stream
from fsranks.libraries import kernel

# The table of one column, int64 [NUMBERS]: addresses of live memory. The row after the last one has the defaults.
LOW = 0  # array indexed by id: the id of its first row
SIZE = 1  # rows, or slots
IDS = 2  # address of int64 [S], the id in each slot; 0: an array indexed by id
VALUES = 3  # address of the first value
WIDTH = 4  # bytes of a value; values of 4 bytes become int64 if those of the field have 8
STEP = 5  # words of 4 bytes from one row to the next
TABLE = 6  # address of the rows of the table: equal for columns of one table, which have an id in the same row
NUMBERS = 7

EMPTY = -(2**63)  # no id
_AHEAD = 16  # ids between the prefetch of a slot and its use


@kernel(inline="always")
def _slot(id, size):
    """The first slot of an id: the high bits of a product spread ids that are multiples of each other."""
    mixed = np.uint64(id) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1))


@kernel(called_with="int64[::1], int64[::1], int64[::1]")
def fill_places(ids: np.ndarray, at: np.ndarray, slots: np.ndarray) -> None:
    """Insert distinct ids, int64 [M], into slots, int64 [S], that are EMPTY. Writes at: int64 [M], the slot of each."""
    for m in range(len(ids)):
        slot = _slot(ids[m], len(slots))
        while slots[slot] != EMPTY:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = ids[m]
        at[m] = slot


@kernel
def find_rows(ids, lookup):
    """Replaces each of `ids`, int64 [n], by the position of its row, in words; a missing id by that of the defaults."""
    size, step = lookup[SIZE], lookup[STEP]
    if lookup[IDS] == 0:
        low, defaults = lookup[LOW], np.uint64(size)
        for i in range(len(ids)):
            # Unsigned, an id below `low` becomes a large number: one comparison checks both ends.
            ids[i] = np.int64(min(np.uint64(ids[i] - low), defaults)) * step
        return
    slots = carray(pointer(lookup[IDS]), (size,), np.int64)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            prefetch_line(lookup[IDS] + 8 * _slot(ids[i + _AHEAD], size))
        id = ids[i]
        slot = _slot(id, size)
        while slots[slot] != id and slots[slot] != EMPTY:
            slot = (slot + 1) & (size - 1)
        ids[i] = (size if slots[slot] == EMPTY else slot) * step


@kernel
def take(target, rows, lookup, itemsize):
    """Copy the values of `rows`, the results of `find_rows`, to `target`: int64 of 8 bytes, or float32 of 4 bytes.

    The loops have no branch, so that the processor has many loads in flight.
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


@kernel
def take_two(target, rows, lookup, second_target, second):
    """`take` for two int64 columns of 4 bytes in one table: a row that is in no cache is loaded once for both."""
    first_words = carray(pointer(lookup[VALUES]), (1 << 60,), np.int32)
    second_words = carray(pointer(second[VALUES]), (1 << 60,), np.int32)
    for i in range(len(rows)):
        row = np.uint64(rows[i])
        stream(target + 8 * i, np.int64(first_words[row]))
        stream(second_target + 8 * i, np.int64(second_words[row]))
