"""Who passes a row on inside a host (numba, nogil)."""

import numpy as np

from fsranks.libraries import kernel


@kernel
def asking(numbers: np.ndarray, lengths: np.ndarray, seen: np.ndarray, out: np.ndarray) -> None:
    """Owner: which ranks of the requester's host ask for the row of each unit.

    numbers: int32 [U] of rows, `lengths` int64 [W] for each requester; seen: uint64 [R] of zeros to work in.
    Written: out bool [U, ranks per host].
    """
    per_host, start = out.shape[1], 0
    for first in range(0, len(lengths), per_host):
        end = start
        for place in range(per_host):
            for i in range(end, end + lengths[first + place]):
                seen[numbers[i]] |= np.uint64(1) << np.uint64(place)
            end += lengths[first + place]
        for i in range(start, end):
            for place in range(per_host):
                out[i, place] = seen[numbers[i]] >> np.uint64(place) & np.uint64(1)
        for i in range(start, end):
            seen[numbers[i]] = np.uint64(0)
        start = end


@kernel
def carriers(asking: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Which rank of a host passes a row on: the first that asks for it, counted from a place that depends on the id.

    asking: bool [U, ranks per host]; ids: int64 [U]. Written: out int32 [U] places inside the host.
    """
    per_host = asking.shape[1]
    for i in range(len(ids)):
        place = ids[i] % per_host
        for _ in range(per_host):
            if asking[i, place]:
                break
            place = place + 1 if place + 1 < per_host else 0
        out[i] = place
