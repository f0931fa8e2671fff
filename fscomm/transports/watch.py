"""Watches the operations under way on one transport: their time limit, their end, and the rank for which one hangs.

Libraries and devices do not report lost ranks: a kernel or a copy that waits for one blocks its stream. So the ranks
find out over their control group.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fscomm.device import poll
from fscomm.transports.transport import Chunk, Handle
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError, describe, name_ranks

_SLICE_S = 0.5  # between two checks which ranks are still alive


class Watched(ABC):
    """A transport that watches its operations. `group` belongs to it, and is closed with it.

    After the first error every call raises PeerError, with the reason of that error. If an operation of a library or a
    device does not end, the transport finds out which rank it waits for.
    """

    name: str

    def __init__(self, group: ControlGroup) -> None:
        self.rank = group.rank
        self.world_size = group.world_size
        self._group = group
        self._flights: deque[Flight] = deque()  # not known to be done; they keep their tensors
        self._lock = threading.Lock()
        self._reason: str | None = None

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
    ) -> Handle:
        chunk = Chunk(out, inp, list(out_splits), list(in_splits), largest_bytes)
        chunk.check(self.world_size)
        return self._begin(chunk.in_bytes(), chunk.row_bytes)

    @abstractmethod
    def _begin(self, chunk: Chunk, row_bytes: int) -> Handle:
        """chunk: in bytes, of rows of `row_bytes`."""

    @abstractmethod
    def _end(self, reason: str) -> None:
        """Give up the operations under way. Called from any thread, more than once, also after `close`; must not wait
        for peers."""

    def _lost(self) -> bool:
        """Whether a peer has ended the transport for all ranks, as far as this rank can see."""
        return False

    def barrier(self) -> None:
        with self._guard():
            self._synchronize()

    def abort(self, reason: str) -> None:
        # Notify the others first: ending operations may also end this process.
        self._group.abort(reason)
        self._give_up(reason)

    def close(self, reason: str) -> None:
        """As `Transport.close`; does not give up what other ranks still receive."""
        self._refuse(reason)
        self._group.close(reason)
        self._flights.clear()

    def _synchronize(self) -> None:
        """As `barrier`, for callers inside `_guard`."""
        self._group.all_gather(np.zeros(1, np.int8))
        self._check()  # begin nothing if another thread gave the transport up

    @property
    def _is_over(self) -> bool:
        return self._reason is not None or self._lost()

    def _check(self) -> None:
        if self._reason is not None:
            raise self._error()

    def _error(self) -> PeerError:
        return PeerError(f"{self.name} is over on rank {self.rank}: {self._reason}")

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """An error inside ends the transport, here and for the other ranks."""
        self._check()
        try:
            yield
        except PeerError as error:  # the others know, or find out as this rank did
            self._give_up(str(error))
            raise
        except Exception as error:
            self.abort(f"failed: {describe(error)}")
            raise

    def _until(self, wait: Callable[[float], bool], late: Callable[[], list[int]] | None = None) -> None:
        """Block until an operation is done, at most the time limit. Raises PeerError.

        wait: blocks for at most so many seconds; whether the operation is done.
        late: the ranks that have not done their share yet, where that is known.
        """
        self._check()
        clock, limit_s = self._group.clock, self._group.timeout_s
        start = clock.now()
        # In slices: neither a library nor a device reports a dead peer, so between two of them the group is asked.
        while True:
            done = wait(min(_SLICE_S, max(start + limit_s - clock.now(), 0.0)))
            self._check()  # after `wait`: the end of a transport ends waits, too
            lost = self._lost()
            if done and not lost:
                return
            waited_s, gone = clock.now() - start, self._group.gone()
            missing = late() if late is not None else None  # after `gone`: a rank that did its share may leave
            if missing is not None:
                gone = [rank for rank in gone if rank in missing]
            # Once more: the operation may have ended while the group was asked.
            if lost or ((gone or waited_s >= limit_s) and not wait(0.0)):
                raise self._failed(waited_s, gone=gone, detail=_still(waited_s, missing))

    def _until_done(self, is_done: Callable[[], bool]) -> None:
        """As `_until`, by asking again and again."""
        clock = self._group.clock
        self._until(lambda limit_s: poll(lambda: self._reason is not None or is_done(), limit_s, clock))

    def _failed(self, waited_s: float, *, gone: Sequence[int] = (), detail: str = "") -> PeerError:
        """The error of a failed operation, which names the lost rank. Every rank that is left calls it.

        gone: the ranks whose processes have ended; if none, the ranks diagnose together which one is lost. detail: what
        is appended to that diagnosis.
        """
        self._end("lost an operation")  # first: so ranks that wait for this one look for the reason at the same time
        reason = self._reason
        if reason is None and gone:
            reason = f"the process of {name_ranks(list(gone))} has ended"
            self._group.abort(f"found that {reason}")
        elif reason is None:
            reason = self._group.blame(waited_s) + detail
        self._refuse(reason)
        return self._error()

    def _refuse(self, reason: str) -> None:
        """Begin no more operations; only the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason

    def _give_up(self, reason: str) -> None:
        """Begin no more operations, and end those under way here."""
        self._refuse(reason)
        self._end(reason)

    def _begun(
        self, *tensors: object, done: Callable[[], bool], wait: Callable[[], None], follow: Callable[[], None]
    ) -> "Flight":
        """The handle of an operation that uses `tensors`. done: does not block. wait: blocks until it is done. follow:
        orders what the caller issues next behind it."""
        # Callers may drop handles without a wait, so each new operation releases the tensors of those that are done.
        while self._flights and self._flights[0].done():
            self._flights.popleft()
        flight = Flight(done=lambda: self._is_over or done(), until_done=wait, follow=follow, tensors=tensors)
        self._flights.append(flight)
        return flight


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A handle. It keeps the tensors until `wait` returns; the transport keeps the handle until it is done."""

    done: Callable[[], bool]
    until_done: Callable[[], None]
    follow: Callable[[], None]
    tensors: tuple[object, ...]

    def wait(self) -> None:
        self.until_done()
        self.tensors = ()  # the transport keeps this handle longer, up to its next operation


def _still(waited_s: float, late: Sequence[int] | None) -> str:
    return f" (after {waited_s:.1f} s this rank still waited for {name_ranks(list(late))})" if late else ""
