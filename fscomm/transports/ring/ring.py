"""All-to-all through rings of slots in the receivers' memory; copies and counts, no kernel.

Every pair of ranks has `slots` slots at the receiver. Chunk number n of the pair, counted since the ring was made, is
sent through slot n % slots: the sender fills the slot once the receiver has emptied it, and the receiver empties it
once it is filled. So a late receiver blocks its senders after `slots` chunks, and operations of other rings can pass
between two chunks.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fscomm.transports.cutting import chunks, grown, in_order, room_for
from fscomm.transports.ring.cuda_driver import CudaDriver, check_gpus
from fscomm.transports.ring.shared_memory import SharedMemory
from fscomm.transports.ring.slots import Counts, Driver, Slots, in_circle
from fscomm.transports.together import over_group
from fscomm.transports.transport import Chunk, Handle, Transport
from fscomm.transports.watch import Watched
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext

_DRAIN_S = 2.0  # for queues to end after all their waits are over
_MOST_WAITING = 64  # chunks, of about three operations in one queue each; see `_pace`
_PACES = 4  # marks among them


class Ring(Watched):
    """One class of rows. `driver` belongs to the ring, which closes it. Making it is collective.

    Slots grow, on all ranks alike, to the next power of two of the largest piece that any rank sends, at most
    `most_slot_bytes`. Growing blocks until the operations under way are done on all ranks. Issuing blocks for a device
    only then, and while `most_waiting` chunks are queued before the operation.

    One queue sends and one receives, each in the order of issue. A queue that waits does not block the other.
    """

    def __init__(
        self,
        driver: Driver,
        group: ControlGroup,
        *,
        name: str,
        slots: int = 4,
        slot_bytes: int = 1 << 16,
        most_slot_bytes: int = 4 << 20,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        try:  # the driver is the ring's from the first line on, also if there is no ring
            self._slots = Slots(driver, number=slots, slot_bytes=slot_bytes)
        except BaseException:
            driver.close()
            raise
        super().__init__(group)
        self.name = name
        self._driver = driver
        self._sends, self._receives = driver.queue("send"), driver.queue("receive")
        self._most_slot_bytes = most_slot_bytes
        self._between_marks = most_waiting // _PACES
        self._put = [0] * self.world_size  # chunks to and from each peer, since the ring was made
        self._taken = [0] * self.world_size
        self._paces: deque[tuple[Any, Counts]] = deque()
        self._unmarked = 0

    def _begin(self, chunk: Chunk, row_bytes: int) -> Handle:
        with self._guard():
            self._grow(chunk.largest_bytes)
            return self._issue(chunk.out.split(chunk.out_splits), chunk.inp.split(chunk.in_splits))

    def close(self, reason: str) -> None:
        # In this order: nothing is issued any more, no other thread reads or poisons words, then their memory goes.
        self._refuse(reason)
        self._slots.drop()
        self._driver.close()
        super().close(reason)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """When an error reaches the caller, nothing writes into its tensors any more."""
        self._check()
        try:
            with super()._guard():
                yield
        except PeerError:
            self._drain()
            raise

    def _grow(self, largest: int) -> None:
        """Larger slots on all ranks, if one of them needs them."""
        slot_bytes = grown(self._slots.slot_bytes, largest, most=self._most_slot_bytes)
        if slot_bytes == self._slots.slot_bytes:
            return
        # All ranks do this in the same operation, as `largest` is the same number on all of them.
        for flight in list(self._flights):
            flight.wait()
        self._synchronize()  # another rank may still fill or empty slots of a rank that is done
        self._slots.resize(slot_bytes)

    def _issue(self, outs: Sequence[torch.Tensor], inps: Sequence[torch.Tensor]) -> Handle:
        """outs, inps: the bytes from and to each rank."""
        slot_bytes = self._slots.slot_bytes
        self._sends.begin()
        self._receives.begin()
        for start, stop in chunks(len(inps[self.rank]), slot_bytes):  # other rings share the engines
            self._receives.copy(outs[self.rank][start:stop], inps[self.rank][start:stop])
            self._pace()
        for chunk in in_order(self.rank, [len(b) for b in inps], [len(b) for b in outs], slot_bytes):
            if chunk.is_put:
                self._put_chunk(chunk.peer, inps[chunk.peer][chunk.start : chunk.stop])
            else:
                self._take_chunk(chunk.peer, outs[chunk.peer][chunk.start : chunk.stop])
            self._pace()
        mark, counts = self._mark(), self._counts()

        def wait() -> None:
            with self._guard():
                self._complete(mark, counts)

        def follow() -> None:
            # A copy engine of the CPU is a thread: nothing can be ordered behind it but by waiting.
            if not all(self._driver.follow(each) for each in mark):
                wait()

        return self._begun(outs, inps, done=lambda: all(map(self._driver.is_done, mark)), wait=wait, follow=follow)

    def _put_chunk(self, peer: int, data: torch.Tensor) -> None:
        """Fill a slot of the peer once it has emptied it, and then count one more arrival there."""
        slots, number = self._slots, self._put[peer]
        if room := room_for(number, slots.number):
            self._sends.wait(slots.emptied(self.rank, peer), in_circle(room))
        self._sends.copy(slots.slot(peer, self.rank, number)[: len(data)], data)
        self._put[peer] = number + 1
        self._sends.write(slots.filled(peer, self.rank), in_circle(number + 1))

    def _take_chunk(self, peer: int, out: torch.Tensor) -> None:
        """Empty a slot here once the peer has filled it, and then count one more empty slot there."""
        slots, number = self._slots, self._taken[peer]
        self._receives.wait(slots.filled(self.rank, peer), in_circle(number + 1))
        # `_taken` counts what is issued. Peers see a chunk as taken by the write below, which follows the copy.
        self._receives.copy(out, slots.slot(self.rank, peer, number)[: len(out)])
        self._taken[peer] = number + 1
        self._receives.write(slots.emptied(peer, self.rank), in_circle(number + 1))

    def _mark(self) -> tuple[Any, Any]:
        """All that was issued so far, in both queues."""
        return self._sends.mark(), self._receives.mark()

    def _wait(self, mark: tuple[Any, Any], limit_s: float) -> bool:
        """Block until `mark` is done, at most `limit_s`; whether it is. What the caller issues next is behind it."""
        end = time.monotonic() + limit_s
        return all(self._driver.wait(one, max(end - time.monotonic(), 0.0)) for one in mark)

    def _counts(self) -> Counts:
        return {r: (self._taken[r], self._put[r]) for r in range(self.world_size) if r != self.rank}

    def _pace(self) -> None:
        """Limit the operations that wait in the queues. A full queue blocks the host inside a call of the driver, where
        a dead peer is not detected, and where the thread may hold a lock that other threads need. A queue takes about a
        thousand operations. Three rings, whose streams may all share one hardware queue, have at most 600 waiting.

        Both sides issue chunks in the same order, so every rank has issued what this waits for.
        """
        self._unmarked += 1
        if self._unmarked < self._between_marks:
            return
        self._unmarked = 0
        self._paces.append((self._mark(), self._counts()))
        # Only the oldest of several marks is waited for, so that the queues never run empty meanwhile.
        if len(self._paces) >= _PACES:
            self._complete(*self._paces.popleft())

    def _complete(self, mark: tuple[Any, Any], counts: Counts) -> None:
        """Block until `mark` is done. Raises PeerError."""
        self._until(lambda limit_s: self._wait(mark, limit_s), late=lambda: self._slots.behind(counts))

    def _end(self, reason: str) -> None:
        self._slots.poison(max(self._put + self._taken))

    def _lost(self) -> bool:
        return self._slots.poisoned()

    def _drain(self) -> None:
        """End all operations in flight. It repeats: a count that a peer's queue was about to write may replace the one
        that ends a wait."""
        end = time.monotonic() + _DRAIN_S
        self._end("drains")
        mark = self._mark()
        while not self._wait(mark, 0.02):
            if time.monotonic() > end:
                return  # the flights keep their tensors
            self._end("drains")
        self._flights.clear()


def open_ring(group: ControlGroup, where: torch.device) -> Transport:
    """`copy-engine`, for tensors on `where`. Collective.

    Raises:
        StepFailed: on all ranks: they are on several hosts, or on GPUs between which rows could arrive after their
            count.
    """
    if where.type == "cpu":
        return Ring(SharedMemory(group), group, name="copy-engine")
    check_gpus(group, where)
    return Ring(CudaDriver(group, where), group, name="copy-engine")


def shared_memory_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks on one machine: the ring of `copy-engine` with threads for copy engines."""
    name = "shared-memory"
    return over_group(name, context, timeout_s, lambda group: Ring(SharedMemory(group), group, name=name))
