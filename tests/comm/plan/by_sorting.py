"""What the hash kernels of `fscomm.plan.shared_rows` must give, by sorting. Letters as there."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fscomm.plan.shared_rows import FirstOccurrences


def first_occurrences(keys: Tensor, segments: Sequence[int]) -> FirstOccurrences:
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


def contains(rows: Tensor, keys: Tensor) -> Tensor:
    """bool [N]: whether keys[i] is among `rows`, int64, ascending."""
    if len(rows) == 0:
        return torch.zeros_like(keys, dtype=torch.bool)
    return rows[torch.searchsorted(rows, keys).clamp(max=len(rows) - 1)] == keys
