"""Copies the values of columns with pools or lookups, which are determined during the copy (numba, nogil, no Python
objects).

In a table with pools, the start of a row is the event after its last one: `histories` determines which events before it
the row sees. For a field of a dimension table, the column has ids, which `lookups` replaces by values.

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

# The table of a resolver, int64 [SIZE], see `columns.RESOLVED`.
POOLS = 0  # address of pools, see `histories`; 0 without
LOOKUP = 1  # from here on the table of a column of `lookups`; zeros without
SIZE = LOOKUP + lookups.NUMBERS

_MOST_POOLS = 64  # of scratch memory; `AsOf` allows fewer


@kernel(inline="always")  # inlined, the loop is compiled for each type
def _gather_int64(target, values, places, cached):
    if cached:
        to = carray(pointer(target), (len(places),), np.int64)
        for i in range(len(places)):
            to[i] = values[places[i]]
    else:
        for i in range(len(places)):
            stream(target + 8 * i, np.int64(values[places[i]]))


@kernel
def _gather(target, column, begin, places, itemsize, cached):
    """Copy the values at `places`, uint32 [n], relative to value `begin`, of a column with one run in memory.

    cached: write int64 through the cache, because they are read again soon (ids of a lookup); otherwise past it, so
    that batches do not evict the tables.
    """
    run = carray(pointer(column[RUNS]), (COLUMNS,), np.int64)
    stored = column[STORED] if run[FORM] == PLAIN else SAME
    at, most = run[AT] + begin * (STORED_BYTES[stored] if stored else itemsize), 1 << 32
    if itemsize == 4:
        to, values = carray(pointer(target), (len(places),), np.int32), carray(pointer(at), (most,), np.int32)
        for i in range(len(places)):
            to[i] = values[places[i]]
    elif stored == SAME:
        _gather_int64(target, carray(pointer(at), (most,), np.int64), places, cached)
    elif stored == INT32:
        _gather_int64(target, carray(pointer(at), (most,), np.int32), places, cached)
    elif stored == UINT32:
        _gather_int64(target, carray(pointer(at), (most,), np.uint32), places, cached)
    elif stored == INT16:
        _gather_int64(target, carray(pointer(at), (most,), np.int16), places, cached)
    elif stored == INT8:
        _gather_int64(target, carray(pointer(at), (most,), np.int8), places, cached)
    elif stored == UINT16:
        _gather_int64(target, carray(pointer(at), (most,), np.uint16), places, cached)
    else:
        _gather_int64(target, carray(pointer(at), (most,), np.uint8), places, cached)


@kernel
def _take_the_same_rows(columns, f, other):
    """Whether two columns of a block have the same ids and the same dimension table, and 4 bytes for each value in it.

    The fields of one `Lookup` are of one sequence, so both have the same events.
    """
    if columns[other, RESOLVED] == 0 or columns[other, RUNS] != columns[f, RUNS]:
        return False
    one = carray(pointer(columns[f, RESOLVED]), (SIZE,), np.int64)
    two = carray(pointer(columns[other, RESOLVED]), (SIZE,), np.int64)
    same = one[POOLS] == two[POOLS] and one[LOOKUP + lookups.TABLE] == two[LOOKUP + lookups.TABLE]
    return same and one[LOOKUP + lookups.WIDTH] == 4 and two[LOOKUP + lookups.WIDTH] == 4


@kernel(called_with="int64[:, :, ::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1]")
def gather_fields(columns, block, start, length, itemsize, target):
    """Copy the fields that at least one block resolves; `fsdata.kernels.columns.gather_fields` copies the others.

    Row after row, all fields of a row together: the fields of a sequence share the result of merging pools, and the
    fields of a dimension table share the rows of the ids.
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
    # int64, like the arguments of the other calls: with other types numba would compile `fetch` and `_gather` twice.
    ids_at, id_bytes = np.int64(ids.ctypes.data), np.int64(8)
    end, left = np.empty(_MOST_POOLS, np.int64), np.empty(_MOST_POOLS, np.int64)
    for n in range(len(block)):
        # What `seen` and `ids` contain of this row: the events (begin, count) merged from the pools at address
        # `merged`; the rows in the dimension table at address `table` of the ids of the column with the runs at `runs`.
        merged, runs, table = np.int64(0), np.int64(0), np.int64(0)
        begin, count, first_event = np.int64(0), np.int64(0), np.int64(0)
        taken = np.int64(-1)  # the field whose values were copied with those of the field before it
        for i in range(number):
            f = fields[i]
            column, values, size = columns[block[n], f], length[f, n], itemsize[f]
            if values <= 0 or f == taken:
                continue
            if column[RESOLVED] == 0:
                near[f] = fetch(to[f], column, start[f, n], values, size, near[f])
                to[f] += values * size
                continue
            resolver = carray(pointer(column[RESOLVED]), (SIZE,), np.int64)
            pools, lookup = resolver[POOLS], resolver[LOOKUP:]
            if (start[f, n], values) != (begin, count):  # a field of another sequence
                merged, runs, table = np.int64(0), np.int64(0), np.int64(0)
                begin, count = start[f, n], values
            if pools and pools != merged:
                merged = pools
                pool_table = carray(pointer(pools), (1 << 10,), np.int64)
                first_event = histories.merge_pools(pool_table, begin, seen[:count], end, left)
            looked_up = lookup[lookups.TABLE] != 0
            if not looked_up:
                _gather(to[f], column, first_event, seen[:values], size, looked_up)
            else:
                if (column[RUNS], lookup[lookups.TABLE]) != (runs, table):
                    runs, table = column[RUNS], lookup[lookups.TABLE]
                    if pools:
                        _gather(ids_at, column, first_event, seen[:values], id_bytes, looked_up)
                    else:
                        near[f] = fetch(ids_at, column, begin, values, id_bytes, near[f])
                    lookups.find_rows(ids[:values], lookup)
                other = fields[i + 1] if i + 1 < number else f
                if other != f and size == itemsize[other] == 8 and _take_the_same_rows(columns[block[n]], f, other):
                    second = carray(pointer(columns[block[n], other, RESOLVED]), (SIZE,), np.int64)
                    lookups.take_two(to[f], ids[:values], lookup, to[other], second[LOOKUP:])
                    to[other] += values * size
                    taken = other
                else:
                    lookups.take(to[f], ids[:values], lookup, size)
            to[f] += values * size


