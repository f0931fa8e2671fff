"""Two ways to bring a message of every rank to every rank over gloo, and which is taken when.

| way | rounds, one after another | messages a rank sends | bytes a rank sends |
|---|---|---|---|
| `direct`: to every rank at once | 1 | W - 1 | (W - 1) * n |
| `doubling`: pass on all that is there, in every round to a rank twice as far away | ceil(log2 W) | as many | as many |

Gloo's own gather goes round a ring: W - 1 rounds.

Letters: W ranks, n bytes of each.
"""

from collections.abc import Callable
from typing import Any

import torch

Gather = Callable[[Any, int, int, torch.Tensor], torch.Tensor]
"""(gloo, rank, W, uint8 [n]) -> uint8 [W * n], by rank. Blocks. Every rank gives the same n."""

_DIRECT_RANKS = 8
_DIRECT_BYTES = 128 * 1024


def way(world_size: int, size: int) -> Gather:
    """`direct` for few ranks and small messages; else it would be too many messages, or too many bytes at once."""
    return direct if world_size <= _DIRECT_RANKS and size <= _DIRECT_BYTES else doubling


def direct(gloo: Any, rank: int, world_size: int, mine: torch.Tensor) -> torch.Tensor:
    sizes = [len(mine)] * world_size
    out = torch.empty(world_size * len(mine), dtype=torch.uint8)
    gloo.alltoall_base(out, mine.repeat(world_size), sizes, sizes).wait()
    return out


def doubling(gloo: Any, rank: int, world_size: int, mine: torch.Tensor) -> torch.Tensor:
    """Bruck's algorithm: after every round a rank has the messages of `known` ranks, its own and the next ones."""
    found = torch.empty(world_size, len(mine), dtype=torch.uint8)
    found[0] = mine
    known = 1
    for number in range((world_size - 1).bit_length()):
        part = min(known, world_size - known)
        received = gloo.recv([found[known : known + part]], (rank + known) % world_size, number)
        sent = gloo.send([found[:part]], (rank - known) % world_size, number)
        received.wait()
        sent.wait()
        known += part
    return found.roll(rank, 0).view(-1)
