"""From Arrow arrays to (address, length) tables (numba, nogil): the decode side of `fsdata.decode.row_table`.

A record batch arrives as its Arrow C data interface struct, so one call walks all its columns without a Python object
per column. Values stay where Arrow decoded them; only dense scalars are copied, into one row-major block.

Letters: F fields, N rows of the table, D dense columns.
"""

import numpy as np
from numba import carray, njit

from fsdata.kernels.copy import copy, pointer

# Field kinds: how a column holds a field.
SCALAR = 0  # one value per row
LIST32 = 1  # list with int32 offsets
LIST64 = 2  # list with int64 offsets
FIXED = 3  # fixed-size list
CONSTANT = 4  # no column: every row has the default

# Null policies.
ERROR = 0
DEFAULT = 1
DROP = 2

# Codes of a report: [code, line, row, detail]; line: of the spec that the kernel was given.
OK = 0
NULL = 1  # the value, or the whole list, is null
NULL_ELEMENT = 2  # detail: position in the list
NOT_FINITE = 3  # detail: position in the list
RAGGED = 4  # line: the group

# Fields of struct ArrowArray, as indexes of 64-bit words.
_NULL_COUNT = 1
_OFFSET = 2
_BUFFERS = 5
_CHILDREN = 6

_LARGEST = np.float32(3.4028235e38)


@njit(nogil=True, cache=True, inline="always")
def _word(address: int, index: int) -> int:
    return carray(pointer(address), (index + 1,), np.int64)[index]


@njit(nogil=True, cache=True)
def _is_null(validity: int, position: int) -> bool:
    byte = carray(pointer(validity), ((position >> 3) + 1,), np.uint8)[position >> 3]
    return (byte >> (position & 7)) & 1 == 0


@njit(nogil=True, cache=True)
def _first_null(validity: int, begin: int, end: int) -> int:
    for position in range(begin, end):
        if _is_null(validity, position):
            return position - begin
    return -1


@njit(nogil=True, cache=True)
def _first_not_finite(values: int, begin: int, end: int) -> int:
    elements = carray(pointer(values), (end,), np.float32)
    bad = 0
    for i in range(begin, end):  # counts without a branch: this loop is on the path of every float list
        bad += not (abs(elements[i]) <= _LARGEST)
    if bad == 0:
        return -1
    for i in range(begin, end):
        if not (abs(elements[i]) <= _LARGEST):
            return i - begin
    return -1


@njit(nogil=True, cache=True)
def _report(report: np.ndarray, code: int, line: int, row: int, detail: int) -> None:
    report[0] = code
    report[1] = line
    report[2] = row
    report[3] = detail


@njit(nogil=True, cache=True)
def _index_scalars(child, spec, k, fallback, count, at, address, length, drop, report):
    field, _, _, _, itemsize, is_float, policy = spec[k]
    buffers = _word(child, _BUFFERS)
    offset = _word(child, _OFFSET)
    validity = _word(buffers, 0)
    values = _word(buffers, 1)
    has_nulls = validity != 0 and _word(child, _NULL_COUNT) != 0
    for i in range(count):
        n = at + i
        position = offset + i
        address[field, n] = values + position * itemsize
        length[field, n] = 1
        null = has_nulls and _is_null(validity, position)
        broken = not null and is_float == 1 and _first_not_finite(values, position, position + 1) >= 0
        if null or broken:
            if policy == ERROR:
                _report(report, NULL if null else NOT_FINITE, k, n, 0)
                return
            if policy == DROP:
                drop[n] = 1
            address[field, n] = fallback


@njit(nogil=True, cache=True)
def _bounds(child, buffers, kind, width, position):
    if kind == LIST32:
        offsets = carray(pointer(_word(buffers, 1)), (position + 2,), np.int32)
        return np.int64(offsets[position]), np.int64(offsets[position + 1])
    if kind == LIST64:
        wide = carray(pointer(_word(buffers, 1)), (position + 2,), np.int64)
        return wide[position], wide[position + 1]
    return position * width, (position + 1) * width


@njit(nogil=True, cache=True)
def _index_lists(child, spec, k, count, at, address, length, drop, report):
    """Returns whether elements must be replaced by the default before the column can be used."""
    field, _, kind, width, itemsize, is_float, policy = spec[k]
    buffers = _word(child, _BUFFERS)
    offset = _word(child, _OFFSET)
    validity = _word(buffers, 0)
    has_nulls = validity != 0 and _word(child, _NULL_COUNT) != 0
    items = _word(_word(child, _CHILDREN), 0)
    item_buffers = _word(items, _BUFFERS)
    item_offset = _word(items, _OFFSET)
    item_validity = _word(item_buffers, 0)
    item_nulls = item_validity != 0 and _word(items, _NULL_COUNT) != 0
    values = _word(item_buffers, 1)
    for i in range(count):
        n = at + i
        if has_nulls and _is_null(validity, offset + i):
            address[field, n] = 0
            length[field, n] = -1
            if policy == ERROR:
                _report(report, NULL, k, n, 0)
                return False
            if policy == DROP:
                drop[n] = 1
            continue
        begin, end = _bounds(child, buffers, kind, width, offset + i)
        begin += item_offset
        end += item_offset
        address[field, n] = values + begin * itemsize
        length[field, n] = end - begin
        bad = np.int64(-1)
        code = NULL_ELEMENT
        if item_nulls:
            bad = _first_null(item_validity, begin, end)
        if bad < 0 and is_float == 1:
            code = NOT_FINITE
            bad = _first_not_finite(values, begin, end)
        if bad >= 0:
            if policy == DEFAULT:
                return True
            if policy == ERROR:
                _report(report, code, k, n, bad)
                return False
            drop[n] = 1
    return False


