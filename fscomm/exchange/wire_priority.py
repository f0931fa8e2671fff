"""Which class may use the wire: control words and collision rows first, exclusive rows and ids when neither runs.

Separate process groups give no priority on the wire, as all connections share it. So exclusive exchanges are held
back before they are issued: no exclusive chunk starts while a collision exchange runs, nor in the short time after it
in which the next step's first control word is expected. A collision exchange that does not end may wait for the very
work that it holds back (one rank flushes between two backward passes, say, and another one does not): so it holds it
back for `STARVED_S` at most. An issued exchange cannot be called back. So exclusive rows go
in chunks, and few bytes of them are under way at a time: a collision exchange waits for those at most.
"""

import math

GRACE_S = 0.025  # how long exclusive rows stay off the wire for a control word that does not come
STARVED_S = 1.0  # how long collision exchanges that do not pause, or one that does not end, hold exclusive work back
BUDGET_BYTES = 1 << 20


class WirePriority:
    """The rules, without threads and without a clock: times are seconds of any clock that does not go back.

    One worker asks for chunks, one at a time, and every rank issues them in the same order. With two workers on one
    budget, ranks whose budgets are used up by different workers would wait for each other.
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
        self._collision = 0
        self._moved_at = -math.inf  # the last end of a collision exchange, or begin of one while no other ran
        self._quiet_until = -math.inf
        self._in_flight_bytes = 0
        self._kept_off_since: float | None = None
        self._stopped = False

    def begin_collision(self, now_s: float) -> None:
        if not self._collision:
            self._moved_at = now_s
        self._collision += 1

    def end_collision(self, now_s: float, *, expecting: bool) -> None:
        """A collision exchange is over; `expecting` that a control word follows soon."""
        self._collision -= 1
        self._moved_at = now_s
        if expecting:
            self._quiet_until = now_s + self._grace_s

    def settle(self) -> None:
        """No control word is expected: exclusive exchanges may go as soon as no collision exchange runs."""
        self._quiet_until = -math.inf

    def stop(self) -> None:
        """Everything may go from now on."""
        self._stopped = True

    def opens_at(self, since_s: float) -> float:
        """The time from which work that waits since `since_s` is held back no longer."""
        return min(self._opens_at(), since_s + self._starved_s)

    def ask(self, nbytes: int, now_s: float) -> float:
        """The time from which the next chunk may go; infinity if only another call can change that.

        The chunk may go if that is not later than `now_s`; then `issue` it. A chunk larger than the budget goes alone.
        So does a chunk that collision exchanges have held back for `starved_s` since it was first asked for.
        """
        alone = self._in_flight_bytes == 0
        if not (self._stopped or alone or self._in_flight_bytes + nbytes <= self._budget_bytes):
            return math.inf
        opens_at = self._opens_at()
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

    def _opens_at(self) -> float:
        """The time from which collision exchanges hold nothing back, if none begins or ends before."""
        if self._stopped:
            return -math.inf
        return self._moved_at + self._starved_s if self._collision else self._quiet_until
