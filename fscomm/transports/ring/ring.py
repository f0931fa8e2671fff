"""All-to-all and all-gather through rings of slots in the receivers' memory; copies and counts, no kernel.

Every pair of ranks has `slots` slots at the receiver. Chunk number n of the pair, counted since the ring was made, goes
through slot n % slots once the chunk that was there has been taken, and is taken out once it has arrived. A receiver
that is late thus holds up its senders after `slots` chunks, and an operation of another ring can pass between chunks.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fscomm.transports.cutting import chunks, grown, in_order, room_for
from fscomm.transports.handshake import Handshake
from fscomm.transports.ring.fabric import Fabric
from fscomm.transports.transport import Handle, as_bytes, check_gather, check_splits
from fsranks.errors import MismatchError, PeerError, describe, name_ranks

Counts = dict[int, tuple[int, int]]  # by peer: slots it filled here, slots it emptied there

_SLICE_S = 0.5  # between two checks which ranks are still alive
_DRAIN_S = 2.0  # for queues to end after all their waits are over
_MOST_WAITING = 64  # chunks, of about three operations in one queue each; see `_pace`
_PACES = 4  # marks among them


class Ring:
    """One class of rows. `fabric` and `handshake` belong to the ring, which closes them.

    Slots grow, on all ranks alike, to the next power of two of the largest piece that any rank sends, at most
    `most_slot_bytes`. Growing blocks until the operations under way are done on all ranks. Issuing blocks for a device
    only then, and when `most_waiting` chunks wait in front of the operation.

    The time limit is the handshake's. It starts when the operation is issued, and again when an operation before it is
    done or a peer has done its share of this one: so no rank counts as late while bytes are on their way.
    """

    def __init__(
        self,
        fabric: Fabric,
        handshake: Handshake,
        *,
        name: str,
        most_slot_bytes: int = 4 << 20,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self.name = name
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._fabric = fabric
        self._handshake = handshake
        self._most_slot_bytes = most_slot_bytes
        self._between_marks = most_waiting // _PACES
        self._put = [0] * self.world_size  # chunks, since the ring was made
        self._taken = [0] * self.world_size
        self._flights: deque[_Flight] = deque()  # not known to be done; they keep their tensors alive
        self._paces: deque[tuple[Any, Counts]] = deque()
        self._unmarked = 0
        self._progress_at = time.monotonic()
        self._lock = threading.Lock()
        self._reason: str | None = None  # why the ring is broken

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits)
        with self._unless_broken():
            self._prepare("all_to_all_v", out, out_splits, in_splits)
            return self._issue(_pieces(out, out_splits), _pieces(inp, in_splits))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        splits = [len(inp)] * self.world_size
        with self._unless_broken():
            self._prepare("all_gather", out, splits, splits)
            return self._issue(_pieces(out, splits), [as_bytes(inp)] * self.world_size)

    def meet(self) -> None:
        with self._unless_broken():
            self._handshake.agree("meet", torch.empty(0, dtype=torch.uint8))

    def abort(self, reason: str) -> None:
        self._break(reason)
        self._handshake.group.abort(reason)
        self._fabric.poison()

    def close(self, reason: str) -> None:
        self._break(reason)
        self._fabric.close()
        self._flights.clear()
        self._handshake.group.close(reason)

    def _break(self, reason: str) -> str:
        """Refuse everything from now on; only the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason
            return self._reason

    def _error(self, reason: str) -> PeerError:
        return PeerError(f"{self.name} is broken on rank {self.rank}: {reason}")

    @contextlib.contextmanager
    def _unless_broken(self) -> Iterator[None]:
        """Raises PeerError if the ring is broken; whatever is raised inside breaks it, here and at the peers."""
        if self._reason is not None:
            raise self._error(self._reason)
        try:
            yield
        except (PeerError, MismatchError) as error:  # the peers know, or find out as this rank did
            self._break(str(error))
            self._drain()
            raise
        except Exception as error:
            reason = f"failed: {describe(error)}"
            self._break(reason)
            self._handshake.group.abort(reason)
            self._fabric.poison()
            raise

    def _prepare(self, operation: str, like: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]) -> None:
        """Meet all ranks, and give all of them larger slots if one needs them."""
        largest = self._handshake.agree(operation, like, out_splits, in_splits)
        slot_bytes = grown(self._fabric.slot_bytes, largest, most=self._most_slot_bytes)
        if slot_bytes == self._fabric.slot_bytes:
            return
        for flight in list(self._flights):
            flight.wait()
        self.meet()  # another rank may still fill or empty slots of a rank that is done
        self._fabric.resize(slot_bytes)

    def _issue(self, outs: list[torch.Tensor], inps: list[torch.Tensor]) -> Handle:
        """outs, inps: the bytes from and to each rank."""
        fabric, issued_at = self._fabric, time.monotonic()
        fabric.begin()
        for start, stop in chunks(len(inps[self.rank]), fabric.slot_bytes):  # other rings share the engines
            fabric.copy(outs[self.rank][start:stop], inps[self.rank][start:stop])
            self._pace(issued_at)
        for chunk in in_order(self.rank, [len(b) for b in inps], [len(b) for b in outs], fabric.slot_bytes):
            if chunk.is_put:
                self._put_chunk(chunk.peer, inps[chunk.peer][chunk.start : chunk.stop])
            else:
                self._take_chunk(chunk.peer, outs[chunk.peer][chunk.start : chunk.stop])
            self._pace(issued_at)
        flight = _Flight(self, fabric.mark(), self._counts(), issued_at, (outs, inps))
        self._flights.append(flight)
        return flight

    def _put_chunk(self, peer: int, data: torch.Tensor) -> None:
        number = self._put[peer]
        if room := room_for(number, self._fabric.slots):
            self._fabric.await_room(peer, room)
        self._fabric.put(peer, number % self._fabric.slots, data)
        self._put[peer] += 1

    def _take_chunk(self, peer: int, out: torch.Tensor) -> None:
        number = self._taken[peer]
        self._fabric.await_arrival(peer, number + 1)
        self._fabric.take(peer, number % self._fabric.slots, out)
        self._taken[peer] += 1

    def _counts(self) -> Counts:
        return {r: (self._taken[r], self._put[r]) for r in range(self.world_size) if r != self.rank}

    def _pace(self, issued_at: float) -> None:
        """Limit what waits in the queues: a full queue blocks the host inside the device's own call, where a dead peer
        is not noticed, and where it may hold a lock that other threads need. A queue takes about a thousand operations.
        Three rings, whose streams may all share one hardware queue, have at most 600 operations waiting.

        The order of chunks is the same on both sides, so every rank has issued what this waits for.
        """
        self._unmarked += 1
        if self._unmarked < self._between_marks:
            return
        self._unmarked = 0
        self._paces.append((self._fabric.mark(), self._counts()))
        if len(self._paces) >= _PACES:
            mark, counts = self._paces.popleft()
            self._complete(mark, counts, issued_at)

    def _is_over(self, mark: Any) -> bool:
        return self._reason is not None or self._fabric.poisoned() or self._fabric.is_done(mark)

    def _complete(self, mark: Any, counts: Counts, issued_at: float) -> None:
        """Block until `mark` is done. Raises PeerError."""
        start = time.monotonic()
        since = max(issued_at, self._progress_at)
        limit_s, behind = self._handshake.timeout_s, list(counts)
        while True:
            slice_s = min(max(since + limit_s - time.monotonic(), 0.0), _SLICE_S)
            done = self._fabric.wait(mark, slice_s)
            if self._reason is not None or self._fabric.poisoned():  # asked last: poison, too, ends waits
                raise self._fail([], time.monotonic() - start)
            if done:
                self._progress_at = time.monotonic()
                return
            gone = self._handshake.gone()
            before, behind = behind, self._fabric.behind(counts)
            if dead := [rank for rank in gone if rank in behind]:
                raise self._fail(dead, time.monotonic() - start)
            if len(behind) < len(before):
                since = time.monotonic()
            elif time.monotonic() >= since + limit_s:
                raise self._fail([], time.monotonic() - start, behind)

    def _forget(self, flight: "_Flight") -> None:
        while flight in self._flights:  # and those before it: queues run in order
            self._flights.popleft()

    def _fail(self, dead: list[int], waited_s: float, behind: Sequence[int] = ()) -> PeerError:
        """Break the ring everywhere; the error to raise here."""
        self._fabric.poison()
        reason = self._reason
        if reason is None and dead:
            reason = f"the process of {name_ranks(dead)} has ended"
            self._handshake.group.abort(f"found that {reason}")
        elif reason is None:
            reason = self._handshake.group.blame(waited_s)
            if behind:
                reason += f" (after {waited_s:.1f} s this rank still waited for {name_ranks(list(behind))})"
        reason = self._break(reason)
        self._drain()
        return self._error(reason)

    def _drain(self) -> None:
        """End what is in flight, so that nothing is written into tensors that the caller gets back with an error.

        It repeats: a count that a peer's queue was about to write may replace the count that ends a wait.
        """
        end = time.monotonic() + _DRAIN_S
        self._fabric.poison()
        mark = self._fabric.mark()
        while not self._fabric.wait(mark, 0.02):
            if time.monotonic() > end:
                return  # the flights keep their tensors
            self._fabric.poison()
        self._flights.clear()


class _Flight:
    """An operation that was issued. It keeps the tensors that the queues use."""

    def __init__(self, ring: Ring, mark: Any, counts: Counts, issued_at: float, tensors: object) -> None:
        self._ring = ring
        self._mark = mark
        self._counts = counts
        self._issued_at = issued_at
        self._tensors = tensors

    def done(self) -> bool:
        return self._ring._is_over(self._mark)

    def wait(self) -> None:
        with self._ring._unless_broken():
            self._ring._complete(self._mark, self._counts, self._issued_at)
        self._ring._forget(self)
        self._tensors = None


def _pieces(tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
    """The bytes of each rank's rows."""
    return [as_bytes(part) for part in tensor.split(list(splits))]
