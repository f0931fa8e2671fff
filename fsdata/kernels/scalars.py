"""Copies fields with a fixed number of values per row from Arrow's memory to batches (numba, nogil).

Arrow exports a record batch as structures of its C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html): one call for all columns, instead of one per column.

Addresses are trusted, as in `fsdata.kernels.columns`.

Letters: B blocks, C columns, F fields, N rows.
"""

import numpy as np
from numba import carray

from fsdata.kernels.columns import FLAT, STEP, WIDTH, copy
from fsdata.kernels.memory import pointer, prefetch_line
from fsranks.libraries import kernel

# The numbers of a column's array, int64 [2].
AT = 0  # address of the value of its first row
NULLS = 1  # number of null rows, -1 if unknown

# Indices of the 8-byte words of an ArrowArray.
_NULL_COUNT, _OFFSET, _BUFFERS, _CHILDREN, _WORDS = 1, 2, 5, 6, 10

_MANY = 1 << 40  # shape of arrays whose size is not known here; numba does not check indices
_TILE = 256  # rows that are written together, so that they stay in the cache for all columns
_PICKED = 256  # rows that are prefetched and then read together
_TOGETHER = 1024  # most bytes between fields that are read together: the rows have to stay in the cache
_LINE = 64  # bytes of a cache line
_FEW = 16  # average number of consecutive rows from which copying them at once is faster


@kernel(called_with="int64, int64[::1], int64[::1], int64[:, ::1]")
def read_arrays(batch, columns, itemsize, arrays):
    """Write the address and the null count of some columns of a record batch to `arrays`, int64 [C, 2].

    batch: address of its ArrowArray. columns: int64 [C], their indices; itemsize: int64 [C], bytes of their values.
    """
    children = carray(pointer(carray(pointer(batch), (_WORDS,), np.int64)[_CHILDREN]), (1 << 31,), np.int64)
    for c in range(len(columns)):
        array = carray(pointer(children[columns[c]]), (_WORDS,), np.int64)
        buffers = carray(pointer(array[_BUFFERS]), (2,), np.int64)  # validity bitmap, values
        arrays[c, AT] = buffers[1] + array[_OFFSET] * itemsize[c]
        arrays[c, NULLS] = array[_NULL_COUNT]


@kernel(called_with="int64[::1], int64, uint8[::1]")
def find_not_finite(at, count, not_finite):
    """Write to `not_finite`, uint8 [C], whether one of `count` float32 at each address is not finite."""
    # NaN and infinity have all bits of the exponent. A loop over integers without a branch is vectorized.
    exponent = np.int32(0x7F800000)
    for c in range(len(at)):
        bad = False
        for bits in carray(pointer(at[c]), (count,), np.int32):
            bad |= (bits & exponent) == exponent
        not_finite[c] = bad


@kernel(inline="always")
def _spread(to, values, step):
    for n in range(len(values)):
        to[np.uint64(n * step)] = values[n]  # unsigned: numba adds no test for negative indices


