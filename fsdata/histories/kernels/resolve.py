"""Values of columns that have pools or are looked up: found as they are copied (numba, nogil, no Python objects).

A row of a table with pools begins behind its last event, and `histories` says which ones before that are its own. Of a
field of a dimension table, the column has the ids, and `lookups` says which values stand for them.

Letters: B blocks, F fields, N rows.
"""

import numpy as np
from numba import carray

from fsdata.histories.kernels import histories, lookups
from fsdata.kernels.columns import (
    INT8,
    INT16,
    INT32,
    RESOLVED,
    RUNS,
    SAME,
    STORED,
    STORED_BYTES,
    UINT16,
    UINT32,
    fetch,
    is_resolved,
)
from fsdata.kernels.memory import pointer, stream
from fsdata.kernels.runs import AT, COLUMNS, FORM, PLAIN
from fsranks.libraries import kernel

# What a column refers to, int64 [SIZE].
POOLS = 0  # address of pools, see `histories`; 0 without
LOOKUP = 1  # from here on a table of `lookups`; zeros without
SIZE = LOOKUP + lookups.NUMBERS


@kernel(inline="always")
def _picked(target, of, places, near):
    if near:
        to = carray(pointer(target), (len(places),), np.int64)
        for i in range(len(places)):
            to[i] = of[places[i]]
    else:
        for i in range(len(places)):
            stream(target + 8 * i, np.int64(of[places[i]]))


@kernel
def _pick(target, column, begin, places, itemsize, near):
    """The values at `places`, uint32 [n], from value `begin` on, of a column whose values lie in one run in memory.

    near: int64 that are needed soon stay in the cache.
    """
    run = carray(pointer(column[RUNS]), (COLUMNS,), np.int64)
    stored = column[STORED] if run[FORM] == PLAIN else SAME
    at, most = run[AT] + begin * (STORED_BYTES[stored] if stored else itemsize), 1 << 32
    if itemsize == 4:
        to, of = carray(pointer(target), (len(places),), np.int32), carray(pointer(at), (most,), np.int32)
        for i in range(len(places)):
            to[i] = of[places[i]]
    elif stored == SAME:
        _picked(target, carray(pointer(at), (most,), np.int64), places, near)
    elif stored == INT32:
        _picked(target, carray(pointer(at), (most,), np.int32), places, near)
    elif stored == UINT32:
        _picked(target, carray(pointer(at), (most,), np.uint32), places, near)
    elif stored == INT16:
        _picked(target, carray(pointer(at), (most,), np.int16), places, near)
    elif stored == INT8:
        _picked(target, carray(pointer(at), (most,), np.int8), places, near)
    elif stored == UINT16:
        _picked(target, carray(pointer(at), (most,), np.uint16), places, near)
    else:
        _picked(target, carray(pointer(at), (most,), np.uint8), places, near)


@kernel(called_with="int64[:, :, ::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1]")
def gather_fields(columns, block, start, length, itemsize, target):
    """Copy the fields that some block resolves, as `fsdata.kernels.columns.gather_fields` copies the others.

    Row after row, so that fields of one sequence share what merging has found, and find the ids that they look up in
    the cache.
    """
    fields = np.empty(len(target), np.int64)
    number, longest = 0, np.int64(0)
    for f in range(len(target)):
        if target[f] and is_resolved(columns, f):
            fields[number] = f
            number += 1
            for n in range(len(block)):
                longest = max(longest, length[f, n])
    to, near = target.copy(), np.zeros(len(target), np.int64)
    seen, ids = np.empty(longest, np.uint32), np.empty(longest, np.int64)
    ids_at, id_bytes = np.int64(ids.ctypes.data), np.int64(8)  # of other types, `fetch` and `_pick` are compiled twice
    end, left = np.empty(64, np.int64), np.empty(64, np.int64)
    for n in range(len(block)):
        # Found last for this row: events by these pools, the rows of this table for the ids of these runs.
        merged, runs, table = np.int64(0), np.int64(0), np.int64(0)
        begin, count, of_key = np.int64(0), np.int64(0), np.int64(0)
        for i in range(number):
            f = fields[i]
            column, some, size = columns[block[n], f], length[f, n], itemsize[f]
            if some <= 0:
                continue
            if column[RESOLVED] == 0:
                near[f] = fetch(to[f], column, start[f, n], some, size, near[f])
                to[f] += some * size
                continue
            by = carray(pointer(column[RESOLVED]), (SIZE,), np.int64)
            pools, lookup = by[POOLS], by[LOOKUP:]
            if (start[f, n], some) != (begin, count):
                merged, runs, table = np.int64(0), np.int64(0), np.int64(0)
                begin, count = start[f, n], some
            if pools and pools != merged:
                merged = pools
                of_pools = carray(pointer(pools), (1 << 10,), np.int64)
                of_key = histories.merge_pools(of_pools, begin, seen[:count], end, left)
            looked_up = lookup[lookups.TABLE] != 0
            if not looked_up:
                _pick(to[f], column, of_key, seen[:some], size, looked_up)
            else:
                if (column[RUNS], lookup[lookups.TABLE]) != (runs, table):
                    runs, table = column[RUNS], lookup[lookups.TABLE]
                    if pools:
                        _pick(ids_at, column, of_key, seen[:some], id_bytes, looked_up)
                    else:
                        near[f] = fetch(ids_at, column, begin, some, id_bytes, near[f])
                    lookups.find_rows(ids[:some], lookup)
                lookups.take(to[f], ids[:some], lookup, size)
            to[f] += some * size


@kernel(called_with="int64[:, :, ::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1]")
def gather_samples(columns, block, start, length, itemsize, order, target):
    """Copy the values of columns that are resolved, as `fsdata.kernels.columns.gather_samples` copies the others.

    Events of pools come here where some other source has no histories: else their references travel in their place.
    """
    for f in range(len(target)):
        near, ids, seen = np.int64(0), np.empty(0, np.int64), np.empty(0, np.uint32)
        end, left = np.empty(64, np.int64), np.empty(64, np.int64)
        for m in range(len(order)):
            n = order[m]
            column, some, size = columns[block[n], f], length[f, n], itemsize[f]
            if target[f, m] == 0 or some <= 0 or column[RESOLVED] == 0:
                continue
            by = carray(pointer(column[RESOLVED]), (SIZE,), np.int64)
            pools, lookup = by[POOLS], by[LOOKUP:]
            looked_up = lookup[lookups.TABLE] != 0
            if looked_up and len(ids) < some:
                ids = np.empty(2 * some, np.int64)
            at, width = (np.int64(ids.ctypes.data), np.int64(8)) if looked_up else (target[f, m], size)
            if pools:
                if len(seen) < some:
                    seen = np.empty(2 * some, np.uint32)
                of_pools = carray(pointer(pools), (1 << 10,), np.int64)
                of_key = histories.merge_pools(of_pools, start[f, n], seen[:some], end, left)
                _pick(at, column, of_key, seen[:some], width, looked_up)
            else:
                near = fetch(at, column, start[f, n], some, width, near)
            if looked_up:
                lookups.find_rows(ids[:some], lookup)
                lookups.take(target[f, m], ids[:some], lookup, size)
