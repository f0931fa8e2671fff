"""A checksum of an epoch that does not depend on the order of the samples, but on everything else.

Every sample is hashed over all of its fields and positions, and the hashes are added up: a field of another sample, a
value at another position, a missing or repeated sample each change the sum.
"""

import numpy as np

from .common import Delivered

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def of(batch: Delivered) -> int:
    """Sum of the samples' hashes modulo 2**64."""
    rows = batch.features.stride()
    lengths = batch.features.lengths().numpy().reshape(-1, rows).astype(np.int64)
    keyed = _segments(batch.features.values().numpy(), lengths.reshape(-1)).reshape(lengths.shape)
    label = _segments(_bits(batch.label.numpy()), np.diff(batch.label_offsets.numpy()))
    dense = _bits(batch.dense.numpy()).T
    hashes = np.zeros(rows, np.uint64)
    for field in (*keyed, *lengths, *dense, label):
        hashes = (hashes ^ field.astype(np.uint64)) * _ODD
        hashes ^= hashes >> _SHIFT
    return int(hashes.sum(dtype=np.uint64))


def _segments(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum of value * odd(position) over each segment, wrapping: int64 [segments]."""
    ends = np.cumsum(lengths)
    position = np.arange(len(values)) - np.repeat(ends - lengths, lengths)
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values * (2 * position + 1), out=sums[1:])
    return sums[ends] - sums[ends - lengths]


def _bits(values: np.ndarray) -> np.ndarray:
    """float32 -> its bits as int64."""
    return np.ascontiguousarray(values).view(np.int32).astype(np.int64)
