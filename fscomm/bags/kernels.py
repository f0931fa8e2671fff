"""Passes over the bags of pooled groups (numba, nogil)."""

import numpy as np

from fsranks.libraries import kernel


@kernel
def find_bags(
    lengths: np.ndarray, features: np.ndarray, samples: np.ndarray, widths: np.ndarray, ids: np.ndarray, alone: bool,
    unique: int, starts: np.ndarray, of_feature: np.ndarray, of_sample: np.ndarray, of_width: np.ndarray,
    keys: np.ndarray, bags: np.ndarray,
) -> int:  # fmt: skip
    """The bags that are not empty; how many.

    lengths: int32, by peer, then feature, then sample; features, samples: int64 [W]; widths: int64 by peer and feature.
    alone: bags of one id have it as their key; other keys count up from `unique`.
    Written: starts int64 [n + 1], of_feature, of_sample, of_width, keys int64 [n]; bags int64 by peer and feature.
    """
    at = number = given = column = 0
    for w in range(len(features)):
        for f in range(features[w]):
            before = number
            for b in range(samples[w]):
                length = lengths[given]
                given += 1
                if length == 0:
                    continue
                starts[number] = at
                of_feature[number] = f
                of_sample[number] = b
                of_width[number] = widths[column]
                keys[number] = ids[at] if alone and length == 1 else unique + number
                at += length
                number += 1
            bags[column] = number - before
            column += 1
    starts[number] = at
    return number


@kernel
def by_bucket(buckets: np.ndarray, number: int, order: np.ndarray) -> None:
    """Sort by counting, keeping the order inside a bucket. buckets: int64 [n] below `number`; written: order int64."""
    ends = np.zeros(number + 1, np.int64)
    for bucket in buckets:
        ends[bucket + 1] += 1
    for bucket in range(number):
        ends[bucket + 1] += ends[bucket]
    for i in range(len(buckets)):
        order[ends[buckets[i]]] = i
        ends[buckets[i]] += 1
