"""Which class may use the wire: control and collision traffic first, exclusive traffic and ids when neither runs.

Separate process groups give no priority on the wire, as all connections share the link. So bulk exchanges are held back
before they are issued: no bulk byte starts while an urgent exchange runs, nor in the short time after it in which the
next step's first control word is expected. What was issued cannot be called back, so bulk goes in chunks and few bytes
of it are under way at a time: an urgent exchange waits for those at most.
"""

import math
import threading
import time
from collections.abc import Callable

GRACE_S = 0.025  # how long bulk stays off the wire for a control word that does not come
STARVED_S = 1.0  # urgent traffic that never pauses lets one chunk pass in this time
BUDGET_BYTES = 8 << 20


class Schedule:
    """The rules, without threads and without a clock: times are seconds of any clock that does not go back.

    Chunks are asked for one at a time, by one lane, and every rank issues them in the same order: with two lanes on one
    budget, ranks whose budgets are taken by different lanes would wait for each other.
    """

    def __init__(
        self, *, budget_bytes: int = BUDGET_BYTES, grace_s: float = GRACE_S, starved_s: float = STARVED_S
    ) -> None:
        for name, value in (("budget_bytes", budget_bytes), ("grace_s", grace_s), ("starved_s", starved_s)):
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        self._budget_bytes = budget_bytes
        self._grace_s = grace_s
        self._starved_s = starved_s
        self._urgent = 0
        self._quiet_until = -math.inf
        self._in_flight_bytes = 0
        self._kept_off_since: float | None = None
        self._stopped = False

    def begin_urgent(self) -> None:
        self._urgent += 1

    def end_urgent(self, now_s: float, *, expecting: bool) -> None:
        """An urgent exchange is over; `expecting` that a control word follows soon."""
        self._urgent -= 1
        if expecting:
            self._quiet_until = now_s + self._grace_s

    def settle(self) -> None:
        """Nothing more is expected: bulk may go as soon as no urgent exchange runs."""
        self._quiet_until = -math.inf

    def stop(self) -> None:
        """Everything may go, for good."""
        self._stopped = True

    def opens_at(self) -> float:
        """From when on urgent traffic keeps nothing off, if nothing changes; infinity: only when something does."""
        if self._stopped:
            return -math.inf
        return math.inf if self._urgent else self._quiet_until

    def ask(self, nbytes: int, now_s: float) -> float:
        """From when on the next chunk may go, if nothing changes; infinity: only when something does.

        It may go if that is not later than `now_s`; then `issue` it. A chunk larger than the budget goes alone. One
        that urgent traffic has kept off for `starved_s` since it was first asked for goes alone, too.
        """
        alone = self._in_flight_bytes == 0
        if not (self._stopped or alone or self._in_flight_bytes + nbytes <= self._budget_bytes):
            return math.inf
        opens_at = self.opens_at()
        if opens_at <= now_s:
            return opens_at
        if self._kept_off_since is None:
            self._kept_off_since = now_s
        return min(opens_at, self._kept_off_since + self._starved_s) if alone else opens_at

    def issue(self, nbytes: int) -> None:
        """The chunk that was asked for is under way."""
        self._in_flight_bytes += nbytes
        self._kept_off_since = None

    def done(self, nbytes: int) -> None:
        """A chunk that was issued is no longer under way."""
        self._in_flight_bytes -= nbytes


class Gate:
    """A schedule for threads. Urgent ones go `enter` ... `leave`; bulk senders `wait`, or take turns chunk by chunk.

    Waiting is bounded by the urgent exchanges, which have deadlines of their own; `settle` and `stop` end it. A chunk's
    turn comes by `try_bulk`, and `bulk_done` follows; see `exchange.exchange`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, schedule: Schedule | None = None) -> None:
        self._clock = clock
        self._schedule = schedule or Schedule()
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
