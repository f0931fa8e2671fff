"""Operations under way on one transport: their time limit, their end, and which rank is the reason if one hangs.

Libraries and devices cannot report that: a kernel or a copy that waits for a lost rank blocks its stream. So the ranks
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

    After the first error everything raises PeerError; the first reason stands. While an operation of a library or a
    device does not end, the transport finds out which rank is the reason.
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
        """Give up the operations under way. Any thread may call it, more than once, also after `close`; it must not
        wait for peers."""

    def _lost(self) -> bool:
        """Whether a peer has ended the transport for all ranks, as far as this rank can see."""
        return False

    def barrier(self) -> None:
        with self._guard():
            self._synchronize()

    def abort(self, reason: str) -> None:
        # First to the others: they can read the reason before anything ends here, this process perhaps.
        self._group.abort(reason)
        self._give_up(reason)

    def close(self, reason: str) -> None:
        """As `Transport.close`; what is under way for other ranks is not given up."""
        self._refuse(reason)
        self._group.close(reason)
        self._flights.clear()

    def _synchronize(self) -> None:
        """As `barrier`, for an operation that is guarded itself."""
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
        """What is raised inside ends the transport, here and for the other ranks."""
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
        """The error of a failed operation, which names the rank that is the reason. Every survivor calls it.

        gone: the ranks whose end is the reason; none: the ranks find out which it is. detail: in words, for that case.
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
        """Begin nothing more; only the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason

    def _give_up(self, reason: str) -> None:
        """Begin nothing more, and end what is under way here."""
        self._refuse(reason)
        self._end(reason)

    def _begun(
        self, *tensors: object, done: Callable[[], bool], wait: Callable[[], None], follow: Callable[[], None]
    ) -> "Flight":
        """The handle of an operation that uses `tensors`: `done` does not block, `wait` blocks until it is done, and
        `follow` orders what the caller issues next behind it."""
        # Callers may drop handles without a wait, so each new operation releases the tensors of those that are done.
        while self._flights and self._flights[0].done():
            self._flights.popleft()
        flight = Flight(done=lambda: self._is_over or done(), until_done=wait, follow=follow, tensors=tensors)
        self._flights.append(flight)
        return flight


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A handle. It keeps the tensors until it was waited for; the transport keeps it until it is done."""

    done: Callable[[], bool]
    until_done: Callable[[], None]
    follow: Callable[[], None]
    tensors: tuple[object, ...]

    def wait(self) -> None:
        self.until_done()
        self.tensors = ()  # the transport keeps this handle longer, up to its next operation


def _still(waited_s: float, late: Sequence[int] | None) -> str:
    return f" (after {waited_s:.1f} s this rank still waited for {name_ranks(list(late))})" if late else ""
