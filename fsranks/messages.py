"""Messages over the connections of a gloo group, beside its own collectives.

A message of every rank to every rank goes in one of two ways:

| way | rounds, one after another | messages a rank sends | bytes a rank sends |
|---|---|---|---|
| `direct`: to every rank at once | 1 | W - 1 | (W - 1) * n |
| `doubling`: pass on all that is there, in every round to a rank twice as far away | ceil(log2 W) | as many | as many |

Gloo's own gather goes round a ring: W - 1 rounds.

Letters: W ranks, n bytes of each.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

Gather = Callable[[Any, int, int, torch.Tensor], torch.Tensor]
"""(gloo, rank, W, uint8 [n]) -> uint8 [W * n], by rank. Blocks. Every rank gives the same n."""

DIRECT_RANKS = 8
_DIRECT_BYTES = 128 * 1024
_SIGNALS = 1 << 20  # their tag: no other message bears it
_MOST_UNREAD = 64


def way(world_size: int, size: int) -> Gather:
    """`direct` for few ranks and small messages; else it would be too many messages, or too many bytes at once."""
    return direct if world_size <= DIRECT_RANKS and size <= _DIRECT_BYTES else doubling


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


class Signals:
    """Numbers, none negative, that a rank sends to all others, who look from time to time; exchanges may be under way.

    No rank waits for another one, unless it has sent `_MOST_UNREAD` that another one did not look at. Any thread may
    call. If a rank is lost nothing is sent or found: the next exchange over `gloo` says why. To be closed before it.
    """

    def __init__(self, gloo: Any, rank: int, world_size: int) -> None:
        self._gloo = gloo
        self._busy = threading.Lock()
        self._peers = [peer for peer in range(world_size) if peer != rank]
        self._came = torch.full((len(self._peers), 1), -1)  # gloo writes a number where it is expected
        self._numbers = self._came.numpy()[:, 0]  # the same memory: looking at it by torch takes three times as long
        self._expected = [self._expect(at) for at in range(len(self._peers))]
        self._sent: deque[tuple[torch.Tensor, list[dist.Work]]] = deque()  # gloo does not say when it has read one

    def send(self, number: int) -> None:
        with self._busy, contextlib.suppress(RuntimeError):
            mine = torch.tensor([number])
            self._sent.append((mine, [self._gloo.send([mine], peer, _SIGNALS) for peer in self._peers]))
            if len(self._sent) > _MOST_UNREAD:
                for work in self._sent.popleft()[1]:
                    work.wait()

    def received(self) -> list[int]:
        """What came since the last call; of each rank one number at most. Does not block."""
        with self._busy, contextlib.suppress(RuntimeError):
            return [self._take(at) for at in np.flatnonzero(self._numbers >= 0).tolist()]
        return []

    def close(self) -> None:
        """Nothing is sent or found any more."""
        with self._busy:
            self._peers.clear()
            self._came, self._numbers = self._came[:0], self._numbers[:0]
            self._expected.clear()  # these, and what was sent, would keep the connections
            self._sent.clear()
            self._gloo = None

    def _take(self, at: int) -> int:
        self._expected[at].wait()
        number = int(self._came[at])
        self._came[at] = -1
        self._expected[at] = self._expect(at)
        return number

    def _expect(self, at: int) -> dist.Work:
        return self._gloo.recv([self._came[at]], self._peers[at], _SIGNALS)
