"""Numbers that ranks send each other while other exchanges of the same group may be under way."""

import contextlib
import threading
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from fsranks.control_group import AnyGroup

_TAG = 1 << 20  # no other message of a `ControlGroup` bears it
_MOST_UNREAD = 64


class Signals:
    """Numbers, none negative, that a rank sends to all others, who look from time to time.

    No rank waits for another one, unless it has sent `_MOST_UNREAD` that another one did not look at. Any thread may
    call. If a rank is lost nothing is sent or found: the next exchange of `group` says why. To be closed before it.
    """

    def __init__(self, group: AnyGroup) -> None:
        self._gloo: Any = group.gloo
        self._busy = threading.Lock()
        self._peers = [peer for peer in range(group.world_size) if peer != group.rank]
        self._came = torch.full((len(self._peers), 1), -1)  # gloo writes a number where it is expected
        self._expected = [self._expect(at) for at in range(len(self._peers))]
        self._sent: deque[tuple[torch.Tensor, list[dist.Work]]] = deque()  # gloo does not say when it has read one

    def send(self, number: int) -> None:
        with self._busy, contextlib.suppress(RuntimeError):
            mine = torch.tensor([number])
            self._sent.append((mine, [self._gloo.send([mine], peer, _TAG) for peer in self._peers]))
            if len(self._sent) > _MOST_UNREAD:
                for work in self._sent.popleft()[1]:
                    work.wait()

    def received(self) -> list[int]:
        """What came since the last call; of each rank one number at most. Does not block."""
        with self._busy, contextlib.suppress(RuntimeError):
            came = (self._came[:, 0] >= 0).nonzero().flatten().tolist()
            return [self._take(at) for at in came]
        return []

    def close(self) -> None:
        """Nothing is sent or found any more."""
        with self._busy:
            self._peers.clear()
            self._came = self._came[:0]
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
        return self._gloo.recv([self._came[at]], self._peers[at], _TAG)
