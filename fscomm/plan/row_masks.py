"""What owners tell requesters, as bytes: a few numbers and, bit by bit, which distinct rows two batches share.

W ranks, H numbers in the head, U distinct rows.
"""

from collections.abc import Sequence

import numpy as np

from fscomm.plan import wire_kernels


def sizes(head: int, lengths: Sequence[np.ndarray], world_size: int) -> np.ndarray:
    """int64[W] bytes of the message with each peer; `lengths`: int64[W] the rows by peer of every mask."""
    return _starts(head, lengths, world_size)[1]


def pack(head: np.ndarray, masks: Sequence[np.ndarray], lengths: Sequence[np.ndarray], world_size: int) -> np.ndarray:
    """The messages to all peers, one after the other: int64[H], then the bits of each mask for that peer.

    `masks`: bool[U] each, by peer; `lengths`: int64[W] their rows by peer.
    """
    starts, bytes_ = _starts(len(head), lengths, world_size)
    message = np.empty(bytes_.sum(), np.uint8)
    message[starts[0][:, None] + np.arange(head.nbytes)] = head.view(np.uint8)
    for mask, rows, start in zip(masks, lengths, starts[1:], strict=True):
        wire_kernels.pack_bits(mask, rows, start, message)
    return message


def unpack(
    message: np.ndarray, head: int, lengths: Sequence[np.ndarray], world_size: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """int64[W, H] the heads, and bool[U] each mask, by peer, from what all peers sent."""
    starts, _ = _starts(head, lengths, world_size)
    heads = message[starts[0][:, None] + np.arange(8 * head)].view(np.int64)
    masks = [np.empty(rows.sum(), np.bool_) for rows in lengths]
    for mask, rows, start in zip(masks, lengths, starts[1:], strict=True):
        wire_kernels.unpack_bits(message, rows, start, mask)
    return heads, masks


def _starts(head: int, lengths: Sequence[np.ndarray], world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64[1 + masks, W] where the head and each mask begin in the messages, and int64[W] bytes with each peer."""
    of_each = np.array([np.full(world_size, 8 * head), *(-(-rows // 8) for rows in lengths)])
    ends = np.cumsum(of_each.T.ravel()).reshape(world_size, -1).T
    return ends - of_each, of_each.sum(0)
