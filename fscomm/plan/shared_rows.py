"""Which rows occur, where first, and which of them another batch has too: O(keys), no table-sized memory.

Keys are in host memory and go through hash kernels. The same by sorting is `tests/comm/plan/by_sorting.py`.
Letters: N keys, U distinct keys, S segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fscomm.plan import hash_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstOccurrences:
    """Distinct keys per segment, in order of first occurrence.

    positions: int64 [U], index into keys. slots: int64 [N], index into positions: keys[positions[slots]] == keys.
    counts: distinct keys of every segment, sum U.
    """

    positions: Tensor
    slots: Tensor
    counts: list[int]


def first_occurrences(keys: Tensor, segments: Sequence[int]) -> FirstOccurrences:
    """The distinct keys inside each of the consecutive segments of `keys`.

    keys: integers [N]; segments: lengths, sum N. Raises ValueError if the lengths do not partition the keys.
    """
    keys = _int64(keys)
    if sum(segments) != len(keys) or any(length < 0 for length in segments):
        raise ValueError(f"segments {list(segments)} do not cut {len(keys)} keys: they must be >= 0 and sum to that")
    return _hashed(keys, segments)[0]


class RowSet:
    """A set of keys. keys: integers [N], duplicates allowed; O(N) memory."""

    def __init__(self, keys: Tensor) -> None:
        self._table = _hashed(_int64(keys), [len(keys)])[1]

    def contains(self, keys: Tensor) -> Tensor:
        """bool [N]: whether keys[i] is in the set."""
        found = torch.empty(len(keys), dtype=torch.bool)
        hash_tables.contains(_int64(keys).numpy(), self._table.numpy(), found.numpy())
        return found


def _hashed(keys: Tensor, segments: Sequence[int]) -> tuple[FirstOccurrences, Tensor]:
    """First occurrences, and the hash table they were found with: it holds the keys of the last segment."""
    size = 2 << max(segments, default=0).bit_length()  # at most half full
    table = torch.full((size, 2), -1, dtype=torch.int64)
    positions, slots = torch.empty_like(keys), torch.empty_like(keys)
    lengths = torch.tensor(segments, dtype=torch.int64)
    counts = torch.empty_like(lengths)
    total = hash_tables.first_occurrences(*(x.numpy() for x in (keys, lengths, table, positions, slots, counts)))
    return FirstOccurrences(positions=positions[:total].clone(), slots=slots, counts=counts.tolist()), table


def _int64(keys: Tensor) -> Tensor:
    if keys.dim() != 1 or keys.is_floating_point() or keys.is_complex() or keys.device.type != "cpu":
        given = f"{keys.dtype} of shape {tuple(keys.shape)} on {keys.device}"
        raise ValueError(f"keys must be a 1-D integer tensor in host memory, not {given}")
    return keys.detach().to(torch.int64).contiguous()
