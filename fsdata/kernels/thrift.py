"""Thrift's compact protocol, the part that Parquet uses (numba, nogil).

`raw` is always uint8, `at` the position of a byte in it. Numba does not check indices, so every function of this file
does: a read past the end returns zeros, which end every struct, and so does a number of more than 10 bytes. With
damaged input, loops therefore end and no foreign memory is read.
"""

import numpy as np

from fsranks.libraries import kernel

# Kinds. The others: 1, 2 true and false, 3 a byte, 4 to 6 integers, 7 a double.
BINARY, LIST, SET, MAP, STRUCT = 8, 9, 10, 11, 12
DEPTH = 64  # nested values of a footer: more than any version of the format has


@kernel
def varint(raw, at):
    value, shift = np.uint64(0), np.uint64(0)
    while at < len(raw) and shift < 70:  # 10 bytes of 7 bits
        byte = np.uint64(raw[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
        if byte < 128:
            return np.int64(value), at
    return np.int64(0), len(raw) + 1  # past the end: all further reads return zeros, too


@kernel
def varint32(raw, at):
    """A number of at most 32 bits and 5 bytes, as in pages; a longer one counts as a read past the end."""
    value, end = varint(raw, at)
    if end - at > 5 or value >> 32:
        return np.int64(0), len(raw) + 1
    return value, end


@kernel
def signed(raw, at):
    """A zigzag number: 0, -1, 1, -2, ... stored as 0, 1, 2, 3, ..."""
    value, at = varint(raw, at)
    return np.int64((np.uint64(value) >> np.uint64(1)) ^ np.uint64(-(value & 1))), at


@kernel
def next_field(raw, at, before):
    """(number of the next field, its kind, position of its value); kind 0 at the end of the struct.

    before: number of the previous field: the compact protocol stores the difference.
    """
    if at >= len(raw) or raw[at] == 0:
        return 0, 0, at + 1
    head = np.int64(raw[at])
    if head >> 4:
        return before + (head >> 4), head & 15, at + 1
    number, at = signed(raw, at + 1)
    return number, head & 15, at


@kernel
def items(raw, at):
    """(number of items, their kind, position of the first) of a list."""
    if at >= len(raw):
        return 0, 0, at
    head = np.int64(raw[at])
    at += 1
    if head >> 4 < 15:
        return head >> 4, head & 15, at
    count, at = varint(raw, at)
    return max(count, 0), head & 15, at


@kernel
def byte_string(raw, at):
    """(position of the first byte, number of bytes), cut at the end of `raw`."""
    size, at = varint(raw, at)
    return at, min(max(size, 0), len(raw) - min(at, len(raw)))


@kernel
def _after_scalar(raw, at, kind):
    """The end of a value that is no list or struct."""
    if kind == 3:
        return at + 1
    if 4 <= kind <= 6:
        return varint(raw, at)[1]
    if kind == 7:
        return at + 8
    if kind == BINARY:
        begin, size = byte_string(raw, at)
        return begin + size
    return at  # a boolean field of a struct: its kind is its value


@kernel
def after(raw, at, kind, inside):
    """The end of a value. Not recursive: numba cannot cache a function that calls itself.

    inside: int64 [DEPTH, 2], a stack in memory of the caller: kind of the elements (-1: fields of a struct), elements
    still to come.
    """
    if kind < LIST:
        return _after_scalar(raw, at, kind)
    if kind in (LIST, SET):  # mostly lists of scalars: skipped without the stack
        count, inner, begin = items(raw, at)
        if 2 < inner < LIST:
            for _ in range(count):
                if begin >= len(raw):
                    break
                begin = _after_scalar(raw, begin, inner)
            return begin
    depth = 0
    while True:
        if kind >= LIST:
            if kind == MAP or kind > STRUCT or depth == DEPTH:
                return len(raw)  # Parquet has no maps, no further kinds and no deeper values
            inside[depth, 0], inside[depth, 1] = -1, 0
            if kind != STRUCT:
                inside[depth, 1], inside[depth, 0], at = items(raw, at)
                if inside[depth, 0] == 0:
                    return len(raw)  # kind 0: elements without bytes, whose stated number could be any
            depth += 1
        elif depth and inside[depth - 1, 0] in (1, 2):
            at += 1  # unlike those of structs, the booleans of a list take a byte each
        else:
            at = _after_scalar(raw, at, kind)
        while depth:  # the next value, of the innermost list or struct that has one
            kind, left = inside[depth - 1]
            if kind < 0:
                _, kind, at = next_field(raw, at, np.int64(0))
                if kind:
                    break
            elif left and at < len(raw):
                inside[depth - 1, 1] -= 1
                break
            depth -= 1
        if depth == 0:
            return at
