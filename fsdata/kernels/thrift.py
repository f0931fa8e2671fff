"""Thrift's compact protocol, as far as Parquet needs it (numba, nogil).

`raw` is always uint8, `at` the position of a byte in it. A read past the end gives zeros, which end every struct.
So does a number of more than 10 bytes.
"""

import numpy as np

from fsranks.libraries import kernel

BINARY, LIST, SET, MAP, STRUCT = 8, 9, 10, 11, 12
DEPTH = 64


@kernel
def varint(raw, at):
    value, shift = np.uint64(0), np.uint64(0)
    while at < len(raw) and shift < 70:
        byte = np.uint64(raw[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
        if byte < 128:
            return np.int64(value), at
    return np.int64(0), len(raw) + 1


@kernel
def varint32(raw, at):
    """A number of 32 bits, in 5 bytes at most, as pages have them; what is longer is a read past the end."""
    value, end = varint(raw, at)
    if end - at > 5 or value >> 32:
        return np.int64(0), len(raw) + 1
    return value, end


@kernel
def signed(raw, at):
    value, at = varint(raw, at)
    return np.int64((np.uint64(value) >> np.uint64(1)) ^ np.uint64(-(value & 1))), at


@kernel
def next_field(raw, at, before):
    """(number of the next field, its kind, where its value begins); kind 0 at the end of the struct."""
    if at >= len(raw) or raw[at] == 0:
        return 0, 0, at + 1
    head = np.int64(raw[at])
    if head >> 4:
        return before + (head >> 4), head & 15, at + 1
    number, at = signed(raw, at + 1)
    return number, head & 15, at


@kernel
def items(raw, at):
    """(how many, of which kind, where the first begins) of a list."""
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
    """(where they begin, how many)."""
    size, at = varint(raw, at)
    return at, min(max(size, 0), len(raw) - min(at, len(raw)))


@kernel
def _after_scalar(raw, at, kind):
    """Where a value without parts ends."""
    if kind == 3:
        return at + 1
    if 4 <= kind <= 6:
        return varint(raw, at)[1]
    if kind == 7:
        return at + 8
    if kind == BINARY:
        begin, size = byte_string(raw, at)
        return begin + size
    return at  # booleans have no bytes of their own


@kernel
def after(raw, at, kind, inside):
    """Where a value ends. Not recursive: numba cannot keep a function that calls itself in its cache.

    inside: int64 [DEPTH, 2], memory to work in: kind of the elements (-1: fields of a struct), how many are to come.
    """
    if kind < LIST:
        return _after_scalar(raw, at, kind)
    if kind in (LIST, SET):  # mostly of scalars
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
                return len(raw)  # Parquet has no maps, no other kinds and nothing as deep
            inside[depth, 0], inside[depth, 1] = -1, 0
            if kind != STRUCT:
                inside[depth, 1], inside[depth, 0], at = items(raw, at)
                if inside[depth, 0] == 0:
                    return len(raw)  # no kind: elements without bytes, as many as the list says
            depth += 1
        elif depth and inside[depth - 1, 0] in (1, 2):
            at += 1
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
