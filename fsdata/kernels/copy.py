"""Copying samples from where they lie to where they belong (numba, nogil, no Python objects).

Addresses are trusted: callers build them from live buffers and check lengths first. The highest byte of an address is
0, or says that the values lie in pages (`fsdata.kernels.pages.fetch`), or of which narrower integers they are stored,
that int64 is made of as they are copied: see `STORED`.
"""

from types import MappingProxyType

import numpy as np
from numba import carray

from fsdata.kernels.memory import pointer
from fsdata.kernels.pages.fetch import HELD, PAGED, ask, fetch, place_of
from fsranks.libraries import kernel

# The highest byte of an address, by the type that lies there. No system uses it for addresses of its own.
STORED = MappingProxyType(
    {np.dtype(kind): code for code, kind in enumerate(["i8", "i4", "i2", "i1", "u4", "u2", "u1"])}
)
STORED_SHIFT = 56
_ADDRESS = (1 << STORED_SHIFT) - 1
_BYTES = np.full(PAGED + 1, 8)  # from one int64 of a list to the next, by the highest byte of its address
_BYTES[: len(STORED)] = [kind.itemsize for kind in STORED]


def step_of(address: np.ndarray, itemsize: int) -> np.ndarray:
    """int64, shaped as `address`: what to add to the address of one element to get that of the next."""
    return _BYTES[address >> STORED_SHIFT] if itemsize == 8 else np.full_like(address, itemsize)


@kernel
def _copy8(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.int64)
    of = carray(pointer(source), (count,), np.int64)
    for i in range(count):
        to[i] = of[i]


@kernel
def _copy4(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.int32)
    of = carray(pointer(source), (count,), np.int32)
    for i in range(count):
        to[i] = of[i]


@kernel
def _copy1(target: int, source: int, count: int) -> None:
    to = carray(pointer(target), (count,), np.uint8)
    of = carray(pointer(source), (count,), np.uint8)
    for i in range(count):
        to[i] = of[i]


@kernel(inline="always")
def _widen(target, values):
    to = carray(pointer(target), values.shape, np.int64)
    for i in range(len(values)):
        to[i] = values[i]


@kernel
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


@kernel
def copy(target: int, source: int, count: int, itemsize: int) -> None:
    """`source` is a plain address."""
    if itemsize == 8:
        _copy8(target, source, count)
    elif itemsize == 4:
        _copy4(target, source, count)
    else:
        _copy1(target, source, count * itemsize)


@kernel
def _any_stored(address: np.ndarray) -> bool:
    found = False
    for each in address:
        found |= each > _ADDRESS
    return found


@kernel
def _gather_stored(address: np.ndarray, length: np.ndarray, itemsize: int, target: int, held: np.ndarray) -> None:
    """One field, some of whose lists lie in pages or are stored in narrower integers."""
    near, asked = np.int64(0), np.int64(-1)
    for n in range(len(address)):
        if asked >= 0:
            near, asked = asked, np.int64(-1)
        listed = n + 1 < len(address) and length[n + 1] > 0 and address[n + 1] >> STORED_SHIFT == PAGED
        if listed and address[n + 1] != address[n] + length[n] * itemsize:  # else it is read next in any case
            column, first = place_of(address[n + 1], itemsize)
            asked = ask(held[column], first, length[n + 1])
        if length[n] > 0:
            if address[n] >> STORED_SHIFT == PAGED:
                column, first = place_of(address[n], itemsize)
                near = fetch(target, held[column], first, length[n], itemsize, near)
            elif address[n] > _ADDRESS:
                _copy_stored(target, address[n], length[n])
            else:
                copy(target, address[n], length[n], itemsize)
            target += length[n] * itemsize


@kernel
def _gather_fields(
    address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, target: np.ndarray, held: np.ndarray
) -> None:
    for f in range(address.shape[0]):
        to = target[f]
        if _any_stored(address[f]):  # asked once a field: lists are short
            _gather_stored(address[f], length[f], itemsize[f], to, held)
            continue
        for n in range(address.shape[1]):
            count = length[f, n]
            if count > 0:
                copy(to, address[f, n], count, itemsize[f])
                to += count * itemsize[f]


def gather_fields(address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, target: np.ndarray) -> None:
    """Copy every field's samples one after another to the field's target.

    address, length: int64 [F, N]; itemsize: int64 [F]; target: int64 [F], byte address of each field's buffer.
    """
    _gather_fields(address, length, itemsize, target, HELD)


@kernel
def _gather_samples(
    address: np.ndarray,
    length: np.ndarray,
    itemsize: np.ndarray,
    order: np.ndarray,
    target: np.ndarray,
    held: np.ndarray,
) -> None:
    near = np.zeros(address.shape[0], np.int64)
    for m in range(len(order)):
        n = order[m]
        to = target[m]
        for f in range(address.shape[0]):
            count = length[f, n]
            if count > 0 and itemsize[f] > 0:
                if address[f, n] >> STORED_SHIFT == PAGED:
                    column, first = place_of(address[f, n], itemsize[f])
                    near[f] = fetch(to, held[column], first, count, itemsize[f], near[f])
                elif address[f, n] > _ADDRESS:
                    _copy_stored(to, address[f, n], count)
                else:
                    copy(to, address[f, n], count, itemsize[f])
                to += count * itemsize[f]


def gather_samples(
    address: np.ndarray, length: np.ndarray, itemsize: np.ndarray, order: np.ndarray, target: np.ndarray
) -> None:
    """Copy whole samples, all fields of one after another, to one target each.

    address, length: int64 [F, N]; itemsize: int64 [F], 0 leaves a field out; order: int64 [M], samples; target: int64
    [M], byte addresses.
    """
    _gather_samples(address, length, itemsize, order, target, HELD)