@kernel(called_with="int64[:, :, ::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1]")
def gather_samples(columns, block, start, length, itemsize, order, target):
    """Copy the values of columns that are resolved; `fsdata.kernels.columns.gather_samples` copies the others.

    Events of pools are copied here only if another source has no histories: otherwise ranks exchange references to
    events instead of their values.
    """
    for f in range(len(target)):
        near, ids, seen = np.int64(0), np.empty(0, np.int64), np.empty(0, np.uint32)
        end, left = np.empty(_MOST_POOLS, np.int64), np.empty(_MOST_POOLS, np.int64)
        for m in range(len(order)):
            n = order[m]
            column, values, size = columns[block[n], f], length[f, n], itemsize[f]
            if target[f, m] == 0 or values <= 0 or column[RESOLVED] == 0:
                continue
            resolver = carray(pointer(column[RESOLVED]), (SIZE,), np.int64)
            pools, lookup = resolver[POOLS], resolver[LOOKUP:]
            looked_up = lookup[lookups.TABLE] != 0
            if looked_up and len(ids) < values:
                ids = np.empty(2 * values, np.int64)
            # Ids of a lookup go to scratch memory first, other values to the target.
            at, width = (np.int64(ids.ctypes.data), np.int64(8)) if looked_up else (target[f, m], size)
            if pools:
                if len(seen) < values:
                    seen = np.empty(2 * values, np.uint32)
                pool_table = carray(pointer(pools), (1 << 10,), np.int64)
                first_event = histories.merge_pools(pool_table, start[f, n], seen[:values], end, left)
                _gather(at, column, first_event, seen[:values], width, looked_up)
            else:
                near = fetch(at, column, start[f, n], values, width, near)
            if looked_up:
                lookups.find_rows(ids[:values], lookup)
                lookups.take(target[f, m], ids[:values], lookup, size)
