"""Decodes encodings without random access, all values of a page at once (numba, nogil).

In the other encodings a value is found by its number, so `fsdata.kernels.columns` can copy single rows from the page.
Here a value depends on those before it (deltas, runs) or its bytes are scattered over the page (byte streams).
"""

import numpy as np

from fsdata.kernels.memory import word_at
from fsdata.kernels.thrift import signed, varint32
from fsdata.pages.kernels import DAMAGED, OK, UNKNOWN
from fsranks.libraries import kernel


@kernel
def _unpacked(raw, end, bit, width):
    """`width` bits, 1 to 64, that begin at `bit`. Byte by byte, for the end of a page; bytes from `end` on are 0."""
    value, at, have = np.uint64(0), bit >> 3, 0
    shift = np.uint64(bit & 7)
    while have < width + (bit & 7) and at < end:
        byte = np.uint64(raw[at])
        value |= byte << (np.uint64(have) - shift) if np.uint64(have) >= shift else byte >> shift
        have += 8
        at += 1
    return value if width == 64 else value & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@kernel
def _add_deltas(raw, begin, end, width, least, value, narrow, target):
    """Write the values that follow `value`, each by its delta, to `target`. Returns the last one."""
    # Unsigned, as sums of deltas may wrap around: the format defines them modulo 2**32 or 2**64.
    mask = ~np.uint64(0) if width == 64 else (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    address, safe = raw.ctypes.data, len(raw) - 9  # a value of 64 bits may be in 9 bytes
    for i in range(len(target)):
        delta = least
        bit = begin * 8 + i * width
        if width == 0:
            pass
        elif bit >> 3 <= safe:
            shift = np.uint64(bit & 7)
            bits = word_at(address + (bit >> 3)) >> shift
            if width > 57 and shift:  # more than the word has after the shift: the rest is in the ninth byte
                bits |= np.uint64(raw[(bit >> 3) + 8]) << (np.uint64(64) - shift)
            delta += bits & mask
        else:
            delta += _unpacked(raw, end, bit, width)
        value += delta
        if narrow:  # wraps around at 32 bits, then keeps the sign
            value = np.uint64(np.int64(np.int32(np.uint32(value & np.uint64(0xFFFFFFFF)))))
        target[i] = np.int64(value)
    return value


@kernel
def _signed(raw, at, narrow):
    """(the number, its end). A number of more than 64 bits, or 32 if `narrow`, counts as a read past the end."""
    value, end = signed(raw, at)
    most = 5 if narrow else 10
    if end > len(raw) or end - at > most:
        return np.int64(0), len(raw) + 1
    # The tenth byte has the 64th bit only.
    if (narrow and value != np.int32(value)) or (end - at == 10 and raw[end - 1] > 1):
        return np.int64(0), len(raw) + 1
    return value, end


@kernel
def read_deltas(raw, at, end, narrow, target):
    """Decode DELTA_BINARY_PACKED to `target`, int64 [n]. Returns a code.

    raw: uint8, the page; the values are at [at, end). narrow: whether they are int32.
    """
    block, at = varint32(raw, at)
    miniblocks, at = varint32(raw, at)
    total, at = varint32(raw, at)
    first, at = _signed(raw, at, narrow)
    # The bound of a block keeps the products below from overflowing.
    if at > end or block <= 0 or block % 128 or block > 1 << 30:
        return DAMAGED
    if miniblocks <= 0 or miniblocks > block or block % miniblocks:
        return DAMAGED
    per_miniblock = block // miniblocks
    if per_miniblock % 32:
        return DAMAGED
    if total != len(target):
        return UNKNOWN
    if len(target) == 0:
        return OK
    value = np.uint64(first)
    if narrow:
        value = np.uint64(np.int64(np.int32(np.uint32(value & np.uint64(0xFFFFFFFF)))))
    target[0] = np.int64(value)
    done = 1
    while done < len(target):
        least, widths = _signed(raw, at, narrow)
        at = widths + miniblocks
        if at > end:
            return DAMAGED
        for miniblock in range(miniblocks):
            if done == len(target):
                break  # the format allows any width for unused miniblocks, and their bytes are not stored
            width = np.int64(raw[widths + miniblock])
            count = min(per_miniblock, len(target) - done)
            # Miniblocks are stored whole, also the last one: its unused values are padding.
            if width > (32 if narrow else 64) or per_miniblock * width >> 3 > end - at:
                return DAMAGED
            value = _add_deltas(raw, at, end, width, np.uint64(least), value, narrow, target[done : done + count])
            done += count
            at += per_miniblock * width >> 3
    return OK


@kernel
def read_split(raw, begin, count, width, target):
    """Decode BYTE_STREAM_SPLIT to the bytes of one value after another. raw: uint8; target: uint8 [count * width]."""
    for byte in range(width):
        for i in range(count):
            target[i * width + byte] = raw[begin + byte * count + i]


@kernel
def read_bits(raw, begin, target):
    """Decode PLAIN booleans to `target`, int64 [n]."""
    for i in range(len(target)):
        target[i] = (raw[begin + (i >> 3)] >> (i & 7)) & 1


@kernel
def read_bit_runs(raw, begin, end, target):
    """Decode RLE booleans at [begin, end) to `target`, int64 [n]. Returns a code."""
    at, done = begin, 0
    while done < len(target):
        head, at = varint32(raw, at)
        count = min(head >> 1, len(target))  # groups of 8 values, or repetitions of one; bounded against overflow
        if at >= end or count <= 0:
            return DAMAGED
        if head & 1:
            if head >> 1 > end - at:
                return UNKNOWN
            values = min(count * 8, len(target) - done)
            for i in range(values):
                target[done + i] = (raw[at + (i >> 3)] >> (i & 7)) & 1
            at += head >> 1
        else:
            values = min(count, len(target) - done)
            if raw[at] > 1:
                return DAMAGED
            target[done : done + values] = raw[at]
            at += 1
        done += values
    return OK
