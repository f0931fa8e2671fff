"""Selects a part of the rows by a hash of one column: training, validation and test sets that never share a key.

The hash is defined here and not by a library, because a row must be in the same set on every rank, in every run and
with every version of every library: splitmix64 of the integer and the salt; for text, of its FNV-1a hash over UTF-8.
Changing it would mix the sets of every trained model; a test has its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from fsdata.errors import SchemaError
from fsdata.kernels import texts as texts_kernel
from fsdata.options import is_number

_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class HashSplit:
    """The rows whose `column` hashes into [low, high), a part of [0, 1). Rows with a null are in no part."""

    column: str
    low: float
    high: float
    salt: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise SchemaError(f"split names one column, got {self.column!r}")
        if not 0 <= self.low < self.high <= 1:
            raise SchemaError(
                f"keep=(low, high) is a part of the rows, 0 <= low < high <= 1, got {(self.low, self.high)}: "
                "(0, 0.98) and (0.98, 1) are two parts that share no row"
            )

    @property
    def form(self) -> str:
        """All options; for fingerprints."""
        return f"split {self.column} keep {self.low!r} {self.high!r} salt {self.salt}"

    def holds(self, column: pa.Array) -> np.ndarray:
        """bool [N]: whether each row is in the part.

        Raises:
            SchemaError: a column of neither integers nor text.
        """
        if pa.types.is_integer(column.type):
            values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        elif any(test(column.type) for test in TEXT):
            values = _fnv(column)
        else:
            raise SchemaError(f"split={self.column!r} needs a column of integers or text, and it is {column.type}")
        salt = np.uint64(int.from_bytes(blake2b(self.salt.encode(), digest_size=8).digest(), "little"))
        # The upper 53 bits: as many as a float64 represents exactly.
        position = (_mixed(values ^ salt) >> np.uint64(11)).astype(np.float64) / 2.0**53
        valid: np.ndarray = column.is_valid().to_numpy(zero_copy_only=False)
        return valid & (position >= self.low) & (position < self.high)


def checked_split(split: str | None, keep: Sequence[float], salt: str | int) -> HashSplit | None:
    """The part of the rows that the options of a source select; None for all rows."""
    if split is None:
        if keep not in ((0.0, 1.0), [0.0, 1.0]) or salt != "":
            raise SchemaError("keep=... and salt=... belong to split=..., the column that is hashed: give it, too")
        return None
    if not isinstance(keep, tuple | list) or len(keep) != 2 or not all(map(is_number, keep)):
        raise SchemaError(f"keep is (low, high), two numbers, got {keep!r}")
    if not isinstance(salt, str | int):
        raise SchemaError(f"salt is a text or an integer, got {salt!r}")
    return HashSplit(split, float(keep[0]), float(keep[1]), str(salt))


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64, uint64 [N]."""
    values = values + _STEP
    for shift, factor in _MIX:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def text_ids(texts: pa.Array, buckets: int) -> pa.Array:
    """int64 in [0, buckets): splitmix64 of the FNV-1a hash over UTF-8, modulo `buckets`; null for a null.

    buckets: 1 to 2**63.
    """
    null = texts.is_null().to_numpy(zero_copy_only=False)
    return pa.array((_mixed(_fnv(texts)) % np.uint64(buckets)).astype(np.int64), mask=null)


def _fnv(texts: pa.Array) -> np.ndarray:
    """uint64 [N]; a null has the hash of an empty text."""
    texts = texts.cast(pa.large_string()).fill_null("")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    hashes = np.empty(len(texts), np.uint64)
    texts_kernel.fnv1a(ends, np.frombuffer(data or b"", np.uint8), hashes)
    return hashes
