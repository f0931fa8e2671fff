"""Histories as of a time (numba, nogil): which events of a key count for a row, and where they lie.

A history table has the events of one key after another: K keys, E events, `offsets` int64 [K + 1]. N rows look up.
"""

import numpy as np

from fsranks.libraries import kernel


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
