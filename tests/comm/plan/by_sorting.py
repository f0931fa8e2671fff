"""What the hash kernels of `fscomm.plan.shared_rows` must give, by sorting. Letters as there."""

import numpy as np

from fscomm.plan.shared_rows import FirstOccurrences


def first_occurrences(keys: np.ndarray, segments: np.ndarray) -> FirstOccurrences:
    positions, slots, counts = [], [], []
    at = total = 0
    for length in segments.tolist():
        _, first, which = np.unique(keys[at : at + length], return_index=True, return_inverse=True)
        by_position = np.argsort(first)
        positions.append(at + first[by_position])
        slots.append(total + np.argsort(by_position)[which])
        counts.append(len(first))
        at += length
        total += len(first)
    none = np.empty(0, np.int64)
    return FirstOccurrences(
        positions=np.concatenate([none, *positions]),
        slots=np.concatenate([none, *slots]),
        counts=np.array(counts, np.int64),
    )
