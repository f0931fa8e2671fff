"""Copies values from their pages or memory into a batch: the only copy of a value (numba, nogil, no Python objects).

A *column* has the values of one field, one after another, in runs of one form each (`fsdata.kernels.runs`): pages that
are not decoded yet, memory with values in their final type, or narrower integers. The values of a row are described by
the first one and their number: `find_spans`.

Addresses are trusted: callers take them from live memory, and check lengths first.

Letters: B blocks, F fields, N rows.
"""

from types import MappingProxyType

import numpy as np
from numba import carray

from fsdata.kernels.memory import pointer, prefetch_line, word_at
from fsdata.kernels.runs import AT, COLUMNS, FINAL, FIRST, FORM, PLAIN, REPEATED
from fsranks.libraries import kernel

# The numbers of a column, int64 [10]. First its values.
RUNS = 0  # address of its runs
COUNT = 1  # number of runs
DICTIONARY = 2  # address of the dictionary's values, in their final type
STORED = 3  # stored type of PLAIN runs, see below
# Then the first value and the number of values of each row.
START = 4  # address of the first values, int64 [rows]; 0: the row times STEP
STEP = 5
LENGTH = 6  # address of the numbers of values, int64 [rows]; 0: WIDTH
WIDTH = 7
# 0 where the values are final. Otherwise they are references: a `Resolver` (`fsdata.decode.block`) replaces them by the
# table at this address, with its own kernels.
RESOLVED = 8
# For `fsdata.kernels.scalars`.
FLAT = 9  # address of the values of row 0, if every row has WIDTH of them in memory in their final type; else 0
NUMBERS = 10

# Stored types, and the final type of each: int64 or float32.
SAME = 0
INT32 = 1  # int64 of it; the rest likewise
UINT32 = 2
DOUBLE = 3  # float32 of it
INT64_FLOAT = 4
INT32_FLOAT = 5
UINT32_FLOAT = 6
INT16 = 7  # int64 of it; the rest likewise
INT8 = 8
UINT16 = 9
UINT8 = 10
STORED_BYTES = np.array([0, 4, 4, 8, 8, 4, 4, 2, 1, 2, 1])  # of a value

STORED_AS = MappingProxyType(
    {
        np.dtype(kind): stored
        for kind, stored in (
            ("i8", SAME), ("f4", SAME), ("i4", INT32), ("u4", UINT32),
            ("i2", INT16), ("i1", INT8), ("u2", UINT16), ("u1", UINT8),
        )
    }
)  # fmt: skip
"""The types of memory that can be copied to int64 or float32."""

_PREFETCHED = 1 << 12  # bytes of a list that are prefetched; the hardware prefetcher recognizes the rest as a stream
_AHEAD = 8  # rows between a prefetch and its copy: enough for the latency of memory


@kernel(inline="always")  # inlined, the loop is compiled for each pair of types and vectorized
def _convert_each(to, source):
    for i in range(len(to)):
        to[i] = source[i]


@kernel
def copy(target, at, count, itemsize):
    """Copy `count` values of `itemsize` bytes each; any itemsize."""
    to, source = pointer(target), pointer(at)
    # Integers also for floats: only bits are moved.
    if itemsize == 8:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.int64))
    elif itemsize == 4:
        _convert_each(carray(to, (count,), np.int32), carray(source, (count,), np.int32))
    else:
        size = count * itemsize
        _convert_each(carray(to, (size,), np.uint8), carray(source, (size,), np.uint8))


@kernel
def convert(target, at, count, stored, itemsize):
    """Copy `count` values of the type `stored` to int64 or float32; SAME: unchanged, of `itemsize` bytes each."""
    # A branch per type: numba vectorizes a loop for static types only.
    to, source = pointer(target), pointer(at)
    if stored == SAME:
        copy(target, at, count, itemsize)
    elif stored == INT32:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.int32))
    elif stored == UINT32:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.uint32))
    elif stored == DOUBLE:
        _convert_each(carray(to, (count,), np.float32), carray(source, (count,), np.float64))
    elif stored == INT64_FLOAT:
        _convert_each(carray(to, (count,), np.float32), carray(source, (count,), np.int64))
    elif stored == INT32_FLOAT:
        _convert_each(carray(to, (count,), np.float32), carray(source, (count,), np.int32))
    elif stored == UINT32_FLOAT:
        _convert_each(carray(to, (count,), np.float32), carray(source, (count,), np.uint32))
    elif stored == INT16:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.int16))
    elif stored == INT8:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.int8))
    elif stored == UINT16:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.uint16))
    else:
        _convert_each(carray(to, (count,), np.int64), carray(source, (count,), np.uint8))


