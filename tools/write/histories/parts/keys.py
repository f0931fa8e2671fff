"""Which bucket a key is in: integer arithmetic that any program can repeat.

With unsigned integers of 64 bits, where products wrap around, and a key taken as int64 if its type has a sign:

    h = key * M
    h = (h xor (h >> 32)) * M
    bucket = (h >> 32) mod buckets        with M = 0x9E3779B97F4A7C15

M is 2^64 divided by the golden ratio, made odd. One multiplication alone leaves the upper bits of a key out of
the lower bits of the product, so keys that are all multiples of a power of two would share buckets.
"""

import numpy as np

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def buckets_of(keys: np.ndarray, buckets: int) -> np.ndarray:
    """uint32[N], the bucket of every key, from 0 to `buckets` - 1. Keys are integers of any width."""
    wide = keys if keys.dtype.kind == "u" else keys.astype(np.int64, copy=False)
    mixed = wide.astype(np.uint64) * _MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _MULTIPLIER
    return ((mixed >> _HALF) % np.uint64(buckets)).astype(np.uint32)
