"""Fields with one value, or a fixed number, in every row: from Arrow's memory to batches (numba, nogil).

Arrow hands a record batch over as the structures of its C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html): one call for all columns, where Python would ask each.

Addresses are trusted, as in `fsdata.kernels.columns`.

Letters: B blocks, C columns, F fields, N rows.
"""

import numpy as np
from numba import carray

from fsdata.kernels.columns import FLAT, STEP, WIDTH, copy
from fsdata.kernels.memory import pointer
from fsranks.libraries import kernel

# Of an array of a column, int64 [2].
AT = 0  # address of the value of its first row
NULLS = 1  # how many rows are null, -1 where that is unknown

# Words of an ArrowArray.
_NULL_COUNT, _OFFSET, _BUFFERS, _CHILDREN, _WORDS = 1, 2, 5, 6, 10

_TILE = 256  # rows of the dense block that are written together: they stay in the cache for all its columns
_FEW = 16  # rows that lie next to each other, on average: from so many on they are copied at once


@kernel(called_with="int64, int64[::1], int64[::1], int64[:, ::1]")
def read_arrays(batch, columns, itemsize, found):
    """Where the values of some columns of a record batch lie -> `found`, int64 [C, 2].

    batch: address of its ArrowArray. columns: int64 [C], which; itemsize: int64 [C], bytes of their values.
    """
    children = carray(pointer(carray(pointer(batch), (_WORDS,), np.int64)[_CHILDREN]), (1 << 31,), np.int64)
    for c in range(len(columns)):
        array = carray(pointer(children[columns[c]]), (_WORDS,), np.int64)
        buffers = carray(pointer(array[_BUFFERS]), (2,), np.int64)
        found[c, AT] = buffers[1] + array[_OFFSET] * itemsize[c]
        found[c, NULLS] = array[_NULL_COUNT]


@kernel(called_with="int64[::1], int64, uint8[::1]")
def find_not_finite(at, count, found):
    """Whether one of `count` float32 at each address is not finite -> `found`, uint8 [C]."""
    exponent = np.int32(0x7F800000)
    for c in range(len(at)):
        bad = False
        for bits in carray(pointer(at[c]), (count,), np.int32):
            bad |= (bits & exponent) == exponent
        found[c] = bad


@kernel(called_with="int64[::1], int64[::1], int64, float32[:, ::1]")
def interleave(at, places, count, dense):
    """`count` float32 at each address -> the columns `places` of `dense`, [N, D]."""
    width, target = dense.shape[1], dense.ctypes.data
    for first in range(0, count, _TILE):
        some = min(_TILE, count - first)
        for c in range(len(at)):
            values = carray(pointer(at[c] + 4 * first), (some,), np.float32)
            places_of = carray(pointer(target + 4 * (first * width + places[c])), (some * width,), np.float32)
            for n in range(some):
                places_of[np.uint64(n * width)] = values[n]


@kernel(called_with="int64[::1], int64[::1], int64, int64[::1]")
def copy_all(at, itemsize, count, target):
    """`count` values of each column, `itemsize` bytes each, from the address `at` to `target`, int64 [C]."""
    for c in range(len(at)):
        copy(target[c], at[c], count, itemsize[c])


@kernel
def _copy_stretches(columns, f, block, row, begins, size, target):
    """The rows begins[k], ..., begins[k + 1] - 1 lie one after another in their block."""
    to = target
    for k in range(len(begins) - 1):
        n = begins[k]
        column = columns[block[n], f]
        count = (begins[k + 1] - n) * column[WIDTH]
        copy(to, column[FLAT] + np.int64(row[n]) * column[STEP] * size, count, size)
        to += count * size


@kernel
def _pick_rows(columns, f, block, row, at, size, target):
    """Row after row. at: int64 [B], memory to work in."""
    width, step, same = columns[0, f, WIDTH], columns[0, f, STEP], True
    for b in range(len(at)):
        at[b] = columns[b, f, FLAT]
        same &= columns[b, f, STEP] == step
    if same and width == 1 and size == 8:
        to = carray(pointer(target), (len(row),), np.int64)
        for n in range(len(row)):
            to[n] = carray(pointer(at[block[n]] + np.int64(row[n]) * step * 8), (1,), np.int64)[0]
    elif same and width == 1 and size == 4:
        to4 = carray(pointer(target), (len(row),), np.int32)
        for n in range(len(row)):
            to4[n] = carray(pointer(at[block[n]] + np.int64(row[n]) * step * 4), (1,), np.int32)[0]
    else:
        for n in range(len(row)):
            step = columns[block[n], f, STEP]
            copy(target + n * width * size, at[block[n]] + np.int64(row[n]) * step * size, width, size)


@kernel(called_with="int64[:, :, ::1], uint8[::1], int32[::1], int32[::1], int64[::1], int64[::1]")
def gather_flat(columns, flat, block, row, itemsize, target):
    """Copy the rows of fields that lie flat in all blocks, one after another, to the field's target.

    Rows of one block that follow each other are found once for all fields, and copied at once.

    columns: int64 [B, F, NUMBERS]; flat: uint8 [F], which fields; block, row: int32 [N]; itemsize: int64 [F];
    target: int64 [F], addresses, 0 leaves a field out.
    """
    begins, number = np.empty(len(row) // _FEW + 3, np.int64), 0
    for n in range(len(row)):
        if n == 0 or block[n] != block[n - 1] or row[n] != row[n - 1] + 1:
            begins[number] = n
            number += 1
            if number + 1 == len(begins):
                break
    in_stretches = number + 1 < len(begins)
    begins[number] = len(row)
    at = np.empty(len(columns), np.int64)
    for f in range(len(target)):
        if not flat[f] or target[f] == 0:
            continue
        contiguous = in_stretches
        for b in range(len(columns)):
            contiguous &= columns[b, f, STEP] == columns[b, f, WIDTH]
        if contiguous:
            _copy_stretches(columns, f, block, row, begins[: number + 1], itemsize[f], target[f])
        else:
            _pick_rows(columns, f, block, row, at, itemsize[f], target[f])
