"""Messages of the third round: a few numbers, then *masks*, one bit for each unit of a group that a pair of ranks has.

W ranks, H numbers in the head, U units.
"""

from collections.abc import Sequence

import numpy as np

from fscomm.plan import kernels


def mask_sizes(head: int, units: Sequence[np.ndarray], world_size: int) -> np.ndarray:
    """int64[W] bytes of the message with each peer; units: int64[W] of each mask, by peer."""
    return _starts(head, units, world_size)[1]


def pack_masks(
    head: np.ndarray, masks: Sequence[np.ndarray], units: Sequence[np.ndarray], world_size: int
) -> np.ndarray:
    """The messages to all peers, one after the other: int64[H], then the bits of each mask for that peer.

    `masks`: bool[U] each, by peer; `units`: int64[W] of them.
    """
    starts, bytes_ = _starts(len(head), units, world_size)
    message = np.empty(bytes_.sum(), np.uint8)
    message[starts[0][:, None] + np.arange(head.nbytes)] = head.view(np.uint8)
    for mask, of_peers, start in zip(masks, units, starts[1:], strict=True):
        kernels.pack_bits(mask, of_peers, start, message)
    return message


def unpack_masks(
    message: np.ndarray, head: int, units: Sequence[np.ndarray], world_size: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """int64[W, H] the heads, and bool[U] each mask, by peer, from what all peers sent."""
    starts, _ = _starts(head, units, world_size)
    heads = message[starts[0][:, None] + np.arange(8 * head)].view(np.int64)
    masks = [np.empty(of_peers.sum(), np.bool_) for of_peers in units]
    for mask, of_peers, start in zip(masks, units, starts[1:], strict=True):
        kernels.unpack_bits(message, of_peers, start, mask)
    return heads, masks


def _starts(head: int, units: Sequence[np.ndarray], world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64[1 + masks, W] where the head and each mask begin in the messages, and int64[W] bytes with each peer."""
    of_each = np.array([np.full(world_size, 8 * head), *(-(-of_peers // 8) for of_peers in units)])
    ends = np.cumsum(of_each.T.ravel()).reshape(world_size, -1).T
    return ends - of_each, of_each.sum(0)