@kernel(called_with="int64[::1], int64[::1], int64, int64[::1], int64[::1]")
def spread(at, itemsize, count, target, step):
    """Copy `count` values of each column to memory in which they are `step` bytes apart: rows, from columns.

    at, target: int64 [C], addresses; itemsize, step: int64 [C], bytes: step is a multiple of itemsize, which is 4 or 8.
    """
    for first in range(0, count, _TILE):
        rows = min(_TILE, count - first)
        for c in range(len(at)):
            begin, to, size = at[c] + first * itemsize[c], target[c] + first * step[c], itemsize[c]
            if step[c] == size:
                copy(to, begin, rows, size)
            elif size == 8:
                values8 = carray(pointer(begin), (rows,), np.int64)
                _spread(carray(pointer(to), (_MANY,), np.int64), values8, step[c] // 8)
            else:
                values4 = carray(pointer(begin), (rows,), np.int32)
                _spread(carray(pointer(to), (_MANY,), np.int32), values4, step[c] // 4)


@kernel
def _copy_stretches(columns, f, block, row, begins, size, target):
    """Copy a field by stretches: the rows begins[k], ..., begins[k + 1] - 1 are consecutive in their block."""
    to = target
    for k in range(len(begins) - 1):
        n = begins[k]
        column = columns[block[n], f]
        count = (begins[k + 1] - n) * column[WIDTH]
        copy(to, column[FLAT] + np.int64(row[n]) * column[STEP] * size, count, size)
        to += count * size


@kernel
def _in_one_row(columns, itemsize, f, g):
    """Whether two fields have one value each in the same rows of memory, at the same distance in every block."""
    apart = columns[0, g, FLAT] - columns[0, f, FLAT]
    for b in range(len(columns)):
        one, other = columns[b, f], columns[b, g]
        step = one[STEP] * itemsize[f]
        if one[WIDTH] != 1 or other[WIDTH] != 1 or step != other[STEP] * itemsize[g]:
            return False
        if other[FLAT] - one[FLAT] != apart or abs(apart) >= min(step, _TOGETHER):
            return False
    return True


@kernel
def _pick_rows(columns, first, last, block, row, itemsize, target):
    """Copy the fields first, ..., last - 1, which are in one row of memory, row by row.

    The hardware prefetcher cannot predict shuffled rows. The lines of all fields of some rows are therefore prefetched
    before the first of them is read, so that many loads from memory run at once.
    """
    at, step, rows_at = np.empty(len(columns), np.int64), np.empty(len(columns), np.int64), np.empty(_PICKED, np.int64)
    for b in range(len(columns)):
        at[b], step[b] = columns[b, first, FLAT], columns[b, first, STEP] * itemsize[first]
    # The bytes of a row, relative to its value of the first field: other fields may be before it.
    low, high = np.int64(0), np.int64(0)
    for f in range(first, last):
        offset = columns[0, f, FLAT] - at[0]
        low, high = min(low, offset), max(high, offset + columns[0, f, WIDTH] * itemsize[f])
    for begin in range(0, len(row), _PICKED):
        rows = min(_PICKED, len(row) - begin)
        for n in range(rows):
            b = block[begin + n]
            rows_at[n] = at[b] + np.int64(row[begin + n]) * step[b]
            for byte in range(low, high, _LINE):
                prefetch_line(rows_at[n] + byte)
            prefetch_line(rows_at[n] + high - 1)  # rows are not aligned to lines: the last byte may be in a further one
        for f in range(first, last):
            offset, width, size = columns[0, f, FLAT] - at[0], columns[0, f, WIDTH], itemsize[f]
            to = target[f] + begin * width * size
            if width == 1 and size == 8:
                to8 = carray(pointer(to), (rows,), np.int64)
                for n in range(rows):
                    to8[n] = carray(pointer(rows_at[n] + offset), (1,), np.int64)[0]
            elif width == 1 and size == 4:
                to4 = carray(pointer(to), (rows,), np.int32)
                for n in range(rows):
                    to4[n] = carray(pointer(rows_at[n] + offset), (1,), np.int32)[0]
            else:
                for n in range(rows):
                    copy(to + n * width * size, rows_at[n] + offset, width, size)


@kernel(called_with="int64[:, :, ::1], uint8[::1], int32[::1], int32[::1], int64[::1], int64[::1]")
def gather_flat(columns, flat, block, row, itemsize, target):
    """Copy the rows of fields that are flat in all blocks, one after another, to the field's target.

    Stretches of consecutive rows of a block are computed once for all fields; each is copied as a whole.

    columns: int64 [B, F, NUMBERS]; flat: uint8 [F], nonzero for these fields; block, row: int32 [N]; itemsize:
    int64 [F]; target: int64 [F], addresses, 0 to skip a field.
    """
    begins, number = np.empty(len(row) // _FEW + 3, np.int64), 0
    for n in range(len(row)):
        if n == 0 or block[n] != block[n - 1] or row[n] != row[n - 1] + 1:
            begins[number] = n
            number += 1
            if number + 1 == len(begins):
                break  # too many stretches: the rows are shuffled, and `begins` is not used
    in_stretches = number + 1 < len(begins)
    begins[number] = len(row)
    last = 0
    for f in range(len(target)):
        if f < last or not flat[f] or target[f] == 0:
            continue
        contiguous = in_stretches
        for b in range(len(columns)):
            contiguous &= columns[b, f, STEP] == columns[b, f, WIDTH]
        if contiguous:
            _copy_stretches(columns, f, block, row, begins[: number + 1], itemsize[f], target[f])
            continue
        # Pooled memory has the fields of a row side by side: copy as many of them as possible in one pass.
        last = f + 1
        while last < len(target) and flat[last] and target[last] and _in_one_row(columns, itemsize, f, last):
            last += 1
        _pick_rows(columns, f, last, block, row, itemsize, target)