@kernel(inline="always")
def _look_up(to, dictionary, at, first, width):
    """Values of the dictionary at the bit-packed indices of a run, from number `first` on.

    Reads up to 7 bytes past an index: callers allocate that much memory after a run. Indices were checked before.
    """
    # An index has at most 32 bits and begins at bit 0 to 7 of its first byte: one word of 8 bytes always has all of it.
    mask = np.uint64((1 << width) - 1)
    for i in range(len(to)):
        bit = (first + i) * width
        to[i] = dictionary[np.int64((word_at(at + (bit >> 3)) >> np.uint64(bit & 7)) & mask)]


@kernel
def _look_up8(target, dictionary, at, first, width, count):
    # The size of the dictionary is not known here, and numba does not check indices: any shape would do.
    values = carray(pointer(dictionary), (1 << 32,), np.int64)
    _look_up(carray(pointer(target), (count,), np.int64), values, at, first, width)


@kernel
def _look_up4(target, dictionary, at, first, width, count):
    values = carray(pointer(dictionary), (1 << 32,), np.int32)
    _look_up(carray(pointer(target), (count,), np.int32), values, at, first, width)


@kernel
def _run_of(runs, count, first):
    """The run that has value `first`, by binary search."""
    low, high = np.int64(0), count
    while high - low > 1:
        middle = (low + high) >> 1
        if runs[middle, FIRST] <= first:
            low = middle
        else:
            high = middle
    return low


@kernel
def _prefetch(column, first, count):
    """Prefetch the values [first, first + count) of a column for a later `fetch`. Returns the run of the first one.

    Lists in file order need no prefetch: the hardware prefetcher follows them.
    """
    runs = carray(pointer(column[RUNS]), (column[COUNT] + 1, COLUMNS), np.int64)
    begin = _run_of(runs, column[COUNT], first)
    run = begin
    while count > 0:
        form, in_run = runs[run, FORM], min(count, runs[run + 1, FIRST] - first)
        if form != REPEATED:
            bits = form if 0 < form < FINAL else 64  # narrower values: a few lines too many, at little cost
            at = runs[run, AT] + ((first - runs[run, FIRST]) * bits >> 3)
            for line in range(0, min(in_run * bits >> 3, _PREFETCHED), 64):
                prefetch_line(at + line)
        count -= in_run
        first += in_run
        run += 1
    return begin


@kernel
def fetch(target, column, first, count, itemsize, near):
    """Copy the values [first, first + count) of a column to `target`. Returns the run of the last one.

    column: int64 [4 or more]; the values exist. near: a guess of the run, such as the last result for this column; any
    number is safe.
    """
    runs = carray(pointer(column[RUNS]), (column[COUNT] + 1, COLUMNS), np.int64)
    # The same run or the next one, if rows are in order; otherwise a search.
    run = near if 0 <= near < column[COUNT] else np.int64(0)
    if not (runs[run, FIRST] <= first < runs[run + 1, FIRST]):
        if run + 2 <= column[COUNT] and runs[run + 1, FIRST] <= first < runs[run + 2, FIRST]:
            run += 1
        else:
            run = _run_of(runs, column[COUNT], first)
    while True:
        begin, form, at = runs[run, FIRST], runs[run, FORM], runs[run, AT]
        in_run = min(count, runs[run + 1, FIRST] - first)
        if form == PLAIN:
            width = STORED_BYTES[column[STORED]] if column[STORED] else itemsize
            convert(target, at + (first - begin) * width, in_run, column[STORED], itemsize)
        elif form == FINAL:
            copy(target, at + (first - begin) * itemsize, in_run, itemsize)
        elif form == REPEATED and itemsize == 8:
            value = carray(pointer(column[DICTIONARY] + at * 8), (1,), np.int64)[0]
            carray(pointer(target), (in_run,), np.int64)[:] = value
        elif form == REPEATED:
            value4 = carray(pointer(column[DICTIONARY] + at * 4), (1,), np.int32)[0]
            carray(pointer(target), (in_run,), np.int32)[:] = value4
        elif itemsize == 8:
            _look_up8(target, column[DICTIONARY], at, first - begin, form, in_run)
        else:
            _look_up4(target, column[DICTIONARY], at, first - begin, form, in_run)
        count -= in_run
        if count <= 0:
            return run
        first += in_run
        target += in_run * itemsize
        run += 1


@kernel(inline="always")
def _int64_at(address, index):
    return carray(pointer(address + index * 8), (1,), np.int64)[0]


