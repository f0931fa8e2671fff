"""From Arrow arrays to (address, length) tables (numba, nogil): the decode side of `fsdata.decode.row_table`.

A record batch arrives as its Arrow C data interface struct, so one call walks all its columns without a Python object
per column. Values stay where Arrow decoded them; only dense scalars are copied, into one row-major block.

Letters: F fields, N rows of the table, D dense columns, K fields that a kernel is given.
"""

from typing import NamedTuple

import numpy as np
from numba import carray

from fsdata.kernels.copy import copy
from fsdata.kernels.memory import pointer
from fsranks.libraries import kernel

# Shapes: how a column holds a field.
SCALAR = 0  # one value per row
LIST32 = 1  # list with int32 offsets
LIST64 = 2  # list with int64 offsets
FIXED = 3  # fixed-size list
CONSTANT = 4  # no column: every row has the default

# Null policies.
ERROR = 0
DEFAULT = 1
DROP = 2

# Codes of a FAULT.
OK = 0
NULL = 1  # the value, or the whole list, is null
NULL_ELEMENT = 2  # detail: position in the list
NOT_FINITE = 3  # detail: position in the list
RAGGED = 4

# How a column of a record batch fills one field. Integers:
#   slot: the field's line of `address` and `length`; column: of the record batch, -1 without one;
#   width: elements of a FIXED list, or the length that CONSTANT writes; is_float: 1 for float32, 0 for int64;
#   default: address of the default, 0 for lists; max_length: longest list that a batch can hold, -1 without a limit;
#   keep_last: which end of a longer list is kept, 1 for the last elements.
_NUMBERS = ("slot", "column", "shape", "width", "itemsize", "is_float", "policy", "default", "max_length", "keep_last")
FIELD = np.dtype([(name, np.int64) for name in _NUMBERS])

# How a column fills one dense field; slot: its column of the dense block; column: -1 if every row has the default.
DENSE_FIELD = np.dtype(
    [("slot", np.int64), ("column", np.int64), ("policy", np.int64), ("default", np.float32)], align=True
)

# A nested list: the lines of its counts and of its ids; the rest as in FIELD, for its events.
NESTED = np.dtype([(name, np.int64) for name in ("counts", "ids", "max_length", "keep_last")])

# Fields that share their lengths: members[first:stop] of them; the rest as in FIELD.
GROUP = np.dtype([(name, np.int64) for name in ("first", "stop", "max_length", "keep_last")])

# The first fault that a kernel found; line: of the FIELDs, DENSE_FIELDs or GROUPs that it was given.
FAULT = np.dtype([(name, np.int64) for name in ("code", "line", "row", "detail")])


class References(NamedTuple):
    """Where every field of every row lies.

    address, length: int64 [F, N]; drop: uint8 [N], rows that a null policy leaves out.
    """

    address: np.ndarray
    length: np.ndarray
    drop: np.ndarray


# Fields of struct ArrowArray, as indexes of 64-bit words.
_NULL_COUNT = 1
_OFFSET = 2
_BUFFERS = 5
_CHILDREN = 6

_LARGEST = np.float32(3.4028235e38)


@kernel(inline="always")
def _word(address: int, index: int) -> int:
    return carray(pointer(address), (index + 1,), np.int64)[index]


@kernel
def _is_null(validity: int, position: int) -> bool:
    byte = carray(pointer(validity), ((position >> 3) + 1,), np.uint8)[position >> 3]
    return (byte >> (position & 7)) & 1 == 0


@kernel
def _first_null(validity: int, begin: int, end: int) -> int:
    for position in range(begin, end):
        if _is_null(validity, position):
            return position - begin
    return -1


@kernel
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


@kernel(inline="always")
def _report(fault, code, row, detail):
    fault[0].code = code
    fault[0].row = row
    fault[0].detail = detail


@kernel
def _index_scalars(child, field, count, at, table, fault):
    slot, itemsize, is_float, policy, default = field.slot, field.itemsize, field.is_float, field.policy, field.default
    address, length = table.address, table.length
    buffers = _word(child, _BUFFERS)
    offset = _word(child, _OFFSET)
    validity = _word(buffers, 0)
    values = _word(buffers, 1)
    has_nulls = validity != 0 and _word(child, _NULL_COUNT) != 0
    for i in range(count):
        n = at + i
        position = offset + i
        address[slot, n] = values + position * itemsize
        length[slot, n] = 1
        null = has_nulls and _is_null(validity, position)
        broken = not null and is_float == 1 and _first_not_finite(values, position, position + 1) >= 0
        if null or broken:
            if policy == ERROR:
                _report(fault, NULL if null else NOT_FINITE, n, 0)
                return
            if policy == DROP:
                table.drop[n] = 1
            address[slot, n] = default


