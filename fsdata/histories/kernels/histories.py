"""Histories (numba, nogil, no Python objects): the events of a key that count for a row, and their positions.

A history table stores the events of one key after another: K keys, E events, `offsets` int64 [K + 1]. N rows look up
keys. P pools.

A *pool* is one kind of events. Every event has a mask of its pools, and every pool has an index: the positions of its
events inside each history, ascending. A row sees the last `cap` events of each pool before it. Their number follows
from binary searches. The events themselves are determined backwards from the row: if the row sees a large share of the
events, event by event from the mask, else by merging the indices of the pools. The cost of a row therefore depends on
the events that it sees, not on how far back they are. An event may be in several pools; the row sees it once, if it is
among the last `cap` of any of them.
"""

import numpy as np
from numba import carray

from fsdata.kernels.memory import pointer, word_at, write_sums
from fsranks.libraries import kernel

# The table of the pools of one history table, int64 [HEAD + 3 P]: addresses of live memory.
KEYS = 0  # K
OFFSETS = 1  # address of int64 [K + 1], the events of each key
POOLS = 2  # P
DISJOINT = 3  # 1: no event is in two pools
MASK = 4  # address of uint8 [E]: bit p is set for events of pool p
HEAD = 5
# Then three numbers for each pool.
PLACES = 0  # address of its index, uint32, the positions of its events inside their histories
BOUNDS = 1  # address of int64 [K + 1], the first entry of each key in the index
CAP = 2

_BLOCK = 8  # masks that are read together: the bytes of a word
_DENSE = 16  # the mask is read if there are at most so many events for each one that the row may see
_EVERY_BYTE, _LOW_BITS, _HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (1, 0x7F, 0x80))
_TO_ONE_BYTE = np.uint64(0x0102040810204080)  # product with bit 0 of every byte: its highest byte has all of these bits
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ONES = _BITS.sum(axis=1)
# For every value of a byte the positions of its ones, at the end of 8 bytes; the bytes before them are not used.
_PLACES_AT_END = np.argsort(_BITS, axis=1, kind="stable").astype(np.uint8).view("<u8")[:, 0]


@kernel(called_with="int64[::1], int64[::1]")
def find_unsorted(times: np.ndarray, offsets: np.ndarray) -> int:
    """The first event that is earlier than its predecessor of the same key, -1 if there is none."""
    for k in range(len(offsets) - 1):
        for e in range(offsets[k] + 1, offsets[k + 1]):
            if times[e] < times[e - 1]:
                return e
    return -1


