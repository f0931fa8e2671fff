"""Kernel: stable descending order of integer costs by a radix sort.

A comparison sort of a global batch would take longer than everything else in a plan, and numpy's default sort breaks
ties differently on different CPUs. A byte-wise counting sort does neither: O(N) per digit of 11 bits, and only the
digits in which the costs differ are visited.
"""

import numpy as np

from fsranks.libraries import kernel

_BITS = 11
_BUCKETS = 1 << _BITS


@kernel
def descending(cost):
    """Positions of `cost` (int64[N], not negative) from the dearest to the cheapest, ties by position. int32[N]."""
    n = cost.size
    order = np.empty(n, np.int32)
    key = np.empty(n, np.int64)
    if n == 0:
        return order
    largest = cost[0]
    smallest = cost[0]
    for i in range(n):
        largest = max(largest, cost[i])
        smallest = min(smallest, cost[i])
    for i in range(n):
        order[i] = i
        key[i] = largest - cost[i]
    spread = largest - smallest
    next_order = np.empty(n, np.int32)
    next_key = np.empty(n, np.int64)
    place = np.empty(_BUCKETS, np.int64)
    shift = 0
    while shift < 63 and (spread >> shift) > 0:
        place[:] = 0
        for i in range(n):
            place[(key[i] >> shift) & (_BUCKETS - 1)] += 1
        total = 0
        for bucket in range(_BUCKETS):
            here = place[bucket]
            place[bucket] = total
            total += here
        for i in range(n):
            bucket = (key[i] >> shift) & (_BUCKETS - 1)
            to = place[bucket]
            place[bucket] = to + 1
            next_order[to] = order[i]
            next_key[to] = key[i]
        order, next_order = next_order, order
        key, next_key = next_key, key
        shift += _BITS
    return order
