"""Chooses events of lists, and copies the chosen ones (numba, nogil, no Python objects).

Addresses are trusted, as in `fsdata.kernels.columns`.

Letters: N lists, T chosen values of all lists.
"""

import numpy as np
from numba import carray

from fsdata.kernels.columns import fetch
from fsdata.kernels.memory import pointer
from fsranks.libraries import kernel

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOWER = np.uint64(0xFFFFFFFF)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@kernel(called_with="uint64[::1], int64[::1], int64[::1], int32[::1]")
def choose(keys: np.ndarray, length: np.ndarray, chosen: np.ndarray, positions: np.ndarray) -> None:
    """Write the positions of the values that each list keeps, in ascending order: uniform, without replacement.

    Selection sampling (Knuth, The Art of Computer Programming 2, section 3.4.2, algorithm S): one pass over the list.
    The value at position i is kept with probability (still to choose) / (length - i). Each takes half a draw, 32 bits,
    the lower half first, so a probability deviates by at most length / 2^32.

    keys: uint64 [N], see `fsdata.sampling.stochastic_length`; length, chosen: int64 [N], number of values and how many
    of them are kept; positions: int32 [T], written.
    """
    end = np.int64(0)
    for n in range(len(keys)):
        at, end = end, end + chosen[n]
        left, state = length[n], keys[n] + _STEP  # draw 0 was that of the length
        while at < end:
            state += _STEP
            draw = (state ^ (state >> _S30)) * _MIX_1
            draw = (draw ^ (draw >> _S27)) * _MIX_2
            draw ^= draw >> _S31
            # Without a branch, which would be mispredicted: what is written at `at` stays only if `at` moves on.
            positions[at] = length[n] - left
            at += np.int64(((draw & _LOWER) * np.uint64(left)) >> _S32) < end - at
            left -= 1
            if at < end:
                positions[at] = length[n] - left
                at += np.int64(((draw >> _S32) * np.uint64(left)) >> _S32) < end - at
                left -= 1


@kernel(called_with="int64[::1], int64[::1], int64[::1], int64[::1], int32[::1], int64, int64")
def gather_chosen(
    column: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    chosen: np.ndarray,
    positions: np.ndarray,
    itemsize: int,
    target: int,
) -> None:
    """Copy the chosen values of each list to `target`, one list after another.

    column: see `fsdata.kernels.columns`; start, length, chosen: int64 [N], first value, number of values and of chosen
    values of each list; positions: int32 [T], in their lists; itemsize: 4 or 8 bytes; target: address.
    """
    whole = np.empty(length.max() if len(length) else 0, np.int64)
    narrow = whole.view(np.int32)
    at, near = np.int64(0), np.int64(0)
    for n in range(len(start)):
        if chosen[n] == 0:
            continue
        # Lists are decoded as wholes, into the first-level cache: looking up the run of every chosen value, and
        # unpacking it there, is measurably faster only for dictionaries, and then by 1 us for a list of 5,000.
        near = fetch(whole.ctypes.data, column, start[n], length[n], itemsize, near)
        some = positions[at : at + chosen[n]]
        if itemsize == 8:
            _pick(carray(pointer(target + at * 8), (len(some),), np.int64), whole, some)
        else:  # integers also for floats: only bits are moved
            _pick(carray(pointer(target + at * 4), (len(some),), np.int32), narrow, some)
        at += len(some)


@kernel(inline="always")  # inlined, the loop is compiled for each type
def _pick(to, values, positions):
    for k in range(len(to)):
        to[k] = values[positions[k]]


SAMPLING = (gather_chosen, choose)
"""The kernels of this folder, those that take longest to compile first."""