@kernel
def _bounds(child, buffers, shape, width, position):
    if shape == LIST32:
        offsets = carray(pointer(_word(buffers, 1)), (position + 2,), np.int32)
        return np.int64(offsets[position]), np.int64(offsets[position + 1])
    if shape == LIST64:
        wide = carray(pointer(_word(buffers, 1)), (position + 2,), np.int64)
        return wide[position], wide[position + 1]
    return position * width, (position + 1) * width


@kernel
def _index_lists(child, field, count, at, table, fault):
    """Returns whether elements must be replaced by the default before the column can be used."""
    slot, shape, width, itemsize = field.slot, field.shape, field.width, field.itemsize
    is_float, policy = field.is_float, field.policy
    address, length = table.address, table.length
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
            address[slot, n] = 0
            length[slot, n] = -1
            if policy == ERROR:
                _report(fault, NULL, n, 0)
                return False
            if policy == DROP:
                table.drop[n] = 1
            continue
        begin, end = _bounds(child, buffers, shape, width, offset + i)
        begin += item_offset
        end += item_offset
        address[slot, n] = values + begin * itemsize
        length[slot, n] = end - begin
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
                _report(fault, code, n, bad)
                return False
            table.drop[n] = 1
    return False


@kernel
def index_batch(batch, count, fields, at, table, refill, fault):
    """Write where the `count` rows of a record batch lie to rows [at, at + count) of the table.

    batch: int64, address of the batch's struct ArrowArray; fields: FIELD [K]; table: References; refill: uint8 [K];
    fault: FAULT [1], zeros.

    A list that is null gets length -1 and address 0: its length is that of its group. A field with null or non-finite
    elements under DEFAULT is marked in `refill`; its rows are then not complete.
    """
    children = _word(batch, _CHILDREN)
    for k in range(len(fields)):
        field = fields[k]
        if field.shape == CONSTANT:
            for n in range(at, at + count):
                table.address[field.slot, n] = field.default
                table.length[field.slot, n] = field.width
            continue
        child = _word(children, field.column)
        if field.shape == SCALAR:
            _index_scalars(child, field, count, at, table, fault)
        else:
            refill[k] = _index_lists(child, field, count, at, table, fault)
        if fault[0].code != OK:
            fault[0].line = k
            return


@kernel
def fill_dense(batch, count, fields, at, block, drop, fault):
    """Interleave float32 columns into rows [at, at + count) of `block`.

    fields: DENSE_FIELD [K]; block: float32 [N, D]; the rest as in `index_batch`. Nulls and non-finite values follow the
    policy.
    """
    children = _word(batch, _CHILDREN)
    for k in range(len(fields)):
        slot, column, policy, default = fields[k].slot, fields[k].column, fields[k].policy, fields[k].default
        if column < 0:
            for n in range(at, at + count):
                block[n, slot] = default
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
                    _report(fault, NULL if null else NOT_FINITE, n, 0)
                    fault[0].line = k
                    return
                if policy == DROP:
                    drop[n] = 1
                value = default
            block[n, slot] = value


@kernel
def index_column(base, first, length, rows, field, at, table, fault):
    """The same for a column that was not decoded by Arrow.

    base: address of its first value; first, length: int64, where the values of every row of the row group begin and how
    many there are, -1 where it is null; rows: int64 [n], the rows that are wanted; field: FIELD [1].
    """
    slot, policy, itemsize = field[0].slot, field[0].policy, field[0].itemsize
    for i in range(len(rows)):
        n, row = at + i, rows[i]
        table.address[slot, n] = base + first[row] * itemsize
        table.length[slot, n] = length[row]
        if length[row] < 0:
            if policy == ERROR:
                _report(fault, NULL, n, 0)
                return
            if policy == DROP:
                table.drop[n] = 1
            table.address[slot, n] = field[0].default
            if field[0].shape == SCALAR:
                table.length[slot, n] = 1


