"""The first bytes of what Snappy or LZ4 has compressed; libraries unpack all or nothing (numba, nogil).

Both formats are literals, bytes to take as they are, and copies of bytes that are already there.
"""

import numpy as np
from numba import njit

from fsdata.kernels.thrift import varint


@njit(nogil=True, cache=True)
def _little(raw, at, size):
    """A number of `size` bytes, the lowest first."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(raw[at + i]) << (8 * i)
    return value


@njit(nogil=True, cache=True)
def _take(raw, at, target, done, length):
    """A literal, as far as `target` has room. How many bytes of `target` are then done."""
    some = min(length, len(target) - done)
    target[done : done + some] = raw[at : at + some]
    return done + some


@njit(nogil=True, cache=True)
def _copy(target, done, offset, length):
    """Repeat `length` bytes from `offset` bytes ago, which may overlap with those to come."""
    some = min(length, len(target) - done)
    if offset >= some:
        target[done : done + some] = target[done - offset : done - offset + some]
    else:
        for i in range(done, done + some):
            target[i] = target[i - offset]
    return done + some


@njit(nogil=True, cache=True)
def snappy_front(raw, target, size):
    """Fill `target`. How many bytes: fewer than fit if `raw` ends before; -1 if it is no Snappy of `size` bytes.

    raw, target: uint8.
    """
    told, at = varint(raw, 0)
    if told != size:
        return -1
    done = 0
    while done < len(target) and at < len(raw):
        tag = np.int64(raw[at])
        at += 1
        kind, length = tag & 3, (tag >> 2) + 1
        more = 0 if kind == 0 and length <= 60 else length - 60 if kind == 0 else 4 if kind == 3 else kind
        if more > len(raw) - at:
            return -1
        number = _little(raw, at, more)
        at += more
        if kind == 0:
            length = number + 1 if more else length
            if length > len(raw) - at:
                return -1
            done = _take(raw, at, target, done, length)
            at += length
            continue
        if kind == 1:
            length, number = ((tag >> 2) & 7) + 4, ((tag >> 5) << 8) | number
        if number == 0 or number > done:
            return -1
        done = _copy(target, done, number, length)
    return done


@njit(nogil=True, cache=True)
def _length(raw, at, length):
    """(a length of LZ4 that begins with four bits, where it ends)."""
    if length == 15:
        while at < len(raw):
            byte = np.int64(raw[at])
            length += byte
            at += 1
            if byte < 255:
                break
    return length, at


@njit(nogil=True, cache=True)
def lz4_front(raw, target):
    """Fill `target`. How many bytes: fewer than fit if `raw` ends before; -1 if it is no block of LZ4."""
    done, at = 0, 0
    while done < len(target) and at < len(raw):
        tag = np.int64(raw[at])
        length, at = _length(raw, at + 1, tag >> 4)
        if length > len(raw) - at:
            return -1
        done = _take(raw, at, target, done, length)
        at += length
        if done == len(target) or at == len(raw):
            break
        if len(raw) - at < 2:
            return -1
        offset = _little(raw, at, 2)
        length, at = _length(raw, at + 2, tag & 15)
        if offset == 0 or offset > done:
            return -1
        done = _copy(target, done, offset, length + 4)
    return done