@kernel(called_with="int64[:, :, ::1], uint8[::1], int32[::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1]")
def find_spans(
    columns: np.ndarray,
    flat: np.ndarray,
    block: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    count: np.ndarray,
) -> None:
    """Write the first value and the number of values of each field and row: start, length, int64 [F, N].

    columns: int64 [B, F, NUMBERS]; flat: uint8 [F], fields that are flat in all blocks (their `start` is not written);
    block, row: int32 [N]; count: int64 [F], written: values of all rows.
    """
    for f in range(columns.shape[1]):
        if flat[f]:
            width = columns[0, f, WIDTH]
            length[f, :] = width
            count[f] = width * len(block)
            continue
        total = np.int64(0)
        for n in range(len(block)):
            b, r = block[n], np.int64(row[n])
            starts, lengths = columns[b, f, START], columns[b, f, LENGTH]
            # The branches are the same for all rows of a block, so the processor predicts them.
            start[f, n] = _int64_at(starts, r) if starts else r * columns[b, f, STEP]
            values = _int64_at(lengths, r) if lengths else columns[b, f, WIDTH]
            length[f, n] = values
            total += values
        count[f] = total


@kernel
def is_resolved(columns, f):
    """Whether some block resolves the values of a field."""
    tables = np.int64(0)
    for b in range(len(columns)):
        tables |= columns[b, f, RESOLVED]
    return tables != 0


@kernel
def _in_memory(columns, f, at):
    """Whether a field is one run of final values in all blocks; writes their addresses to `at`, int64 [B]."""
    for b in range(len(at)):
        at[b] = 0
        if columns[b, f, COUNT] > 1:
            return False
        if columns[b, f, COUNT] == 1:
            run = carray(pointer(columns[b, f, RUNS]), (COLUMNS,), np.int64)
            if run[FORM] != FINAL:
                return False
            at[b] = run[AT]
    return True


@kernel(inline="always")
def _follows(block, start, length, n):
    """Whether the values of the next row begin where those of row n end."""
    return block[n + 1] == block[n] and start[n + 1] == start[n] + length[n]


@kernel(called_with="int64[:, :, ::1], uint8[::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1]")
def gather_fields(
    columns: np.ndarray,
    flat: np.ndarray,
    block: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    itemsize: np.ndarray,
    target: np.ndarray,
) -> None:
    """Copy the rows of every field one after another to the field's target, except fields that some block resolves.

    columns: int64 [B, F, NUMBERS]; flat: uint8 [F], fields that `fsdata.kernels.scalars` copies; block: int32 [N];
    start, length: int64 [F, N]; itemsize: int64 [F], bytes of a value; target: int64 [F], addresses, 0 to skip a field.
    """
    at = np.empty(len(columns), np.int64)
    for f in range(len(target)):
        to, size = target[f], itemsize[f]
        if to == 0 or flat[f] or is_resolved(columns, f):
            continue
        if _in_memory(columns, f, at):  # addresses need no search: prefetch several rows ahead
            for n in range(len(block)):
                if n + _AHEAD < len(block):
                    prefetch_line(at[block[n + _AHEAD]] + start[f, n + _AHEAD] * size)
                count = length[f, n]
                if count > 0:
                    copy(to, at[block[n]] + start[f, n] * size, count, size)
                    to += count * size
            continue
        # Values in pages: only the next row is prefetched, because each prefetch needs a search for its run.
        near, prefetched = np.int64(0), np.int64(-1)
        for n in range(len(block)):
            # The run of row n was searched in the round before, when it was prefetched: `fetch` need not search again.
            if prefetched >= 0:
                near, prefetched = prefetched, np.int64(-1)
            if n + 1 < len(block) and length[f, n + 1] > 0 and not _follows(block, start[f], length[f], n):
                prefetched = _prefetch(columns[block[n + 1], f], start[f, n + 1], length[f, n + 1])
            count = length[f, n]
            if count > 0:
                near = fetch(to, columns[block[n], f], start[f, n], count, size, near)
                to += count * size


@kernel(
    called_with="int64[:, :, ::1], uint8[::1], int32[::1], int32[::1], int64[:, ::1], int64[:, ::1], int64[::1], "
    "int64[::1], int64[:, ::1]"
)
def gather_samples(
    columns: np.ndarray,
    flat: np.ndarray,
    block: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    itemsize: np.ndarray,
    order: np.ndarray,
    target: np.ndarray,
) -> None:
    """Copy every field of some rows to an address of its own, except those of columns that are resolved.

    row: int32 [N]; the others up to `itemsize` as in `gather_fields`; order: int64 [M], rows; target: int64 [F, M],
    addresses, 0 to skip a field of a row.
    """
    for f in range(len(target)):
        near = np.int64(0)
        for m in range(len(order)):
            n = order[m]
            column, count = columns[block[n], f], length[f, n]
            if target[f, m] and count > 0 and column[RESOLVED] == 0:
                begin = np.int64(row[n]) * column[STEP] if flat[f] else start[f, n]
                near = fetch(target[f, m], column, begin, count, itemsize[f], near)
