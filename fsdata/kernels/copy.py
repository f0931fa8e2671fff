"""Copying samples from where they lie to where they belong (numba, nogil, no Python objects).

Addresses are trusted: callers build them from live buffers and check lengths first.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic


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


@njit(nogil=True, cache=True)
def copy(target: int, source: int, count: int, itemsize: int) -> None:
    if itemsize == 8:
        _copy8(target, source, count)
    elif itemsize == 4:
        _copy4(target, source, count)
    else:
        _copy1(target, source, count * itemsize)


@njit(nogil=True, cache=True)
def gather_fields(address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, target: np.ndarray) -> None:
    """Copy every field's samples one after another to the field's target.

    address, length: int64 [F, N]; itemsize: int64 [F]; target: int64 [F], byte address of each field's buffer.
    """
    for f in range(address.shape[0]):
        to = target[f]
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

    address, length: int64 [F, N]; itemsize: int64 [F]; order: int64 [M], samples; target: int64 [M], byte addresses.
    """
    for m in range(len(order)):
        n = order[m]
        to = target[m]
        for f in range(address.shape[0]):
            count = length[f, n]
            if count > 0:
                copy(to, address[f, n], count, itemsize[f])
                to += count * itemsize[f]