@kernel
def fill_column(values, first, length, rows, field, at, block, drop, fault):
    """`fill_dense` of such a column. values: float32, finite; field: DENSE_FIELD [1]."""
    slot = field[0].slot
    for i in range(len(rows)):
        n, row = at + i, rows[i]
        if length[row] > 0:
            block[n, slot] = values[first[row]]
            continue
        if field[0].policy == ERROR:
            _report(fault, NULL, n, 0)
            return
        if field[0].policy == DROP:
            drop[n] = 1
        block[n, slot] = field[0].default


@kernel(inline="always")
def _kept(field, elements):
    """How many of so many elements truncation keeps."""
    return elements if field.max_length < 0 else min(elements, field.max_length)


@kernel
def cut_nested(fields, at, count, table):
    """Leave of the ids of rows [at, at + count) those of the events that truncation keeps.

    fields: NESTED [K], each list of counts int64; table: References, whose ids are changed in place. The counts
    themselves stay whole, for `align_groups` to compare and cut. Where they are null, the row has no ids.
    """
    address, length = table.address, table.length
    for k in range(len(fields)):
        field = fields[k]
        for n in range(at, at + count):
            events = length[field.counts, n]
            if table.drop[n] or events < 0:
                length[field.ids, n] = 0
                continue
            kept = _kept(field, events)
            skip = events - kept if field.keep_last else 0
            counts = carray(pointer(address[field.counts, n]), (events,), np.int64)
            before = np.int64(0)
            for i in range(skip):
                before += counts[i]
            inside = np.int64(0)
            for i in range(skip, skip + kept):
                inside += counts[i]
            address[field.ids, n] += before * 8
            length[field.ids, n] = inside


@kernel
def packed_bytes(fields, table, at, count):
    """Bytes that `pack_rows` writes for rows [at, at + count)."""
    total = 0
    for n in range(at, at + count):
        if table.drop[n]:
            continue
        for k in range(len(fields)):
            field = fields[k]
            elements = table.length[field.slot, n]
            if elements > 0:
                total += _kept(field, elements) * field.itemsize
        total = (total + 7) & ~7
    return total


@kernel
def pack_rows(fields, table, at, count, target):
    """Copy rows [at, at + count) to `target`, field after field of one row after another, and address them there.

    fields: FIELD [K], in order of falling item size; table: References, addresses changed in place; target: int64, byte
    address, a multiple of 8. Of a longer list only the end that truncation will keep is copied: its address is where
    the whole list would begin, as `align_groups` expects.
    """
    to = target
    for n in range(at, at + count):
        if table.drop[n]:
            continue
        for k in range(len(fields)):
            field = fields[k]
            elements = table.length[field.slot, n]
            if elements > 0:
                kept = _kept(field, elements)
                skip = (elements - kept) * field.itemsize if field.keep_last else 0
                copy(to, table.address[field.slot, n] + skip, kept, field.itemsize)
                table.address[field.slot, n] = to - skip
                to += kept * field.itemsize
        to = target + ((to - target + 7) & ~7)


@kernel
def align_groups(table, itemsize, members, groups, needed, fault):
    """Give all lists of a group one length: check it, fill null lists, truncate.

    table: References, changed in place; itemsize: int64 [F]; members: int64, fields of group after group; groups:
    GROUP [G]; needed: int64 [F], how many elements the field's default must have (those rows keep address 0); fault:
    FAULT [1], zeros. Lengths are compared before truncation.
    """
    address, length = table.address, table.length
    for g in range(len(groups)):
        first, stop, keep_last = groups[g].first, groups[g].stop, groups[g].keep_last
        for n in range(length.shape[1]):
            if table.drop[n]:
                continue
            common = np.int64(-1)
            for m in range(first, stop):
                count = length[members[m], n]
                if count >= 0 and common < 0:
                    common = count
                elif count >= 0 and count != common:
                    _report(fault, RAGGED, n, 0)
                    fault[0].line = g
                    return
            common = max(common, np.int64(0))
            kept = _kept(groups[g], common)
            skip = common - kept if keep_last else 0
            for m in range(first, stop):
                f = members[m]
                if length[f, n] < 0:
                    address[f, n] = 0
                    needed[f] = max(needed[f], kept)
                else:
                    address[f, n] += skip * itemsize[f]
                length[f, n] = kept
