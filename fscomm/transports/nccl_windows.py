"""A fabric of NCCL's one-sided operations, which copy engines carry within a host and a CPU thread across hosts.

What is relied on, from NCCL's documentation and its source (`src/rma`), NCCL >= 2.29 by nccl4py:

- `put_signal` and `wait_signal` take one's own handle of a window that all ranks registered together, symmetrically,
  and an offset in it; the memory at the peer is found by that. The local buffer lies in a registered window, too.
- A signal raises a count at the receiver, one for every sender; waiting for n signals consumes n, counted when the
  wait is issued. Before NCCL 2.31 there is one count for a pair of ranks and a communicator: hence one communicator
  for arrivals and another for room.
- Operations of one communicator run in the order in which they were issued, on whichever stream. The order of
  `ring_plan`, in which nobody waits for what its peer issues after waiting for something later, is made for that.
- Aborting a communicator ends kernels, but not the waits of a stream that are memory operations. So after a failure the
  two streams here may wait for ever; they and the windows then stay until the process ends.
"""

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fscomm.transports.cuda_driver import CudaMark, CudaQueue, CudaStreams
from fscomm.transports.handshake import Handshake

_SMALLEST = 4096  # bytes of a window


class NcclWindows:
    """A `fabric.Fabric`: every rank has an inbox, [W senders, slots, slot_bytes], and an outbox that is as large.

    Making it is collective. `nccl` is what `bindings()` gives. Counts are not to be seen from the host: `behind` names
    the peer whose signal the sending and the receiving queue wait for, not those behind it. `poison` ends what this
    rank waits for on the host; other ranks have to find out by themselves.
    """

    def __init__(
        self,
        handshake: Handshake,
        streams: CudaStreams,
        *,
        nccl: Any = None,
        slots: int = 4,
        slot_bytes: int = 1 << 16,
    ) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._nccl = nccl or bindings()
        self._streams = streams
        self._arrivals, self._rooms = (connect(self._nccl, handshake) for _ in range(2))
        self._kept: list[Any] = []  # outgrown windows stay: giving them back could wait for the device
        self._window(self._rooms, _SMALLEST)  # the first one makes the counts
        self._sends, self._receives = streams.queue("send"), streams.queue("receive")
        self._room = _Awaited(self._rooms, self._nccl, self._sends, self.world_size)
        self._arrived = _Awaited(self._arrivals, self._nccl, self._receives, self.world_size)
        self._poisoned = False
        self._lock = threading.Lock()
        self.resize(slot_bytes)

    def resize(self, slot_bytes: int) -> None:
        nbytes = max(self.world_size * self.slots * slot_bytes, _SMALLEST)
        self._inbox, self._handle = self._window(self._arrivals, nbytes)
        self._outbox, _ = self._window(self._arrivals, nbytes)
        self.slot_bytes = slot_bytes

    def begin(self) -> None:
        self._sends.begin()
        self._receives.begin()

    def put(self, peer: int, slot: int, data: torch.Tensor) -> None:
        start = self._start(peer, slot)
        staged = self._outbox[start : start + len(data)]
        self._sends.copy(staged, data)
        at = self._start(self.rank, slot)  # elements of the inbox, which are bytes
        self._arrivals.put_signal(staged, peer, self._handle, at, stream=int(self._sends.stream))

    def await_room(self, peer: int, count: int) -> None:
        self._room.up_to(peer, count)

    def await_arrival(self, peer: int, count: int) -> None:
        self._arrived.up_to(peer, count)

    def take(self, peer: int, slot: int, out: torch.Tensor) -> None:
        start = self._start(peer, slot)
        self._receives.copy(out, self._inbox[start : start + len(out)])
        self._rooms.signal(peer, stream=int(self._receives.stream))

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        self._receives.copy(out, inp)

    def mark(self) -> tuple[CudaMark, CudaMark]:
        return self._sends.mark(), self._receives.mark()

    def is_done(self, mark: tuple[CudaMark, CudaMark]) -> bool:
        return all(one.done() for one in mark)

    def wait(self, mark: tuple[CudaMark, CudaMark], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        return all(self._streams.wait(one, max(end - time.monotonic(), 0.0)) for one in mark)

    def behind(self, counts: dict[int, tuple[int, int]]) -> list[int]:
        waiting = (awaited.first() for awaited in (self._arrived, self._room))
        return sorted({peer for peer in waiting if peer is not None} & set(counts))

    def poison(self) -> None:
        """Aborting may block, so nobody waits for it."""
        with self._lock:
            first, self._poisoned = not self._poisoned, True
        if first:
            for communicator in (self._arrivals, self._rooms):
                threading.Thread(target=communicator.abort, name="NCCL abort", daemon=True).start()

    def poisoned(self) -> bool:
        return self._poisoned

    def close(self) -> None:
        self.poison()

    def _start(self, peer: int, slot: int) -> int:
        return (peer * self.slots + slot) * self.slot_bytes

    def _window(self, communicator: Any, nbytes: int) -> tuple[torch.Tensor, Any]:
        """uint8[nbytes] that all ranks registered. Blocks for all ranks."""
        memory = self._nccl.empty(nbytes, dtype=torch.uint8, device=self._streams.where)
        handle = communicator.register_window(memory, self._nccl.WindowFlag.COLL_SYMMETRIC)
        self._kept.append((memory, handle))
        return memory, handle


class _Awaited:
    """The signals of peers that a queue waits for, in the order in which it does."""

    def __init__(self, communicator: Any, nccl: Any, queue: CudaQueue, world_size: int) -> None:
        self._communicator = communicator
        self._nccl = nccl
        self._queue = queue
        self._counts = [0] * world_size
        self._waits: deque[tuple[int, CudaMark]] = deque()

    def up_to(self, peer: int, count: int) -> None:
        missing = count - self._counts[peer]
        if missing <= 0:
            return
        wanted = self._nccl.WaitSignalDesc(peer=peer, op_count=missing)
        self._communicator.wait_signal(wanted, stream=int(self._queue.stream))
        self._counts[peer] = count
        self.first()
        self._waits.append((peer, self._queue.mark()))

    def first(self) -> int | None:
        """The peer of the first wait that is not over."""
        while self._waits and self._waits[0][1].done():
            self._waits.popleft()
        return self._waits[0][0] if self._waits else None


def connect(nccl: Any, handshake: Handshake) -> Any:
    """A communicator of these ranks. Collective.

    Raises:
        RuntimeError: this NCCL, or these GPUs, have no one-sided operations.
    """
    mine = bytes(nccl.get_unique_id()) if handshake.rank == 0 else b"\0" * _ID_BYTES
    ids = handshake.group.all_gather(np.frombuffer(mine, np.uint8).copy())
    unique = nccl.UniqueId.from_bytes(ids[0].tobytes())
    communicator = nccl.Communicator.init(handshake.world_size, handshake.rank, unique)
    if not communicator.host_rma_support:
        communicator.abort()
        raise RuntimeError("put and signal need NCCL >= 2.29 and GPUs that reach each other: use the padded all-to-all")
    return communicator


_ID_BYTES = 128  # of ncclUniqueId


def bindings() -> Any:
    """nccl4py, as far as it is used here."""
    try:
        from nccl import core
        from nccl.core.interop.torch import empty
    except ImportError as error:
        raise ImportError(
            "put and signal need nccl4py: pip install 'nccl4py[cu13]' (or cu12, as torch.version.cuda)"
        ) from error
    names = ("Communicator", "UniqueId", "WaitSignalDesc", "WindowFlag", "get_unique_id")
    return SimpleNamespace(empty=empty, **{name: getattr(core, name) for name in names})
