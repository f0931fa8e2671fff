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
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@kernel(called_with="uint64[::1], int64[::1], int64[::1], int64[::1]")
def choose(keys: np.ndarray, length: np.ndarray, chosen: np.ndarray, positions: np.ndarray) -> None:
    """Write the positions of the values that each list keeps, in ascending order: uniform, without replacement.

    Selection sampling (Knuth, The Art of Computer Programming 2, section 3.4.2, algorithm S): one pass over the list.
    The value at position i is kept with probability (still to choose) / (length - i). A draw has 32 bits, so each
    probability deviates by at most length / 2^32.

    keys: uint64 [N], see `fsdata.sampling.stochastic_length`; length, chosen: int64 [N], number of values and how many
    of them are kept; positions: int64 [T], written.
    """
    end = np.int64(0)
    for n in range(len(keys)):
        at, end = end, end + chosen[n]
        size, state = length[n], keys[n] + _STEP  # draw 0 was that of the length
        i = np.int64(0)
        while at < end:
            state += _STEP
            draw = (state ^ (state >> _S30)) * _MIX_1
            draw = (draw ^ (draw >> _S27)) * _MIX_2
            draw ^= draw >> _S31
            # Without a branch, which would be mispredicted: what is written at `at` is kept only if `at` moves on.
            positions[at] = i
            at += np.int64(((draw >> _S32) * np.uint64(size - i)) >> _S32) < end - at
            i += 1


@kernel(called_with="int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64")
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
    values of each list; positions: int64 [T], in their lists; itemsize: 4 or 8 bytes; target: address.
    """
    whole = np.empty(max(length.max() if len(length) else 0, 1), np.int64)
    at, near = np.int64(0), np.int64(0)
    for n in range(len(start)):
        if length[n] == 0:
            continue
        # Runs are decoded in one go, and most of the time of a value is that of its page: a list at a time stays in the
        # first-level cache, and picking from it costs less than finding the run of every chosen value.
        near = fetch(whole.ctypes.data, column, start[n], length[n], itemsize, near)
        if itemsize == 8:
            to = carray(pointer(target + at * 8), (chosen[n],), np.int64)
            for k in range(chosen[n]):
                to[k] = whole[positions[at + k]]
        else:
            narrow = whole.view(np.int32)
            to4 = carray(pointer(target + at * 4), (chosen[n],), np.int32)
            for k in range(chosen[n]):
                to4[k] = narrow[positions[at + k]]
        at += chosen[n]


SAMPLING = (gather_chosen, choose)
"""The kernels of this folder, those that take longest to compile first."""
