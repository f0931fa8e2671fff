"""Where the values and lists of a batch begin (numba, nogil, loops over raw arrays).

Letters: F fields, T tensors, N samples, L lists. All arrays are int64 and in C order.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def find_places(
    counts: np.ndarray, itemsize: np.ndarray, tensor: np.ndarray, base: np.ndarray, target: np.ndarray
) -> None:
    """The byte address of the values of each field, in `target` [F]; fields of one tensor lie one after another.

    counts: [F], elements; itemsize: [F], bytes; tensor: [F], the tensor of each field, in order, or -1; base: [T].
    """
    last, at = -1, 0
    for f in range(len(counts)):
        if tensor[f] < 0:
            continue
        if tensor[f] != last:
            last = tensor[f]
            at = base[last]
        target[f] = at
        at += counts[f] * itemsize[f]


@kernel
def find_offsets(length: np.ndarray, listed: np.ndarray, offsets: np.ndarray) -> None:
    """Where the lists of some fields begin and end, in `offsets` [L, N + 1]. length: [F, N]; listed: [L], fields."""
    for k in range(len(listed)):
        total = 0
        offsets[k, 0] = 0
        for n in range(length.shape[1]):
            total += length[listed[k], n]
            offsets[k, n + 1] = total
