"""Reads the lists of a column page after page: their lengths and the addresses of their values (numba, nogil).

`read_pages` reads the encodings of most files. A separate kernel, `decode_page`, decodes the rare ones: numba takes
seconds to compile them, and a process whose files have none of them does not wait for that.
"""

import numpy as np
from numba import carray

from fsdata.kernels import columns, runs
from fsdata.kernels.memory import pointer
from fsdata.pages.kernels import DAMAGED, OK, UNKNOWN, deltas, headers, indices, levels
from fsranks.libraries import kernel

# The form of a column, int64 [7]; see `fsdata.pages.forms`.
PHYSICAL = 0
TOP = 1
PRESENT = 2
STORED = 3
ITEMSIZE = 4
LEAST, MOST = 5, 6  # bounds of integers; not checked unless LEAST is less than MOST

BOOLEAN, INT32, INT64, FLOAT, DOUBLE = 0, 1, 2, 3, 4

# The state after some pages, int64 [12]; the first three as in `levels`.
RUNS = 3  # lines of the table of runs
DICTIONARY = 4  # address of its values
SIZE = 5  # of the dictionary, -1 without one
MADE = 6  # used bytes of `decoded`, the memory of decoded values
FAULT = 7  # see below; 0 if there is none
PAGE = 8  # number of the page that is read next, or has a fault
BEGIN = 9  # at fault RARE: first byte of the page's values
COUNT = 10  # at fault RARE: their number
NOT_FINITE = 11  # 1 if a stored number is not finite in its final type; perhaps no row has it, if in the dictionary
STATE = 12

# Faults.
NOTHING = 0
LEVELS_BEYOND = 1
LEVELS_WRONG = 2
VALUES_WRONG = 3
WIDTH_WRONG = 4
POSITIONS_WRONG = 5
LEVELS_OTHER = 6  # from here on: forms that only pyarrow reads
ENCODING_OTHER = 7
NO_DICTIONARY = 8
GROUP_CUT = 9
MORE_OR_FEWER = 10
TOO_LARGE = 11
ROWS_WRONG = 12  # damage
RARE = 13  # no fault: `decode_page` decodes the values of the page

_LARGEST = float(np.finfo(np.float32).max)


@kernel(called_with="int64[:, ::1], int64[::1]")
def room_for(pages, form):
    """Upper bound of the bytes of all values that have to be decoded: dictionaries and rare encodings."""
    values = np.int64(0)
    for page in pages:
        if page[headers.KIND] == headers.DICTIONARY:
            # The header's number is not checked yet: a value takes 4 bytes at least.
            values += min(page[headers.VALUES], page[headers.UNPACKED] >> 2)
        elif form[PHYSICAL] == BOOLEAN or (
            page[headers.ENCODING] != headers.PLAIN
            and page[headers.ENCODING] != headers.RLE_DICTIONARY
            and page[headers.ENCODING] != headers.PLAIN_DICTIONARY
        ):
            values += page[headers.VALUES]
    return values * 8


@kernel
def _level_bounds(page, raw, bounds):
    """Write the bounds of a page's levels to `bounds`, int64 [4], see `levels.read_levels`. Returns a fault."""
    bounds[0] = 0
    if page[headers.KIND] == headers.DATA_V2:
        bounds[1] = bounds[2] = page[headers.REPETITION]
        bounds[3] = bounds[2] + page[headers.DEFINITION]
        return NOTHING
    if page[headers.LEVELS] != headers.RLE:
        return LEVELS_OTHER
    at = np.int64(0)
    for place in range(0, 4, 2):  # version 1: repetition, then definition, each behind its size in 4 bytes
        if len(raw) - at < 4:
            return LEVELS_BEYOND
        size = np.int64(0)
        for byte in range(4):
            size |= np.int64(raw[at + byte]) << (8 * byte)
        at += 4
        if size > len(raw) - at:
            return LEVELS_BEYOND
        bounds[place], bounds[place + 1] = at, at + size
        at += size
    return NOTHING


@kernel
def _check(at, count, form, state):
    """Check that the field can represent `count` stored values: returns a fault, or sets NOT_FINITE of the state."""
    # Loops without a branch, which LLVM vectorizes. `not <=`: true for NaN, too; a double must fit into a float32.
    bad = False
    if form[PHYSICAL] == FLOAT:
        for value in carray(pointer(at), (count,), np.float32):
            bad |= not abs(value) <= np.float32(_LARGEST)
    elif form[PHYSICAL] == DOUBLE:
        for number in carray(pointer(at), (count,), np.float64):
            bad |= not abs(number) <= _LARGEST
    elif form[PHYSICAL] == INT32 and form[LEAST] < form[MOST]:
        for integer in carray(pointer(at), (count,), np.int32):
            bad |= integer < form[LEAST] or integer > form[MOST]
    if form[PHYSICAL] < FLOAT:
        return TOO_LARGE if bad else NOTHING
    state[NOT_FINITE] |= bad
    return NOTHING


