"""Reads the column chunks of a Parquet footer from its bytes and checks them (numba, nogil).

pyarrow parses footers, too, but some of its accessors end the process if a number is wrong: they throw C++ exceptions
that nothing catches. Every number on which pyarrow or FreeScale relies is therefore checked here first. The bytes are
in Thrift's compact protocol; a read past their end returns zeros, which end every struct.

Letters: L leaf columns, G row groups.
"""

import numpy as np

from fsdata.kernels.thrift import BINARY, DEPTH, LIST, STRUCT, after, byte_string, items, next_field, signed
from fsranks.libraries import kernel

# Columns of the table of chunks, int64 [G * L, 11].
BEGIN = 0  # first byte of the chunk in the file
STORED = 1  # bytes of the chunk
NULLS = 2  # null count of the statistics, -1 without one
UNPACKED = 3  # bytes of its pages after decompression
VALUES = 4
LEAST = 5  # position in the footer of the statistics' least value, -1 without one
GREATEST = 6
INDEX_AT = 7  # first byte of the offset index in the file
INDEX_BYTES = 8  # of it; 0 without one, or if it is not inside the file
ENCRYPTION = 9  # position in the footer of the chunk's encryption fields, 0 without
ENCRYPTION_END = 10  # first byte after them; they are the last fields of the chunk
CHUNK_COLUMNS = 11

# Codes of a report: [code, row group, leaf, actual, allowed]; row group or leaf is -1 if the fault is not of one. Each
# comment: the actual number, the allowed number.
OK = 0
NO_SCHEMA = 1  # no schema before the row groups
COLUMNS = 2  # chunks of a row group, leaves of the schema
TYPE = 3  # physical type, that of the schema
STATISTIC = 4  # bytes of a least or greatest value, bytes of its type
REPETITIONS = 5  # length of the histogram of repetition levels, levels
DEFINITIONS = 6
BYTES_OF_NUMBERS = 7  # size of byte arrays of a column that has none
NULL_COUNT = 8  # nulls, 0
CHUNK_VALUES = 9  # values, rows of the row group
GROUP_ROWS = 10  # rows of a row group, 0
FILE_ROWS = 11  # rows of the file, rows of all row groups
POSITION = 12  # first byte after the chunk, first byte of the footer
EXPANDED = 13  # bytes after decompression, bytes stored, of a chunk that is not compressed
CODEC = 14  # of compression, the largest known

_BYTE_ARRAY = 6
_CODECS = 7
_WIDTHS = np.array([1, 4, 8, 12, 4, 8, -1, -1])  # bytes of a value by physical type; -1: of any size


