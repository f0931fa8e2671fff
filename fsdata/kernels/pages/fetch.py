"""Values from the pages, where they lie, to where they belong: the one copy that they make (numba, nogil).

A *paged* address is not one of memory. Its highest byte is `PAGED`; the next 16 bits say in which column of `HELD`
the values lie, and the lowest 40 how many bytes before them the column has, as if it were decoded. So the address of
element k of a list is that of the list and k times the item size, as anywhere else.
"""

import numpy as np
from numba import carray

from fsdata.kernels.memory import ask_for, pointer, word_at
from fsdata.kernels.pages.runs import AT, COLUMNS, FINAL, FIRST, FORM, PLAIN, REPEATED
from fsranks.libraries import kernel

PAGED = 64
PAGED_SHIFT = 56
COLUMN_SHIFT = 40
MOST_COLUMNS = 1 << (PAGED_SHIFT - COLUMN_SHIFT)
MOST_BYTES = 1 << COLUMN_SHIFT

HELD = np.zeros((MOST_COLUMNS, 4), np.int64)  # columns that rows refer to, by their number
# Of a column, int64 [4].
RUNS = 0  # address of its runs
COUNT = 1  # of them
DICTIONARY = 2  # address of its values, as they are needed
STORED = 3  # how the file stores them, see below

# How values are stored, and as what they are needed: int64 or float32.
SAME = 0
INT32 = 1  # int64 of it; the rest likewise
UINT32 = 2
DOUBLE = 3  # float32 of it
INT64_FLOAT = 4
INT32_FLOAT = 5
UINT32_FLOAT = 6


@kernel(inline="always")
def _converted(to, of):
    for i in range(len(to)):
        to[i] = of[i]


@kernel
def convert(target, at, count, stored, itemsize):
    """`count` values of the form `stored` -> int64 or float32, `itemsize` bytes each."""
    to, of = pointer(target), pointer(at)
    if stored == SAME:
        if itemsize == 8:
            _converted(carray(to, (count,), np.int64), carray(of, (count,), np.int64))
        else:
            _converted(carray(to, (count,), np.int32), carray(of, (count,), np.int32))
    elif stored == INT32:
        _converted(carray(to, (count,), np.int64), carray(of, (count,), np.int32))
    elif stored == UINT32:
        _converted(carray(to, (count,), np.int64), carray(of, (count,), np.uint32))
    elif stored == DOUBLE:
        _converted(carray(to, (count,), np.float32), carray(of, (count,), np.float64))
    elif stored == INT64_FLOAT:
        _converted(carray(to, (count,), np.float32), carray(of, (count,), np.int64))
    elif stored == INT32_FLOAT:
        _converted(carray(to, (count,), np.float32), carray(of, (count,), np.int32))
    else:
        _converted(carray(to, (count,), np.float32), carray(of, (count,), np.uint32))


@kernel(inline="always")
def _chosen(to, dictionary, at, first, width):
    """Values of the dictionary, at the positions of a run from its position `first` on."""
    mask = np.uint64((1 << width) - 1)
    for i in range(len(to)):
        bit = (first + i) * width
        to[i] = dictionary[np.int64((word_at(at + (bit >> 3)) >> np.uint64(bit & 7)) & mask)]


@kernel
def _chosen8(target, dictionary, at, first, width, count):
    values = carray(pointer(dictionary), (1 << 32,), np.int64)
    _chosen(carray(pointer(target), (count,), np.int64), values, at, first, width)


@kernel
def _chosen4(target, dictionary, at, first, width, count):
    values = carray(pointer(dictionary), (1 << 32,), np.int32)
    _chosen(carray(pointer(target), (count,), np.int32), values, at, first, width)


@kernel(inline="always")
def place_of(address, itemsize):
    """(column, value in it) of a paged address."""
    return (address >> COLUMN_SHIFT) & (MOST_COLUMNS - 1), (address & (MOST_BYTES - 1)) // itemsize


@kernel
def _run_of(runs, count, first):
    """The run that value `first` stands in."""
    low, high = np.int64(0), count
    while high - low > 1:
        middle = (low + high) >> 1
        if runs[middle, FIRST] <= first:
            low = middle
        else:
            high = middle
    return low


@kernel
def ask(column, first, count):
    """Ask for the bytes of values [first, first + count) of a column, which `fetch` needs soon; the run of the first.

    Lists in the order of a file need not be asked for: the processor sees where they go on.
    """
    runs = carray(pointer(column[RUNS]), (column[COUNT] + 1, COLUMNS), np.int64)
    begin = _run_of(runs, column[COUNT], first)
    run = begin
    while count > 0:
        form, some = runs[run, FORM], min(count, runs[run + 1, FIRST] - first)
        if form != REPEATED:
            bits = form if 0 < form < FINAL else 64
            at = runs[run, AT] + ((first - runs[run, FIRST]) * bits >> 3)
            for line in range(0, min(some * bits >> 3, _ASKED), 64):
                ask_for(at + line)
        count -= some
        first += some
        run += 1
    return begin


@kernel
def fetch(target, column, first, count, itemsize, near):
    """Values [first, first + count) of a column to `target`. A run that may be near them -> the run of the last one.

    column: int64 [4]; the values exist. near: what the last call for this column gave, or any number.
    """
    runs = carray(pointer(column[RUNS]), (column[COUNT] + 1, COLUMNS), np.int64)
    run = near if 0 <= near < column[COUNT] else np.int64(0)
    if not (runs[run, FIRST] <= first < runs[run + 1, FIRST]):
        if run + 2 <= column[COUNT] and runs[run + 1, FIRST] <= first < runs[run + 2, FIRST]:
            run += 1
        else:
            run = _run_of(runs, column[COUNT], first)
    while True:
        begin, form, at = runs[run, FIRST], runs[run, FORM], runs[run, AT]
        some = min(count, runs[run + 1, FIRST] - first)
        if form == PLAIN:
            width = _WIDTHS[column[STORED]] if column[STORED] else itemsize
            convert(target, at + (first - begin) * width, some, column[STORED], itemsize)
        elif form == FINAL:
            convert(target, at + (first - begin) * itemsize, some, np.int64(SAME), itemsize)
        elif form == REPEATED and itemsize == 8:
            value = carray(pointer(column[DICTIONARY] + at * 8), (1,), np.int64)[0]
            carray(pointer(target), (some,), np.int64)[:] = value
        elif form == REPEATED:
            value4 = carray(pointer(column[DICTIONARY] + at * 4), (1,), np.int32)[0]
            carray(pointer(target), (some,), np.int32)[:] = value4
        elif itemsize == 8:
            _chosen8(target, column[DICTIONARY], at, first - begin, form, some)
        else:
            _chosen4(target, column[DICTIONARY], at, first - begin, form, some)
        count -= some
        if count <= 0:
            return run
        first += some
        target += some * itemsize
        run += 1


_ASKED = 1 << 12  # bytes; what follows them is foreseen by the processor
_WIDTHS = np.array([0, 4, 4, 8, 8, 4, 4])  # bytes of a stored value