@njit(nogil=True, cache=True)
def index_batch(batch, count, spec, fallback, at, address, length, drop, refill, report):
    """Write where the `count` rows of a record batch lie to rows [at, at + count) of the table.

    batch: int64, address of the batch's struct ArrowArray; spec: int64 [K, 7], one line per column that holds a field:
    (field, column, kind, width, itemsize, is_float, policy), width being that of a fixed-size list or the length that
    CONSTANT writes; fallback: int64 [K], address of the default; address, length: int64 [F, N]; drop: uint8 [N];
    refill: uint8 [K]; report: int64 [4], see the codes above.

    A list that is null gets length -1 and address 0: its length is that of its group. A field with null or non-finite
    elements under DEFAULT is marked in `refill`; its rows are then not complete.
    """
    children = _word(batch, _CHILDREN)
    for k in range(len(spec)):
        kind = spec[k, 2]
        if kind == CONSTANT:
            for n in range(at, at + count):
                address[spec[k, 0], n] = fallback[k]
                length[spec[k, 0], n] = spec[k, 3]
            continue
        child = _word(children, spec[k, 1])
        if kind == SCALAR:
            _index_scalars(child, spec, k, fallback[k], count, at, address, length, drop, report)
        else:
            refill[k] = _index_lists(child, spec, k, count, at, address, length, drop, report)
        if report[0] != OK:
            return


@njit(nogil=True, cache=True)
def fill_dense(batch, count, spec, default, at, block, drop, report):
    """Interleave float32 columns into rows [at, at + count) of `block`.

    spec: int64 [K, 3], (dense column d, column in the batch or -1 for the default, policy); default: float32 [K];
    block: float32 [N, D]. Nulls and non-finite values follow the policy.
    """
    children = _word(batch, _CHILDREN)
    for k in range(len(spec)):
        d, column, policy = spec[k]
        if column < 0:
            for n in range(at, at + count):
                block[n, d] = default[k]
            continue
        child = _word(children, column)
        buffers = _word(child, _BUFFERS)
        offset = _word(child, _OFFSET)
        validity = _word(buffers, 0)
        has_nulls = validity != 0 and _word(child, _NULL_COUNT) != 0
        values = carray(pointer(_word(buffers, 1)), (offset + count,), np.float32)
        for i in range(count):
            n = at + i
            value = values[offset + i]
            null = has_nulls and _is_null(validity, offset + i)
            if null or not (abs(value) <= _LARGEST):
                if policy == ERROR:
                    _report(report, NULL if null else NOT_FINITE, k, n, 0)
                    return
                if policy == DROP:
                    drop[n] = 1
                value = default[k]
            block[n, d] = value


@njit(nogil=True, cache=True)
def packed_bytes(length, itemsize, fields, limit, drop, at, count):
    """Bytes that `pack_rows` writes for rows [at, at + count)."""
    total = 0
    for n in range(at, at + count):
        if drop[n]:
            continue
        for f in fields:
            if length[f, n] > 0:
                total += (length[f, n] if limit[f] < 0 else min(length[f, n], limit[f])) * itemsize[f]
        total = (total + 7) & ~7
    return total


@njit(nogil=True, cache=True)
def pack_rows(address, length, itemsize, fields, limit, keep_last, drop, at, count, target):
    """Copy rows [at, at + count) to `target`, field after field of one row after another, and address them there.

    address, length: int64 [F, N], addresses changed in place; fields: int64, which of them, in order of falling item
    size; limit: int64 [F], most elements, -1 for all; keep_last: uint8 [F]; drop: uint8 [N]; target: int64, byte
    address, a multiple of 8. Of a longer list only the end that truncation will keep is copied: its address is where
    the whole list would begin, as `align_groups` expects.
    """
    to = target
    for n in range(at, at + count):
        if drop[n]:
            continue
        for f in fields:
            elements = length[f, n]
            if elements > 0:
                kept = elements if limit[f] < 0 else min(elements, limit[f])
                skip = (elements - kept) * itemsize[f] if keep_last[f] else 0
                copy(to, address[f, n] + skip, kept, itemsize[f])
                address[f, n] = to - skip
                to += kept * itemsize[f]
        to = target + ((to - target + 7) & ~7)


@njit(nogil=True, cache=True)
def align_groups(address, length, itemsize, members, starts, limit, keep_last, drop, needed, report):
    """Give all lists of a group one length: check it, fill null lists, truncate.

    address, length: int64 [F, N], changed in place; members: int64, fields of group after group; starts: int64 [G+1];
    limit: int64 [G], most elements, -1 for all; keep_last: uint8 [G]; drop: uint8 [N]; needed: int64 [F], how many
    elements the field's default must have (those rows keep address 0). Lengths are compared before truncation.
    """
    for g in range(len(limit)):
        for n in range(length.shape[1]):
            if drop[n]:
                continue
            common = np.int64(-1)
            for m in range(starts[g], starts[g + 1]):
                count = length[members[m], n]
                if count >= 0 and common < 0:
                    common = count
                elif count >= 0 and count != common:
                    _report(report, RAGGED, g, n, 0)
                    return
            common = max(common, np.int64(0))
            cut = common if limit[g] < 0 else min(common, limit[g])
            skip = common - cut if keep_last[g] else 0
            for m in range(starts[g], starts[g + 1]):
                f = members[m]
                if length[f, n] < 0:
                    address[f, n] = 0
                    needed[f] = max(needed[f], cut)
                else:
                    address[f, n] += skip * itemsize[f]
                length[f, n] = cut
