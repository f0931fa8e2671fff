"""The schedule of the exchange for threads."""

import math
import threading
import time
from collections.abc import Callable

from fscomm.exchange.wire_priority import WirePriority


class WireGate:
    """A schedule for threads. Urgent ones go `enter` ... `leave`; bulk senders `wait`, or take turns chunk by chunk.

    Waiting is bounded by the urgent exchanges, which have deadlines of their own; `settle` and `stop` end it. A chunk's
    turn comes by `try_bulk`, and `bulk_done` follows; see `exchange.exchange`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, schedule: WirePriority | None = None) -> None:
        self._clock = clock
        self._schedule = schedule or WirePriority()
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._schedule.begin_urgent()

    def leave(self, *, expecting: bool = False) -> None:
        """The urgent exchange is over; `expecting` that a control word follows soon."""
        with self._changed:
            self._schedule.end_urgent(self._clock(), expecting=expecting)
            self._changed.notify_all()

    def settle(self) -> None:
        """Nothing more is expected: what waits may go as soon as no urgent exchange runs."""
        with self._changed:
            self._schedule.settle()
            self._changed.notify_all()

    def stop(self) -> None:
        """Let everybody through for good: the engine is ending."""
        with self._changed:
            self._schedule.stop()
            self._changed.notify_all()

    def may_pass(self) -> bool:
        return self._schedule.opens_at() <= self._clock()

    def wait(self) -> None:
        """Block until urgent traffic is over."""
        self._wait(self._schedule.opens_at)

    def try_bulk(self, nbytes: int) -> bool:
        """Whether a chunk may go now; if so it counts as under way until `bulk_done`. Does not block."""
        with self._changed:
            goes = self._chunk_at(nbytes) <= self._clock()
            if goes:
                self._schedule.issue(nbytes)
            return goes

    def wait_bulk(self, nbytes: int) -> None:
        """Block until `try_bulk` is worth another try. Who has chunks under way waits for the oldest one instead."""
        self._wait(lambda: self._chunk_at(nbytes))

    def bulk_done(self, nbytes: int) -> None:
        with self._changed:
            self._schedule.done(nbytes)
            self._changed.notify_all()

    def _chunk_at(self, nbytes: int) -> float:
        return self._schedule.ask(nbytes, self._clock())

    def _wait(self, until: Callable[[], float]) -> None:
        with self._changed:
            while (at := until()) > (now := self._clock()):
                self._changed.wait(None if math.isinf(at) else at - now)
