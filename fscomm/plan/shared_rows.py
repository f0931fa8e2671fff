"""Which rows occur, where first, and which of them another batch has too: O(keys), no table-sized memory.

Keys are in host memory and go through hash kernels; the functions `sorted_*` define what the kernels must give.
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


def sorted_first_occurrences(keys: Tensor, segments: Sequence[int]) -> FirstOccurrences:
    """`first_occurrences` by two stable sorts."""
    lengths = torch.tensor(segments, dtype=torch.int64)
    segment = torch.repeat_interleave(lengths, output_size=len(keys))
    order = keys.argsort(stable=True)
    order = order[segment[order].argsort(stable=True)]
    head = torch.ones_like(keys, dtype=torch.bool)
    head[1:] = (keys[order].diff() != 0) | (segment[order].diff() != 0)
    positions, by_position = order[head].sort()
    rank = torch.empty_like(by_position)
    rank[by_position] = torch.arange(len(by_position))
    slots = torch.empty_like(keys)
    slots[order] = rank[head.cumsum(0) - 1]
    counts = torch.bincount(segment[positions], minlength=len(segments)).tolist()
    return FirstOccurrences(positions=positions, slots=slots, counts=counts)


class RowSet:
    """A set of keys. keys: integers [N], duplicates allowed; O(N) memory."""

    def __init__(self, keys: Tensor) -> None:
        self._table = _hashed(_int64(keys), [len(keys)])[1]

    def contains(self, keys: Tensor) -> Tensor:
        """bool [N]: whether keys[i] is in the set."""
        found = torch.empty(len(keys), dtype=torch.bool)
        hash_tables.contains(_int64(keys).numpy(), self._table.numpy(), found.numpy())
        return found


def sorted_contains(rows: Tensor, keys: Tensor) -> Tensor:
    """bool [N]: whether keys[i] is among `rows`, int64, ascending."""
    if len(rows) == 0:
        return torch.zeros_like(keys, dtype=torch.bool)
    return rows[torch.searchsorted(rows, keys).clamp(max=len(rows) - 1)] == keys


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