@kernel
def _element(raw, at, node, inside):
    """Write a node of the schema to `node`: physical type (-1: a group), repetition, children. Returns its end."""
    node[0], node[1], node[2] = -1, 0, 0
    before = np.int64(0)
    while True:
        before, kind, at = next_field(raw, at, before)
        if kind == 0:
            return at
        if kind == 5 and (before == 1 or before == 3 or before == 5):
            node[before // 2], at = signed(raw, at)  # fields 1, 3, 5: type, repetition type, number of children
        else:
            at = after(raw, at, kind, inside)


@kernel
def _leaves(raw, at, inside):
    """int64 [L, 3]: physical type, levels of repetition and of definition of every leaf; and the end of the schema.

    The schema is a tree in depth-first order.
    """
    count, _, at = items(raw, at)
    count = min(count, len(raw))  # a node takes a byte at least: a damaged number must not allocate gigabytes
    leaves = np.empty((count, 3), np.int64)
    open_groups = np.empty((count + 1, 3), np.int64)  # children to come, levels of repetition, of definition
    node = np.empty(3, np.int64)
    depth, number = 0, 0
    for position in range(count):
        at = _element(raw, at, node, inside)
        repetition, definition = 0, 0
        if position:  # the root has no levels
            while depth and open_groups[depth - 1, 0] <= 0:
                depth -= 1
            if depth:
                open_groups[depth - 1, 0] -= 1
                repetition, definition = open_groups[depth - 1, 1], open_groups[depth - 1, 2]
            repetition += node[1] == 2
            definition += node[1] == 1 or node[1] == 2  # optional, repeated; pyarrow ignores other types, too
        if node[0] < 0 or node[2] != 0:
            open_groups[depth, 0], open_groups[depth, 1], open_groups[depth, 2] = node[2], repetition, definition
            depth += 1
        else:
            leaves[number, 0], leaves[number, 1], leaves[number, 2] = node[0], repetition, definition
            number += 1
    return leaves[:number], at


@kernel(inline="always")
def _fault(report, code, leaf, actual, allowed):
    """Report a fault, unless there is an earlier one. `read_chunks` adds the row group."""
    if report[0] == OK:
        report[0], report[2], report[3], report[4] = code, leaf, actual, allowed


@kernel
def _statistics(raw, at, kind, leaf, chunk, report, inside):
    """Statistics -> `chunk`. kind: physical type of the column. Returns their end."""
    width = _WIDTHS[kind] if 0 <= kind < len(_WIDTHS) else -1
    before = np.int64(0)
    while True:
        before, inner, at = next_field(raw, at, before)
        if inner == 0:
            return at
        # Fields 1 and 2, the deprecated max and min, are only checked: their order of values is not defined.
        if inner == BINARY and (before <= 2 or before == 5 or before == 6):
            begin, size = byte_string(raw, at)
            at = begin + size
            if width >= 0 and size != width:
                _fault(report, STATISTIC, leaf, size, width)
            if before == 5:
                chunk[GREATEST] = begin
            elif before == 6:
                chunk[LEAST] = begin
        elif before == 3 and inner == 6:
            chunk[NULLS], at = signed(raw, at)
            if chunk[NULLS] < 0:
                _fault(report, NULL_COUNT, leaf, chunk[NULLS], 0)
        else:
            at = after(raw, at, inner, inside)


@kernel
def _sizes(raw, at, levels, leaf, report, inside):
    """Check SizeStatistics. levels: int64 [3], the leaf's line of `_leaves`. Returns their end."""
    before = np.int64(0)
    while True:
        before, inner, at = next_field(raw, at, before)
        if inner == 0:
            return at
        if inner == LIST and (before == 2 or before == 3):
            count, _, _ = items(raw, at)
            # One entry for each level from 0 to the leaf's largest one; writers may omit a histogram.
            if count and count != levels[before - 1] + 1:
                _fault(report, REPETITIONS if before == 2 else DEFINITIONS, leaf, count, levels[before - 1] + 1)
        elif before == 1 and levels[0] != _BYTE_ARRAY:
            _fault(report, BYTES_OF_NUMBERS, leaf, 0, 0)
        at = after(raw, at, inner, inside)


@kernel
def _metadata(raw, at, levels, leaf, chunk, report, inside):
    """ColumnMetaData -> `chunk`. levels: int64 [3], the leaf's line of `_leaves`. Returns its end."""
    kind, codec, data, dictionary = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    before = np.int64(0)
    while True:
        before, inner, at = next_field(raw, at, before)
        if inner == 0:
            break
        if inner == 5 or inner == 6:
            value, at = signed(raw, at)
            if before == 1:
                kind = value
            elif before == 4:
                codec = value
            elif before == 5:
                chunk[VALUES] = value
            elif before == 6:
                chunk[UNPACKED] = value
            elif before == 7:
                chunk[STORED] = value
            elif before == 9:
                data = value
            elif before == 11:
                dictionary = value
        elif before == 12 and inner == STRUCT:
            at = _statistics(raw, at, levels[0], leaf, chunk, report, inside)
        elif before == 16 and inner == STRUCT:
            at = _sizes(raw, at, levels, leaf, report, inside)
        else:
            at = after(raw, at, inner, inside)
    if kind != levels[0]:
        _fault(report, TYPE, leaf, kind, levels[0])
    if codec < 0 or codec > _CODECS:
        _fault(report, CODEC, leaf, codec, _CODECS)
    if codec == 0 and chunk[UNPACKED] > chunk[STORED]:
        _fault(report, EXPANDED, leaf, chunk[UNPACKED], chunk[STORED])
    # Some writers set 0 as the position of a dictionary that is not there.
    chunk[BEGIN] = dictionary if 0 < dictionary < data else data
    return at


@kernel
def _group(raw, at, leaves, chunks, report, inside):
    """One row group -> its lines of `chunks`. Returns its end and its rows."""
    before, columns, rows = np.int64(0), np.int64(0), np.int64(0)
    while True:
        before, kind, at = next_field(raw, at, before)
        if kind == 0:
            break
        if before == 1 and kind == LIST:
            columns, _, at = items(raw, at)
            for leaf in range(columns):
                if at >= len(raw):
                    break  # `columns` may be any number in a damaged footer
                part = np.int64(0)
                while True:
                    begin = at
                    part, inner, at = next_field(raw, at, part)
                    if inner == 0:
                        if leaf < len(leaves) and chunks[leaf, ENCRYPTION]:
                            chunks[leaf, ENCRYPTION_END] = begin
                        break
                    if part >= 8 and leaf < len(leaves) and not chunks[leaf, ENCRYPTION]:
                        chunks[leaf, ENCRYPTION] = begin  # fields 8 and 9: crypto metadata, encrypted column metadata
                    if part == 3 and inner == STRUCT and leaf < len(leaves):
                        at = _metadata(raw, at, leaves[leaf], leaf, chunks[leaf], report, inside)
                    elif ((part == 4 and inner == 6) or (part == 5 and inner == 5)) and leaf < len(leaves):
                        chunks[leaf, INDEX_AT + part - 4], at = signed(raw, at)
                    else:
                        at = after(raw, at, inner, inside)
        elif before == 3 and kind == 6:
            rows, at = signed(raw, at)
        else:
            at = after(raw, at, kind, inside)
    if columns != len(leaves):
        _fault(report, COLUMNS, -1, columns, len(leaves))
    if rows < 0:
        _fault(report, GROUP_ROWS, -1, rows, 0)
    return at, rows


@kernel
def _check_chunks(leaves, chunks, rows, room, report):
    for leaf in range(len(leaves)):
        chunk = chunks[leaf]
        # A row has one value, or at least one if it is repeated (an empty list counts as a value).
        if chunk[VALUES] < rows or (leaves[leaf, 1] == 0 and chunk[VALUES] != rows):
            _fault(report, CHUNK_VALUES, leaf, chunk[VALUES], rows)
        if chunk[NULLS] > chunk[VALUES]:  # polars 1 counts the nulls of pages several times: treat them as unknown
            chunk[NULLS] = -1
        begin, stored = chunk[BEGIN], chunk[STORED]
        # Byte 4: after the magic. `room - begin`, as `begin + stored` of damaged numbers may overflow.
        if rows and (begin < 4 or stored < 1 or begin > room or stored > room - begin):
            _fault(report, POSITION, leaf, begin + stored, room)
        at, size = chunk[INDEX_AT], chunk[INDEX_BYTES]
        if at < 4 or size < 0 or at > room or size > room - at:
            chunk[INDEX_BYTES] = 0  # no fault: reading works without the index


@kernel(called_with="Array(uint8, 1, 'C', True), int64, int64[::1]")
def read_chunks(raw, room, report):
    """Read and check the chunks of all row groups, up to the first fault.

    Returns the chunks, int64 [G * L, 11]; int64 [5]: the first byte of the schema, the first one after it, whether a
    chunk begins before the end of the previous one, the first byte of the key-value metadata, the first one after it;
    and the rows of each row group, int64 [G].

    Args:
        raw: uint8, the footer without its length and magic.
        room: bytes of the file before the footer.
        report: int64 [5], zeros; the first fault.
    """
    leaves, chunks = np.empty((0, 3), np.int64), np.empty((0, CHUNK_COLUMNS), np.int64)
    inside = np.empty((DEPTH, 2), np.int64)
    described, of_group = np.zeros(5, np.int64), np.zeros(0, np.int64)
    end = np.int64(0)
    before, at, claimed, total, number = np.int64(0), np.int64(0), np.int64(0), np.int64(0), 0
    report[1] = report[2] = -1
    while True:
        before, kind, at = next_field(raw, at, before)
        if kind == 0:
            break
        if before == 2 and kind == LIST:
            described[0] = at
            leaves, at = _leaves(raw, at, inside)
            described[1] = at
        elif before == 3 and kind == 6:
            claimed, at = signed(raw, at)
        elif before == 4 and kind == LIST:
            groups, _, at = items(raw, at)
            groups = min(groups, len(raw))
            # Every chunk takes a byte at least: this bounds the memory that a damaged footer can allocate.
            if groups and (len(leaves) == 0 or groups * len(leaves) > len(raw)):
                _fault(report, NO_SCHEMA, -1, 0, 0)
                return chunks, described, of_group
            of_group = np.zeros(groups, np.int64)
            chunks = np.zeros((groups * len(leaves), CHUNK_COLUMNS), np.int64)
            chunks[:, NULLS] = -1
            chunks[:, LEAST : GREATEST + 1] = -1
            for number in range(groups):
                part = chunks[number * len(leaves) : (number + 1) * len(leaves)]
                at, rows = _group(raw, at, leaves, part, report, inside)
                _check_chunks(leaves, part, rows, room, report)
                for leaf in range(len(leaves)):
                    # Files nearly always have their chunks in order; only for others the caller sorts to find overlaps.
                    if part[leaf, VALUES] > 0:
                        described[2] |= part[leaf, BEGIN] < end
                        end = part[leaf, BEGIN] + max(part[leaf, STORED], 0)
                of_group[number] = rows
                total += rows
                if report[0] != OK:
                    report[1] = number
                    return chunks, described, of_group
        elif before == 5 and kind == LIST:
            described[3] = at
            at = after(raw, at, kind, inside)
            described[4] = min(at, len(raw))
        else:
            at = after(raw, at, kind, inside)
    if claimed != total:
        _fault(report, FILE_ROWS, -1, claimed, total)
    return chunks, described, of_group
