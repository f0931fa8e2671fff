"""What owners tell requesters, as bytes: a few numbers and, bit by bit, which distinct rows two batches share.

W ranks, H numbers in the head, U distinct rows.
"""

from collections.abc import Sequence

import numpy as np
import torch


def sizes(head: int, lengths: Sequence[Sequence[int]], world_size: int) -> list[int]:
    """[W] bytes of the message with each peer; `lengths`: [W] the rows by peer of every mask."""
    return [8 * head + sum(-(-rows[peer] // 8) for rows in lengths) for peer in range(world_size)]


def pack(
    head: np.ndarray, masks: Sequence[torch.Tensor], lengths: Sequence[Sequence[int]], world_size: int
) -> torch.Tensor:
    """The messages to all peers, one after the other: int64[H], then the bits of each mask for that peer.

    `masks`: bool[U] each, by peer; `lengths`: [W] their rows by peer.
    """
    ends = [np.cumsum([0, *rows]) for rows in lengths]
    arrays = [mask.numpy() for mask in masks]
    pieces = []
    for peer in range(world_size):
        pieces.append(head.view(np.uint8))
        pieces += [np.packbits(bits[end[peer] : end[peer + 1]]) for bits, end in zip(arrays, ends, strict=True)]
    return torch.from_numpy(np.concatenate(pieces))


def unpack(
    message: torch.Tensor, head: int, lengths: Sequence[Sequence[int]], world_size: int
) -> tuple[np.ndarray, list[torch.Tensor]]:
    """int64[W, H] the heads, and bool[U] each mask, by peer, from what all peers sent."""
    data = message.numpy()
    heads = np.empty((world_size, head), np.int64)
    masks = [torch.empty(sum(rows), dtype=torch.bool) for rows in lengths]
    filled = [0] * len(masks)
    start = 0
    for peer in range(world_size):
        heads[peer] = np.frombuffer(data[start : start + 8 * head].tobytes(), np.int64)
        start += 8 * head
        for i, rows in enumerate(lengths):
            size = -(-rows[peer] // 8)
            bits = np.unpackbits(data[start : start + size], count=rows[peer]).view(np.bool_)
            masks[i][filled[i] : filled[i] + rows[peer]] = torch.from_numpy(bits)
            filled[i] += rows[peer]
            start += size
    return heads, masks