@kernel
def _finalize(values, form):
    """Convert int64 [n] in place to the final type: int64, or float32 in the first half. Returns a fault."""
    unsigned = form[STORED] == columns.UINT32 or form[STORED] == columns.UINT32_FLOAT
    bad = False
    for i in range(len(values)):
        if unsigned:  # the decoder has extended the sign of 32 bits
            values[i] &= 0xFFFFFFFF
        bad |= form[LEAST] < form[MOST] and (values[i] < form[LEAST] or values[i] > form[MOST])
    if form[ITEMSIZE] == 4:
        narrow = values.view(np.float32)  # value i is read before its bytes are overwritten: 4 i is at most 8 i
        for i in range(len(values)):
            narrow[i] = values[i]
    return TOO_LARGE if bad else NOTHING


@kernel
def _decode(raw, begin, count, encoding, form, state, decoded):
    """Decode the values of a page with a rare encoding into `decoded`. Returns a fault."""
    physical, width = form[PHYSICAL], 4 if form[PHYSICAL] == INT32 or form[PHYSICAL] == FLOAT else 8
    if count * 8 > len(decoded) - state[MADE]:
        return VALUES_WRONG
    target = decoded[state[MADE] : state[MADE] + count * 8]
    if encoding == headers.BYTE_STREAM_SPLIT and physical != BOOLEAN:
        if len(raw) - begin != count * width:
            return VALUES_WRONG
        # The result has the stored type, so its run is PLAIN and the values are converted when they are copied.
        deltas.read_split(raw, begin, count, width, target)
        return _check(np.int64(target.ctypes.data), count, form, state)
    values, code = target.view(np.int64), OK
    if encoding == headers.DELTA_BINARY_PACKED and physical in (INT32, INT64):
        code = deltas.read_deltas(raw, begin, len(raw), physical == INT32, values)
    elif physical == BOOLEAN and encoding == headers.PLAIN:
        if (count + 7) >> 3 > len(raw) - begin:
            return VALUES_WRONG
        deltas.read_bits(raw, begin, values)
    elif physical == BOOLEAN and encoding == headers.RLE:
        size, code = np.int64(0), DAMAGED
        for byte in range(4 if len(raw) - begin >= 4 else 0):
            size |= np.int64(raw[begin + byte]) << (8 * byte)
        if len(raw) - begin >= 4 and size <= len(raw) - begin - 4:
            code = deltas.read_bit_runs(raw, begin + 4, begin + 4 + size, values)
    else:
        return ENCODING_OTHER
    if code == UNKNOWN:
        return MORE_OR_FEWER
    return VALUES_WRONG if code == DAMAGED else _finalize(values, form)


@kernel(called_with="int64[::1], int64[::1], int64[::1], uint8[::1]")
def decode_page(page, form, state, decoded):
    """Continue where `read_pages` ended with the fault RARE: decode the values of the page, and advance past it.

    page: int64 [headers.COLUMNS], the page state[PAGE]. The others as in `read_pages`.
    """
    raw = carray(pointer(page[headers.ADDRESS]), (page[headers.UNPACKED],), np.uint8)
    state[FAULT] = _decode(raw, state[BEGIN], state[COUNT], page[headers.ENCODING], form, state, decoded)
    state[MADE] += state[COUNT] * 8
    state[PAGE] += state[FAULT] == NOTHING


@kernel
def _set_dictionary(page, raw, form, state, decoded):
    """Convert the dictionary to the final type, once for all its uses. Returns a fault."""
    count, width = page[headers.VALUES], 4 if form[PHYSICAL] == INT32 or form[PHYSICAL] == FLOAT else 8
    if form[PHYSICAL] == BOOLEAN:
        return ENCODING_OTHER
    if page[headers.ENCODING] != headers.PLAIN and page[headers.ENCODING] != headers.PLAIN_DICTIONARY:
        return ENCODING_OTHER
    if count > len(raw) // width or count * 8 > len(decoded) - state[MADE]:
        return VALUES_WRONG
    fault = _check(page[headers.ADDRESS], count, form, state)
    if fault == NOTHING:
        state[DICTIONARY], state[SIZE] = decoded.ctypes.data + state[MADE], count
        columns.convert(state[DICTIONARY], page[headers.ADDRESS], count, form[STORED], form[ITEMSIZE])
        state[MADE] += count * 8
    return fault


@kernel
def _add_positions(page, raw, begin, first, count, state, table, tail):
    """Add the runs of a page's dictionary indices to the table. Returns a fault."""
    if state[SIZE] < 0:
        return NO_DICTIONARY
    if begin < len(raw) and raw[begin] > 32:
        return WIDTH_WRONG
    address, size = page[headers.ADDRESS], state[SIZE]
    free = table[state[RUNS] :]
    code, written = indices.index_positions(raw, begin, len(raw), address, count, size, tail, free, first)
    if code == UNKNOWN:
        return GROUP_CUT
    state[RUNS] += written
    return NOTHING if code == OK else POSITIONS_WRONG


