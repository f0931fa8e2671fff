"""Ids to values of a dimension table (numba, nogil, no Python objects).

Where the ids lie close together the table is an array by id, else a hash table with open addressing: M ids in S places,
S a power of two of at least 2 M, probed one after another. All values of an id lie side by side, so that the second
field finds in the cache what the first has brought.
"""

import numpy as np
from numba import carray

from fsdata.kernels.memory import ask_for, pointer
from fsranks.libraries import kernel

# The table of one column, int64 [NUMBERS]: addresses of live memory.
LOW = 0  # of an array by id: the id of its first value
SIZE = 1  # values, or places
IDS = 2  # address of int64 [S], the id at each place; 0: an array by id
VALUES = 3  # address of the first value
WIDTH = 4  # bytes of each; values of 4 bytes become int64 if those of the field have 8
STRIDE = 5  # bytes from one value to the next
DEFAULT = 6  # bits of the value of ids that are not there
TABLE = 7  # address of the rows of the table: the columns of one table find an id at one place
NUMBERS = 8

EMPTY = -(2**63)  # no id
_AHEAD = 16  # places that are asked for before they are needed


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
def find_places(ids, lookup, places):
    """Written: places int64 [n], the place of the values of each of `ids`, int64 [n], -1 where they are not there. Both
    may be one array."""
    size = lookup[SIZE]
    if lookup[IDS] == 0:
        low = lookup[LOW]
        for i in range(len(ids)):
            place = ids[i] - low  # of ids far apart it wraps around, and is not inside
            places[i] = place if 0 <= place < size else np.int64(-1)
        return
    known = carray(pointer(lookup[IDS]), (size,), np.int64)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            ask_for(lookup[IDS] + 8 * _place(ids[i + _AHEAD], size))
        id = ids[i]
        place = _place(id, size)
        while known[place] != id and known[place] != EMPTY:
            place = (place + 1) & (size - 1)
        places[i] = np.int64(-1) if known[place] == EMPTY else place


@kernel
def take(target, places, lookup, itemsize):
    """The values at `places`, int64 [n], to `target`: of 8 bytes, int64; of 4 bytes, float32."""
    first, stride, count = lookup[VALUES], lookup[STRIDE], len(places)
    wide, narrow = carray(pointer(target), (count,), np.int64), carray(pointer(target), (count,), np.int32)
    for i in range(count):
        if i + _AHEAD < count:
            ask_for(first + max(places[i + _AHEAD], 0) * stride)
        at = first + places[i] * stride
        if lookup[WIDTH] == 8:
            wide[i] = lookup[DEFAULT] if places[i] < 0 else carray(pointer(at), (1,), np.int64)[0]
        else:
            value = np.int32(lookup[DEFAULT]) if places[i] < 0 else carray(pointer(at), (1,), np.int32)[0]
            if itemsize == 8:
                wide[i] = value
            else:
                narrow[i] = value
