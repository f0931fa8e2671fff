"""Histories (numba, nogil, no Python objects): which events of a key count for a row, and where they lie.

A history table has the events of one key after another: K keys, E events, `offsets` int64 [K + 1]. N rows look up.
P pools.

A *pool* is one kind of events. A mask says of every event which pools it is in, and for every pool the places of its
events inside each history are kept, ascending. A row sees the last `cap` events of each pool that come before it. How
many these are together follows from searches. Which they are is found backwards from the row: where a good part of the
events are seen, event by event from the mask, else by merging the places of the pools. So a row costs what it keeps,
however far back that lies. An event may be in several pools; it is seen once, if it is among the last of one of them.
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
# Then of each pool.
PLACES = 0  # address of uint32, the places of its events inside their histories
BOUNDS = 1  # address of int64 [K + 1], those of each key
CAP = 2

_BLOCK = 8  # events looked at together: the bytes of a word
_DENSE = 16  # events looked at for each that the row may keep, up to which the mask is read
_EVERY_BYTE, _LOW_BITS, _HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (1, 0x7F, 0x80))
_TO_ONE_BYTE = np.uint64(0x0102040810204080)  # times bit 0 of every byte: the highest byte has all of them
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ONES = _BITS.sum(axis=1)
# Of a byte, the places of its ones as the last of 8 bytes; those before them are overwritten.
_PLACES_AT_END = np.argsort(_BITS, axis=1, kind="stable").astype(np.uint8).view("<u8")[:, 0]


@kernel(called_with="int64[::1], int64[::1]")
def find_unsorted(times: np.ndarray, offsets: np.ndarray) -> int:
    """The first event that is earlier than the one before it of the same key, -1 if there is none."""
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
def find_keys(keys: np.ndarray, wanted: np.ndarray, null: np.ndarray, found: np.ndarray) -> None:
    """Written: found int64 [N], the place of each wanted key among `keys`, ascending; -1 if null or not there."""
    for n in range(len(wanted)):
        k = _first_not_below(keys, 0, len(keys), wanted[n])
        found[n] = k if not null[n] and k < len(keys) and keys[k] == wanted[n] else -1


@kernel(
    called_with="int64[::1], Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), int64[::1], int64[::1], int64[::1]"
)
def find_windows(
    found: np.ndarray, offsets: np.ndarray, times: np.ndarray, before: np.ndarray, first: np.ndarray, stop: np.ndarray
) -> None:
    """The events of each row's key with a time below `before`.

    found: int64 [N] as of `find_keys`; times: int64 [E], ascending inside a key; before: int64 [N].
    Written: first, stop int64 [N], events; equal where there are none.
    """
    for n in range(len(found)):
        k = found[n]
        first[n] = stop[n] = 0
        if k >= 0:
            first[n] = offsets[k]
            stop[n] = _first_not_below(times, offsets[k], offsets[k + 1], before[n])


@kernel(called_with="Array(int64, 1, 'C', True), int64[::1], int64, boolean, int64[::1], int64[::1], int64[::1]")
def cut_windows(
    known: np.ndarray,
    before: np.ndarray,
    max_length: int,
    keep_last: bool,
    first: np.ndarray,
    stop: np.ndarray,
    length: np.ndarray,
) -> None:
    """Leave at most `max_length` (-1: all) events at one end of each window; of those that count.

    known: int64 [E], events count where it is below before[n] too; empty: all count.
    Changed: first, stop int64 [N]. Written: length int64 [N], how many inside count.
    """
    for n in range(len(first)):
        size = stop[n] - first[n]
        most = size if max_length < 0 else min(max_length, size)
        if len(known) == 0:
            length[n] = most
            if keep_last:
                first[n] = stop[n] - most
            else:
                stop[n] = first[n] + most
            continue
        number = 0
        if keep_last:
            e = stop[n]
            while e > first[n] and number < most:
                e -= 1
                number += known[e] < before[n]
            first[n] = e
        else:
            e = first[n]
            while e < stop[n] and number < most:
                number += known[e] < before[n]
                e += 1
            stop[n] = e
        length[n] = number


@kernel(called_with="Array(int64, 1, 'C', True), int64[::1], int64[::1], int64[::1], int64[::1], int64[::1]")
def events_that_count(
    known: np.ndarray, rows: np.ndarray, before: np.ndarray, first: np.ndarray, stop: np.ndarray, events: np.ndarray
) -> None:
    """Written: events int64, those of the windows of `rows` that count, row after row."""
    at = 0
    for n in rows:
        for e in range(first[n], stop[n]):
            if known[e] < before[n]:
                events[at] = e
                at += 1


@kernel(called_with="Array(uint8, 1, 'C', True), uint8, Array(int64, 1, 'C', True), int64[::1]")
def count_pool(mask: np.ndarray, bit: int, offsets: np.ndarray, bounds: np.ndarray) -> None:
    """Written: bounds int64 [K + 1], where the events of each key begin among those of the pool. mask: uint8 [E]."""
    bounds[0] = 0
    for k in range(len(offsets) - 1):
        number = 0
        for e in range(offsets[k], offsets[k + 1]):
            number += (mask[e] & bit) != 0
        bounds[k + 1] = bounds[k] + number


@kernel(called_with="Array(uint8, 1, 'C', True), uint8, Array(int64, 1, 'C', True), uint32[::1]")
def find_pool(mask: np.ndarray, bit: int, offsets: np.ndarray, places: np.ndarray) -> None:
    """Written: places uint32, of the events of a pool inside their histories, key after key."""
    at = 0
    for k in range(len(offsets) - 1):
        for e in range(offsets[k], offsets[k + 1]):
            if (mask[e] & bit) != 0:
                places[at] = e - offsets[k]
                at += 1


@kernel
def _ends(pools, k, first, stop, end, left):
    """Of each pool, where its events of key k before place `stop` end (address), and how many of them a row may see:
    those at place `first` or behind it, at most the cap."""
    for p in range(pools[POOLS]):
        of = HEAD + 3 * p
        bounds = carray(pointer(pools[of + BOUNDS] + 8 * k), (2,), np.int64)
        size = bounds[1] - bounds[0]
        at = pools[of + PLACES] + 4 * bounds[0]
        places = carray(pointer(at), (size,), np.uint32)
        high = _first_not_below(places, np.int64(0), size, stop)
        end[p] = at + 4 * high
        left[p] = high - _first_not_below(places, max(high - pools[of + CAP], np.int64(0)), high, first)


@kernel
def _before(address):
    """The place that ends at an address."""
    return np.int64(carray(pointer(address - 4), (1,), np.uint32)[0])


@kernel
def _left_below(end, left, place):
    """How many of the `left` places that end at an address are below `place`."""
    return _first_not_below(carray(pointer(end - 4 * left), (left,), np.uint32), np.int64(0), left, place)


@kernel
def _latest(end, left, pools):
    """The place of the latest event that is left in one of the pools, -1 without one; it is taken out of all."""
    latest = np.int64(-1)
    for p in range(pools):
        if left[p] > 0:
            latest = max(latest, _before(end[p]))
    for p in range(pools):
        if left[p] > 0 and _before(end[p]) == latest:
            end[p] -= 4
            left[p] -= 1
    return latest


@kernel(called_with="int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1]")
def merged_lengths(
    pools: np.ndarray, found: np.ndarray, most: int, first: np.ndarray, stop: np.ndarray, length: np.ndarray
) -> None:
    """Written: length int64 [N], how many events of all pools each row sees, at most `most` (-1: all).

    found: int64 [N], the key of each row, -1 without one; first, stop: int64 [N], the events it looks at.
    """
    offsets = carray(pointer(pools[OFFSETS]), (pools[KEYS] + 1,), np.int64)
    end, left = np.empty(pools[POOLS], np.int64), np.empty(pools[POOLS], np.int64)
    for n in range(len(found)):
        length[n] = 0
        if found[n] < 0:
            continue
        _ends(pools, found[n], first[n] - offsets[found[n]], stop[n] - offsets[found[n]], end, left)
        number = left.sum()
        if not pools[DISJOINT]:
            number = np.int64(0)
            while _latest(end, left, pools[POOLS]) >= 0:
                number += 1
        length[n] = number if most < 0 else min(number, most)


@kernel(inline="always")
def _marked(word):
    """The bytes of a word that are not 0, as bits."""
    high = (((word & _LOW_BITS) + _LOW_BITS) | word) & _HIGH_BITS
    return ((high >> np.uint64(7)) * _TO_ONE_BYTE) >> np.uint64(56)


@kernel
def merge_pools(pools, stop, seen, end, left):
    """The last events before event `stop` that a row of its key sees, as many as `seen` has room for. -> the first
    event of the key.

    Written: seen uint32, their places inside the history, ascending. There are as many, see `merged_lengths`. end,
    left: int64 [P], to work with.
    """
    at = len(seen)
    offsets = carray(pointer(pools[OFFSETS]), (pools[KEYS] + 1,), np.int64)
    k = _first_not_below(offsets, np.int64(0), pools[KEYS] + 1, stop) - 1  # an event of the key is before
    begin, place = offsets[k], stop - offsets[k]
    mask_at, seen_at = pools[MASK] + begin, np.int64(seen.ctypes.data)
    mask = carray(pointer(mask_at), (place,), np.uint8)
    _ends(pools, k, np.int64(0), place, end, left)
    while at > 0:
        # Down to `low` the pools that are seen stay the same: then one of them has no event left.
        low, kept, bits, alive, last = np.int64(0), np.int64(0), 0, 0, 0
        for p in range(pools[POOLS]):
            if left[p] > 0:
                low, kept = max(low, _before(end[p] - 4 * (left[p] - 1))), kept + left[p]
                bits, alive, last = bits | 1 << p, alive + 1, p
        kept = min(kept, np.int64(at))
        if alive == 1:
            places = carray(pointer(end[last] - 4 * kept), (kept,), np.uint32)
            for i in range(kept):
                seen[at - kept + i] = places[i]
            return begin
        if place - low > _DENSE * kept:
            while at > 0 and place > low:
                place = _latest(end, left, pools[POOLS])
                at -= 1
                seen[at] = place
            continue
        every = np.uint64(bits) * _EVERY_BYTE
        while place - low >= _BLOCK and at >= _BLOCK:
            place -= _BLOCK
            ones = _marked(word_at(mask_at + place) & every)
            write_sums(seen_at + 4 * (at - _BLOCK), np.uint32(place), _PLACES_AT_END[ones])
            at -= _ONES[ones]
        while place > low and at > 0:
            place -= 1
            seen[at - 1] = place
            at -= (mask[place] & bits) != 0
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
"""Those that a table of histories calls."""