@kernel
def _first_not_below(values: np.ndarray, low: int, high: int, limit: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if values[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(called_with="Array(int64, 1, 'C', True), int64[::1], boolean[::1], int64[::1]")
def find_keys(keys: np.ndarray, wanted: np.ndarray, null: np.ndarray, key: np.ndarray) -> None:
    """Writes key: int64 [N], the index of each wanted key in `keys`, which ascend; -1 if it is null or missing."""
    for n in range(len(wanted)):
        k = _first_not_below(keys, 0, len(keys), wanted[n])
        key[n] = k if not null[n] and k < len(keys) and keys[k] == wanted[n] else -1


@kernel(
    called_with="int64[::1], Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), int64[::1], int64[::1], int64[::1]"
)
def find_windows(
    key: np.ndarray, offsets: np.ndarray, times: np.ndarray, before: np.ndarray, first: np.ndarray, stop: np.ndarray
) -> None:
    """Writes first, stop: int64 [N], the events of each row's key with a time below `before`; equal without events.

    key: int64 [N] of `find_keys`; times: int64 [E], ascending inside a key; before: int64 [N].
    """
    for n in range(len(key)):
        k = key[n]
        first[n] = stop[n] = 0
        if k >= 0:
            first[n] = offsets[k]
            stop[n] = _first_not_below(times, offsets[k], offsets[k + 1], before[n])


@kernel(called_with="Array(int64, 1, 'C', True), int64[::1], int64, boolean, int64[::1], int64[::1], int64[::1]")
def cut_windows(
    known_at: np.ndarray,
    before: np.ndarray,
    max_length: int,
    keep_last: bool,
    first: np.ndarray,
    stop: np.ndarray,
    length: np.ndarray,
) -> None:
    """Truncate each window to the last or first `max_length` (-1: all) events that count.

    known_at: int64 [E], an event counts if it is below before[n]; empty: all count. Changes first, stop: int64 [N].
    Writes length: int64 [N], number of events in the window that count.
    """
    for n in range(len(first)):
        size = stop[n] - first[n]
        most = size if max_length < 0 else min(max_length, size)
        if len(known_at) == 0:
            length[n] = most
            if keep_last:
                first[n] = stop[n] - most
            else:
                stop[n] = first[n] + most
            continue
        # `known_at` is not sorted: the window grows event by event from the kept end until enough events count.
        number = 0
        if keep_last:
            e = stop[n]
            while e > first[n] and number < most:
                e -= 1
                number += known_at[e] < before[n]
            first[n] = e
        else:
            e = first[n]
            while e < stop[n] and number < most:
                number += known_at[e] < before[n]
                e += 1
            stop[n] = e
        length[n] = number


@kernel(called_with="Array(int64, 1, 'C', True), int64[::1], int64[::1], int64[::1], int64[::1], int64[::1]")
def events_that_count(
    known_at: np.ndarray, rows: np.ndarray, before: np.ndarray, first: np.ndarray, stop: np.ndarray, events: np.ndarray
) -> None:
    """Writes events: int64, those of the windows of `rows` that count, row after row."""
    at = 0
    for n in rows:
        for e in range(first[n], stop[n]):
            if known_at[e] < before[n]:
                events[at] = e
                at += 1


@kernel(called_with="Array(uint8, 1, 'C', True), uint8, Array(int64, 1, 'C', True), int64[::1]")
def count_pool(mask: np.ndarray, bit: int, offsets: np.ndarray, bounds: np.ndarray) -> None:
    """Writes bounds: int64 [K + 1], the number of events of the pool before each key. mask: uint8 [E]."""
    bounds[0] = 0
    for k in range(len(offsets) - 1):
        number = 0
        for e in range(offsets[k], offsets[k + 1]):
            number += (mask[e] & bit) != 0
        bounds[k + 1] = bounds[k] + number


@kernel(called_with="Array(uint8, 1, 'C', True), uint8, Array(int64, 1, 'C', True), uint32[::1]")
def find_pool(mask: np.ndarray, bit: int, offsets: np.ndarray, places: np.ndarray) -> None:
    """Writes places: uint32, the positions of the events of a pool inside their histories, key after key."""
    at = 0
    for k in range(len(offsets) - 1):
        for e in range(offsets[k], offsets[k + 1]):
            if (mask[e] & bit) != 0:
                places[at] = e - offsets[k]
                at += 1


@kernel
def _ends(pools, k, first, stop, end, left):
    """Writes the end (address) of each pool's index entries of key k below position `stop`, and how many of the entries
    before it a row may see: those at position `first` or later, at most the cap."""
    for p in range(pools[POOLS]):
        pool = HEAD + 3 * p
        bounds = carray(pointer(pools[pool + BOUNDS] + 8 * k), (2,), np.int64)
        size = bounds[1] - bounds[0]
        at = pools[pool + PLACES] + 4 * bounds[0]
        places = carray(pointer(at), (size,), np.uint32)
        high = _first_not_below(places, np.int64(0), size, stop)
        end[p] = at + 4 * high
        left[p] = high - _first_not_below(places, max(high - pools[pool + CAP], np.int64(0)), high, first)


@kernel
def _last_place(end):
    """The last entry of an index that ends at an address."""
    return np.int64(carray(pointer(end - 4), (1,), np.uint32)[0])


@kernel
def _left_below(end, left, place):
    """How many of the `left` entries that end at an address are below `place`."""
    return _first_not_below(carray(pointer(end - 4 * left), (left,), np.uint32), np.int64(0), left, place)


@kernel
def _pop_latest(end, left, pools):
    """The position of the latest event that is left in any pool, -1 without one. It is removed from all pools: an event
    in several pools counts once."""
    latest = np.int64(-1)
    for p in range(pools):
        if left[p] > 0:
            latest = max(latest, _last_place(end[p]))
    for p in range(pools):
        if left[p] > 0 and _last_place(end[p]) == latest:
            end[p] -= 4
            left[p] -= 1
    return latest


@kernel(called_with="int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1]")
def merged_lengths(
    pools: np.ndarray, key: np.ndarray, most: int, first: np.ndarray, stop: np.ndarray, length: np.ndarray
) -> None:
    """Writes length: int64 [N], the number of events of all pools that each row sees, at most `most` (-1: all).

    key: int64 [N], the key of each row, -1 without one; first, stop: int64 [N], the events that it may see.
    """
    offsets = carray(pointer(pools[OFFSETS]), (pools[KEYS] + 1,), np.int64)
    end, left = np.empty(pools[POOLS], np.int64), np.empty(pools[POOLS], np.int64)
    for n in range(len(key)):
        length[n] = 0
        if key[n] < 0:
            continue
        _ends(pools, key[n], first[n] - offsets[key[n]], stop[n] - offsets[key[n]], end, left)
        number = left.sum()
        if not pools[DISJOINT]:  # the sum counts an event in two pools twice: merge them
            number = np.int64(0)
            while _pop_latest(end, left, pools[POOLS]) >= 0:
                number += 1
        length[n] = number if most < 0 else min(number, most)


@kernel(inline="always")
def _nonzero_bytes(word):
    """Bit i of the result: whether byte i of a word is not 0."""
    # The sum sets the highest bit of a byte whose lower bits are not all 0; it never carries into the next byte.
    high = (((word & _LOW_BITS) + _LOW_BITS) | word) & _HIGH_BITS
    return ((high >> np.uint64(7)) * _TO_ONE_BYTE) >> np.uint64(56)


@kernel
def merge_pools(pools, stop, seen, end, left):
    """Writes the last events before event `stop` that a row of its key sees. Returns the first event of the key.

    seen: uint32, their positions inside the history, ascending. Its length is the number of events, see
    `merged_lengths`. end, left: int64 [P], scratch memory.
    """
    at = len(seen)
    offsets = carray(pointer(pools[OFFSETS]), (pools[KEYS] + 1,), np.int64)
    k = _first_not_below(offsets, np.int64(0), pools[KEYS] + 1, stop) - 1  # the row sees an event, so offsets[k] < stop
    begin, place = offsets[k], stop - offsets[k]
    mask_at, seen_at = pools[MASK] + begin, np.int64(seen.ctypes.data)
    mask = carray(pointer(mask_at), (place,), np.uint8)
    _ends(pools, k, np.int64(0), place, end, left)
    # `seen` is filled from its end: seen[at:] is written, with the events at or after `place`.
    while at > 0:
        # From `place` down to `low` every pool with bits in `bits` still has events left, so the mask alone says which
        # events the row sees. At `low` one pool has reached its cap or its begin, and the loop starts again.
        low, visible, bits, active, last = np.int64(0), np.int64(0), 0, 0, 0
        for p in range(pools[POOLS]):
            if left[p] > 0:
                low, visible = max(low, _last_place(end[p] - 4 * (left[p] - 1))), visible + left[p]
                bits, active, last = bits | 1 << p, active + 1, p
        visible = min(visible, np.int64(at))
        if active == 1:  # its index is the result
            places = carray(pointer(end[last] - 4 * visible), (visible,), np.uint32)
            for i in range(visible):
                seen[at - visible + i] = places[i]
            return begin
        if place - low > _DENSE * visible:  # few events are seen: merge the indices
            while at > 0 and place > low:
                place = _pop_latest(end, left, pools[POOLS])
                at -= 1
                seen[at] = place
            continue
        # Many events are seen: read 8 masks at once. `write_sums` writes 8 positions of which the last ones count; the
        # next writes overwrite the others. `at >= _BLOCK` keeps them inside `seen`.
        bits_of_bytes = np.uint64(bits) * _EVERY_BYTE
        while place - low >= _BLOCK and at >= _BLOCK:
            place -= _BLOCK
            ones = _nonzero_bytes(word_at(mask_at + place) & bits_of_bytes)
            write_sums(seen_at + 4 * (at - _BLOCK), np.uint32(place), _PLACES_AT_END[ones])
            at -= _ONES[ones]
        while place > low and at > 0:
            place -= 1
            seen[at - 1] = place  # without a branch: overwritten if the event is not seen
            at -= (mask[place] & bits) != 0
        # The mask was read without the indices: move their ends to `place`.
        for p in range(pools[POOLS]):
            if left[p] > 0:
                below = _left_below(end[p], left[p], place)
                end[p] -= 4 * (left[p] - below)
                left[p] = below
    return begin


KERNELS = (
    *(find_keys, find_windows, cut_windows, find_unsorted),
    *(events_that_count, count_pool, find_pool, merged_lengths),
)
"""The kernels that a table of histories calls."""