@kernel
def _with_room(table, used, more):
    """The table, or a larger copy with room for `more` lines after the used ones."""
    if used + more <= len(table):
        return table
    larger = np.empty((2 * used + more, runs.COLUMNS), np.int64)
    for line in range(used):
        for column in range(runs.COLUMNS):
            larger[line, column] = table[line, column]
    return larger


@kernel(
    called_with="int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], uint8[:, ::1], "
    "uint8[::1]"
)
def read_pages(pages, form, state, length, absent, table, tails, decoded):
    """Add the pages from state[PAGE] on to `state` and `length`. Returns (`absent`, the table of runs), perhaps copied.

    It ends at a fault. At the fault RARE all of the page but its values is read: call `decode_page`, then this again.

    Args:
        pages: int64 [P, headers.COLUMNS]; rows before FIRST_ROW that are in no page stay empty. form, state: see above.
        length: int64 [rows]; absent: int64 [1 or more], as in `levels.read_levels`.
        table: int64 [R, runs.COLUMNS], of which state[RUNS] lines are written.
        tails: uint8 [P, indices.TAIL + 8]; decoded: uint8, `room_for` bytes. Both must live as long as the column.
    """
    bounds = np.empty(4, np.int64)
    for number in range(state[PAGE], len(pages)):
        page = pages[number]
        state[PAGE] = number
        raw = carray(pointer(page[headers.ADDRESS]), (page[headers.UNPACKED],), np.uint8)
        if page[headers.KIND] == headers.DICTIONARY:
            state[FAULT] = _set_dictionary(page, raw, form, state, decoded)
            if state[FAULT]:
                return absent, table
            continue
        state[FAULT] = _level_bounds(page, raw, bounds)
        if state[FAULT]:
            return absent, table
        first = state[levels.VALUES]
        if page[headers.END_ROW]:  # pages may be missing before this one: their rows stay empty
            state[levels.ROWS] = page[headers.FIRST_ROW]
        code, absent = levels.read_levels(
            raw, bounds, page[headers.VALUES], form[TOP], form[PRESENT], length, state, absent
        )
        if code != OK:
            state[FAULT] = LEVELS_WRONG
            return absent, table
        if page[headers.END_ROW] and state[levels.ROWS] != page[headers.END_ROW]:
            state[FAULT] = ROWS_WRONG
            return absent, table
        begin, count, encoding = bounds[3], state[levels.VALUES] - first, page[headers.ENCODING]
        if encoding == headers.RLE_DICTIONARY or encoding == headers.PLAIN_DICTIONARY:
            lines = 0
            # Counted first, so that the table grows once per page and not inside the loop over runs.
            if count and begin < len(raw) and raw[begin] <= 32:
                lines = indices.count_runs(raw, begin + 1, len(raw), np.int64(raw[begin]), count)
            table = _with_room(table, state[RUNS], lines + 1)
            state[FAULT] = _add_positions(page, raw, begin, first, count, state, table, tails[number])
        else:
            table = _with_room(table, state[RUNS], np.int64(2))
            line = table[state[RUNS]]
            line[runs.FIRST] = first
            if encoding == headers.PLAIN and form[PHYSICAL] != BOOLEAN:
                line[runs.FORM], line[runs.AT] = runs.PLAIN, page[headers.ADDRESS] + begin
                width = 4 if form[PHYSICAL] == INT32 or form[PHYSICAL] == FLOAT else 8
                if count > (len(raw) - begin) // width:
                    state[FAULT] = VALUES_WRONG
                else:
                    state[FAULT] = _check(line[runs.AT], count, form, state)
            else:
                split = encoding == headers.BYTE_STREAM_SPLIT
                line[runs.FORM] = runs.PLAIN if split else runs.FINAL
                line[runs.AT] = decoded.ctypes.data + state[MADE]
                state[FAULT], state[BEGIN], state[COUNT] = RARE, begin, count
            state[RUNS] += count > 0
        if state[FAULT]:
            return absent, table
    return absent, table


@kernel(called_with="int64[::1], int64, int64[::1], int64[::1], int64, int64, int64[::1]")
def finish_rows(column, rows, length, first, itemsize, target, absent):
    """Write `first`, int64 [rows], the elements before each row; and the elements themselves if `target` is not 0.

    column: int64 [4], see `fsdata.kernels.columns`. length: int64 [rows], negative for null rows. absent: int64 [k],
    ascending, null elements, which the column does not have: their positions in `target` are not written.
    """
    elements = np.int64(0)
    for row in range(rows):
        first[row] = elements
        elements += max(length[row], 0)
    if target == 0:
        return
    done, near = np.int64(0), np.int64(0)
    for k in range(len(absent) + 1):
        stop = absent[k] if k < len(absent) else elements
        if stop > done:
            # Element `done` is value done - k of the column: k null elements precede it.
            near = columns.fetch(target + done * itemsize, column, done - k, stop - done, itemsize, near)
        done = stop + 1
