"""Wire priority for threads: waiting, and being woken; which parts of an exchange are under way when."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from fscomm.exchange.wire_priority import WirePriority
from fscomm.transports.transport import Handle, Transport
from fsranks.control_group import AllToAll

IN_FLIGHT = 2  # collision parts: the next one is ready when one ends


class OpenWire:
    """The wire as collision operations find it: never closed, and parts go a few at a time."""

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, parts: Iterable[AllToAll]) -> None:
        handles: deque[Handle] = deque()
        for part in parts:
            if len(handles) == IN_FLIGHT:
                handles.popleft().wait()
            handles.append(transport.all_to_all_v(*part))
        for handle in handles:
            handle.wait()


class WireGate:
    """Collision exchanges `enter` and `leave`; exclusive ones `wait`, and go chunk by chunk.

    A wait ends with the collision exchanges, by `settle` or `stop`, or by itself after `STARVED_S`. A chunk is let go
    by `try_exclusive`, and `exclusive_done` follows.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, schedule: WirePriority | None = None) -> None:
        self._clock = clock
        self._schedule = schedule or WirePriority()
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._schedule.begin_collision(self._clock())

    def leave(self, *, expecting: bool = False) -> None:
        """The collision exchange is over; `expecting` that a control word follows soon."""
        with self._changed:
            self._schedule.end_collision(self._clock(), expecting=expecting)
            self._changed.notify_all()

    def settle(self) -> None:
        """No control word is expected: exclusive exchanges may go as soon as no collision exchange runs."""
        with self._changed:
            self._schedule.settle()
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing waits from now on: the engine is ending."""
        with self._changed:
            self._schedule.stop()
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until collision exchanges are over, or have held this back for long enough."""
        since = self._clock()
        self._wait(lambda: self._schedule.opens_at(since))

    def exchange(self, transport: Transport, parts: Iterable[AllToAll]) -> None:
        """Exclusive parts, each when it may go. If one fails, those issued no longer count as under way."""
        handles: deque[Handle] = deque()
        sizes: deque[int] = deque()

        def finish_oldest() -> None:
            handles.popleft().wait()
            self.exclusive_done(sizes.popleft())

        try:
            for part in parts:
                nbytes = max(part[0].nbytes, part[1].nbytes)
                while not self.try_exclusive(nbytes):
                    if handles:
                        finish_oldest()
                    else:
                        self.wait_exclusive(nbytes)
                sizes.append(nbytes)
                handles.append(transport.all_to_all_v(*part))
            while handles:
                finish_oldest()
        finally:
            self.exclusive_done(sum(sizes))

    def try_exclusive(self, nbytes: int) -> bool:
        """Whether a chunk may go now; if so it counts as under way until `exclusive_done`. Does not block."""
        with self._changed:
            goes = self._chunk_at(nbytes) <= self._clock()
            if goes:
                self._schedule.issue(nbytes)
            return goes

    def wait_exclusive(self, nbytes: int) -> None:
        """Block until `try_exclusive` may succeed. Only for a thread without chunks under way."""
        self._wait(lambda: self._chunk_at(nbytes))

    def exclusive_done(self, nbytes: int) -> None:
        with self._changed:
            self._schedule.done(nbytes)
            self._changed.notify_all()

    def _chunk_at(self, nbytes: int) -> float:
        return self._schedule.ask(nbytes, self._clock())

    def _wait(self, until: Callable[[], float]) -> None:
        with self._changed:
            while (at := until()) > (now := self._clock()):
                self._changed.wait(None if math.isinf(at) else at - now)
