"""Copying samples from where they lie to where they belong (numba, nogil, no Python objects).

Addresses are trusted: callers build them from live buffers and check lengths first. The highest byte of an address is
0, or says of which narrower integers the values are stored, that int64 is made of as they are copied: see `STORED`.
"""

from types import MappingProxyType

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

# The highest byte of an address, by the type that lies there. No system uses it for addresses of its own.
STORED = MappingProxyType(
    {np.dtype(kind): code for code, kind in enumerate(["i8", "i4", "i2", "i1", "u4", "u2", "u1"])}
)
STORED_SHIFT = 56
_ADDRESS = (1 << STORED_SHIFT) - 1


@intrinsic
def pointer(typing_context, address):
    """int64 address -> void pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit(nogil=True, cache=True)
def _copy8(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.int64)
    of = carray(pointer(source), (count,), np.int64)
    for i in range(count):
        to[i] = of[i]


@njit(nogil=True, cache=True)
def _copy4(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.int32)
    of = carray(pointer(source), (count,), np.int32)
    for i in range(count):
        to[i] = of[i]


@njit(nogil=True, cache=True)
def _copy1(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.uint8)
    of = carray(pointer(source), (count,), np.uint8)
    for i in range(count):
        to[i] = of[i]


@njit(nogil=True, cache=True, inline="always")
def _widen(target, values):
    to = carray(pointer(target), values.shape, np.int64)
    for i in range(len(values)):
        to[i] = values[i]


@njit(nogil=True, cache=True)
def _copy_stored(target: int, source: int, count: int) -> None:
    """int64 from what the highest byte of `source` says."""
    stored, at = source >> STORED_SHIFT, pointer(source & _ADDRESS)
    if stored == 1:
        _widen(target, carray(at, (count,), np.int32))
    elif stored == 2:
        _widen(target, carray(at, (count,), np.int16))
    elif stored == 3:
        _widen(target, carray(at, (count,), np.int8))
    elif stored == 4:
        _widen(target, carray(at, (count,), np.uint32))
    elif stored == 5:
        _widen(target, carray(at, (count,), np.uint16))
    else:
        _widen(target, carray(at, (count,), np.uint8))


@njit(nogil=True, cache=True)
def copy(target: int, source: int, count: int, itemsize: int) -> None:
    """`source` is a plain address."""
    if itemsize == 8:
        _copy8(target, source, count)
    elif itemsize == 4:
        _copy4(target, source, count)
    else:
        _copy1(target, source, count * itemsize)


@njit(nogil=True, cache=True)
def _any_stored(address: np.ndarray) -> bool:
    found = False
    for each in address:
        found |= each > _ADDRESS
    return found


@njit(nogil=True, cache=True)
def _gather_stored(address: np.ndarray, length: np.ndarray, target: int) -> None:
    """One field, int64, some of whose lists are stored in narrower integers."""
    for n in range(len(address)):
        if length[n] > 0:
            if address[n] > _ADDRESS:
                _copy_stored(target, address[n], length[n])
            else:
                _copy8(target, address[n], length[n])
            target += length[n] * 8


@njit(nogil=True, cache=True)
def gather_fields(address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, target: np.ndarray) -> None:
    """Copy every field's samples one after another to the field's target.

    address, length: int64 [F, N]; itemsize: int64 [F]; target: int64 [F], byte address of each field's buffer.
    """
    for f in range(address.shape[0]):
        to = target[f]
        if itemsize[f] == 8 and _any_stored(address[f]):  # asked once a field: lists are short
            _gather_stored(address[f], length[f], to)
            continue
        for n in range(address.shape[1]):
            count = length[f, n]
            if count > 0:
                copy(to, address[f, n], count, itemsize[f])
                to += count * itemsize[f]


@njit(nogil=True, cache=True)
def gather_samples(
    address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, order: np.ndarray, target: np.ndarray
) -> None:
    """Copy whole samples, all fields of one after another, to one target each.

    address, length: int64 [F, N]; itemsize: int64 [F], 0 leaves a field out; order: int64 [M], samples; target: int64
    [M], byte addresses.
    """
    for m in range(len(order)):
        n = order[m]
        to = target[m]
        for f in range(address.shape[0]):
            count = length[f, n]
            if count > 0:
                if itemsize[f] == 8 and address[f, n] > _ADDRESS:
                    _copy_stored(to, address[f, n], count)
                else:
                    copy(to, address[f, n], count, itemsize[f])
                to += count * itemsize[f]
