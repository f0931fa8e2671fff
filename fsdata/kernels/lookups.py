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
NUMBERS = 7

EMPTY = -(2**63)  # no id
_AHEAD = 16  # ids whose values are asked for before they are needed


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
def _find(lookup, id):
    """The place of the value of an id, -1 if it is not there."""
    if lookup[IDS] == 0:
        place = id - lookup[LOW]
        return place if 0 <= place < lookup[SIZE] else np.int64(-1)
    if id == EMPTY:
        return np.int64(-1)
    places = carray(pointer(lookup[IDS]), (lookup[SIZE],), np.int64)
    place = _place(id, lookup[SIZE])
    while places[place] != id:
        if places[place] == EMPTY:
            return np.int64(-1)
        place = (place + 1) & (lookup[SIZE] - 1)
    return place


@kernel
def _ask(lookup, id):
    """Let the processor bring closer what belongs to an id."""
    if lookup[IDS]:
        ask_for(lookup[IDS] + 8 * _place(id, lookup[SIZE]))
        return
    place = id - lookup[LOW]
    if 0 <= place < lookup[SIZE]:
        ask_for(lookup[VALUES] + place * lookup[STRIDE])


@kernel
def look_up(target, ids, lookup, itemsize):
    """The values of `ids`, int64 [n], to `target`: of 8 bytes, int64; of 4 bytes, float32."""
    first, width, stride, count = lookup[VALUES], lookup[WIDTH], lookup[STRIDE], len(ids)
    wide, narrow = carray(pointer(target), (count,), np.int64), carray(pointer(target), (count,), np.int32)
    for i in range(count):
        if i + _AHEAD < count:
            _ask(lookup, ids[i + _AHEAD])
        place = _find(lookup, ids[i])
        at = first + place * stride
        if width == 8:
            wide[i] = lookup[DEFAULT] if place < 0 else carray(pointer(at), (1,), np.int64)[0]
        else:
            value = np.int32(lookup[DEFAULT]) if place < 0 else carray(pointer(at), (1,), np.int32)[0]
            if itemsize == 8:
                wide[i] = value
            else:
                narrow[i] = value
