"""The lengths that `StochasticLength` draws (pure): by row for the loader, as a distribution for `freescale profile`.

Every row has a key, a hash of the loader's seed, the epoch, the sequence and the row's identity (digest of its file,
number of the row group, number of the row). Draw i of a row is output i of SplitMix64 (Steele et al. 2014) with this
key as its state. Draw 0 decides whether a long history stays whole; the others choose its events
(`fsdata.sampling.kernels.chosen`). This definition is part of what a seed means: changing it changes every epoch.

Letters: N rows.
"""

import math
from hashlib import blake2b

import numpy as np

from fsdata.schema import StochasticLength

STEP = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def row_keys(
    *, seed: int, epoch: int, sequence: str, file: str, row_group: np.ndarray | int, row: np.ndarray
) -> np.ndarray:
    """uint64 [N], the key of each row. file: digest of its file. row_group, row: int64 [N]."""
    text = f"{seed} {epoch} {file} {sequence}"
    first = np.uint64(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))
    # uint64 arrays wrap around silently; scalars would warn.
    group = mixed(first + np.atleast_1d(row_group).astype(np.uint64) * np.uint64(STEP))
    return mixed(group + row.astype(np.uint64) * np.uint64(STEP))


def mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, uint64 [N]."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))


def short_length(sample: StochasticLength, max_length: int) -> int:
    """The number of events of a shortened history, floor(N^(alpha/2)); at least 1."""
    return math.floor(max_length ** (sample.alpha / 2))


def whole_probability(sample: StochasticLength, max_length: int, length: np.ndarray) -> np.ndarray:
    """float64 [N], the probability that a history keeps all its events. length: int64 [N], after truncation."""
    area = float(max_length) ** sample.alpha
    short = short_length(sample, max_length)
    return np.where(length <= short, 1.0, np.minimum(area / np.maximum(length, 1).astype(np.float64) ** 2, 1.0))


def drawn_lengths(sample: StochasticLength, max_length: int, length: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """int64 [N], the lengths that the rows draw. length: int64 [N], after truncation. keys: see `row_keys`."""
    draws = mixed(keys + np.uint64(STEP))
    # The upper 53 bits: as many as a float64 represents exactly.
    position = (draws >> np.uint64(11)).astype(np.float64) / 2.0**53
    whole = position < whole_probability(sample, max_length, length)
    return np.where(whole, length, short_length(sample, max_length))
