"""Hash tables over int64 keys (numba, nogil, no Python objects).

A table is int64 [M, 2], M a power of two larger than the number of distinct keys: (key, slot) pairs, found by open
addressing with linear probing. A pair is empty if its slot is below the `floor` that the caller names. So one table
serves many key sets one after another without being cleared.
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _mix(key: int) -> np.uint64:
    """Spread a key over all 64 bits (finalizer of SplitMix64, Steele et al. 2014): strided ids must not cluster."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def _place(table: np.ndarray, key: int, floor: int) -> np.int64:
    """Index of the pair that holds `key`, or of the empty pair where it belongs."""
    mask = np.uint64(table.shape[0] - 1)
    at = _mix(key) & mask
    while table[at, 1] >= floor and table[at, 0] != key:
        at = (at + np.uint64(1)) & mask
    return np.int64(at)


@njit(nogil=True, cache=True)
def first_occurrences(
    keys: np.ndarray,
    lengths: np.ndarray,
    table: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Distinct keys of every segment in order of first occurrence; how many there are in total.

    keys: int64 [N]; lengths: int64 [S], sum N; table: int64 [M, 2], slots all -1, M above the longest segment.
    Written: positions int64 [N], its first U entries; slots int64 [N]; counts int64 [S].
    """
    at = 0
    total = 0
    for s in range(len(lengths)):
        floor = total
        for i in range(at, at + lengths[s]):
            place = _place(table, keys[i], floor)
            if table[place, 1] < floor:
                table[place, 0] = keys[i]
                table[place, 1] = total
                positions[total] = i
                total += 1
            slots[i] = table[place, 1]
        counts[s] = total - floor
        at += lengths[s]
    return total


@njit(nogil=True, cache=True)
def contains(keys: np.ndarray, table: np.ndarray, found: np.ndarray) -> None:
    """Which keys a table of one segment holds. keys: int64 [N]; written: found bool [N]."""
    for i in range(len(keys)):
        found[i] = table[_place(table, keys[i], 0), 1] >= 0


def compile_kernels() -> None:
    """Compile every kernel, or load it from numba's cache; otherwise the first use of a kernel does that."""
    none = np.empty(0, np.int64)
    table = np.full((2, 2), -1, np.int64)
    first_occurrences(none, none, table, none, none, none)
    contains(none, table, np.empty(0, np.bool_))
