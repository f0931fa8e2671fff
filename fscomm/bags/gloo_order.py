"""In which order gloo's reduce-scatter adds what the ranks give: bits of a sum depend on it.

gloo runs `reduce_scatter_tensor` as a ring allreduce over the whole tensor. It cuts the tensor into W chunks of its
own, whatever the ranks get of it. Chunk c is added in the order of ranks c - 1, c - 2, ..., c + 1, c.
"""

import math
from dataclasses import dataclass

import torch

_SEGMENT = 1 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Elements `start` to `end` of those asked for are added in this `order` of ranks."""

    start: int
    end: int
    order: tuple[int, ...]


def regions(first: int, elements: int, total: int, world_size: int, itemsize: int) -> list[Region]:
    """Of `elements` from the `first` on, among the `total` elements of the tensor that each rank gives."""
    if not elements:
        return []
    nbytes, last = total * itemsize, first + elements
    segments = _round_up(max(math.ceil(nbytes / _SEGMENT), 2 * world_size), world_size)
    chunk = _round_up(math.ceil(nbytes / segments), itemsize) * segments // world_size // itemsize
    return [
        Region(
            start=max(c * chunk, first) - first,
            end=min((c + 1) * chunk, last) - first,
            order=tuple((c - 1 - k) % world_size for k in range(world_size)),
        )
        for c in range(first // chunk, (last - 1) // chunk + 1)
    ]


def add(parts: list[torch.Tensor], of: list[Region]) -> torch.Tensor:
    """The sum of W flat tensors of one size, with the bits of gloo's reduce-scatter."""
    total = torch.empty_like(parts[0])
    for region in of:
        here = slice(region.start, region.end)
        first, *others = region.order
        total[here] = parts[first][here]
        for rank in others:
            total[here] += parts[rank][here]
    return total


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
