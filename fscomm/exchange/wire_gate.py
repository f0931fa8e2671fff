"""Wire priority for threads: waiting, and being woken."""

import math
import threading
import time
from collections.abc import Callable

from fscomm.exchange.wire_priority import WirePriority


class WireGate:
    """Collision exchanges `enter` and `leave`; exclusive ones `wait`, or go chunk by chunk.

    A wait ends with the collision exchanges, by `settle` or `stop`, or by itself after `STARVED_S`. A chunk is let go
    by `try_exclusive`, and `exclusive_done` follows; see `parts.exchange`.
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
