"""Which class may use the wire: control words and collision rows first, exclusive rows and ids when neither runs.

Separate process groups give no priority on the wire, as all connections share it. So exclusive exchanges are held
back before they are issued: no exclusive chunk starts while a collision exchange runs, nor in the short time after it
in which the next step's first control word is expected. An issued exchange cannot be called back. So exclusive rows go
in chunks, and few bytes of them are under way at a time: a collision exchange waits for those at most.

What somebody waits for is never held back. A collision exchange may wait for a rank that waits for the very work which
that exchange holds back: one rank reads its tables between two backward passes, say, and another one goes on to the
second. So a rank that waits for exclusive operations says so, and all ranks let go those up to the last one it waits
for (`let_go`). Operations are numbered in program order, on all ranks alike.
"""

import math

GRACE_S = 0.025  # how long exclusive rows stay off the wire for a control word that does not come
BUDGET_BYTES = 1 << 20


class WirePriority:
    """The rules, without threads and without a clock: times are seconds of any clock that does not go back.

    One worker asks for chunks, one at a time, and every rank issues them in the same order. With two workers on one
    budget, ranks whose budgets are used up by different workers would wait for each other.
    """

    def __init__(self, *, budget_bytes: int = BUDGET_BYTES, grace_s: float = GRACE_S) -> None:
        for name, value in (("budget_bytes", budget_bytes), ("grace_s", grace_s)):
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        self._budget_bytes = budget_bytes
        self._grace_s = grace_s
        self._collision = 0
        self._quiet_until = -math.inf
        self._in_flight_bytes = 0
        self._number = self._let_go = 0
        self._ids_awaited = False
        self._stopped = False

    def begin_collision(self) -> None:
        self._collision += 1

    def end_collision(self, now_s: float, *, expecting: bool) -> None:
        """A collision exchange is over; `expecting` that a control word follows soon."""
        self._collision -= 1
        if expecting:
            self._quiet_until = now_s + self._grace_s

    def settle(self) -> None:
        """No control word is expected: exclusive exchanges may go as soon as no collision exchange runs."""
        self._quiet_until = -math.inf

    def stop(self) -> None:
        """Everything may go from now on."""
        self._stopped = True

    def begin_exclusive(self, number: int) -> None:
        """What is asked for from now on belongs to the exclusive operation of this number; they count from 1."""
        self._number = number

    def let_go(self, number: int) -> None:
        """Somebody waits for the exclusive operations up to this one."""
        self._let_go = max(self._let_go, number)

    def await_ids(self, awaited: bool) -> None:
        """Whether the training thread waits for ids."""
        self._ids_awaited = awaited

    def exclusive_at(self) -> float:
        """The time from which exclusive work may go on; infinity if only another call can change that."""
        return -math.inf if self._number <= self._let_go and self._number else self._opens_at()

    def ids_at(self) -> float:
        """The same of ids."""
        return -math.inf if self._ids_awaited else self._opens_at()

    def chunk_at(self, nbytes: int) -> float:
        """The same of an exclusive chunk; then `issue` it. A chunk larger than the budget goes alone."""
        alone = self._in_flight_bytes == 0
        has_room = self._stopped or alone or self._in_flight_bytes + nbytes <= self._budget_bytes
        return self.exclusive_at() if has_room else math.inf

    def issue(self, nbytes: int) -> None:
        """The chunk that was asked for is under way."""
        self._in_flight_bytes += nbytes

    def done(self, nbytes: int) -> None:
        """A chunk that was issued is no longer under way."""
        self._in_flight_bytes -= nbytes

    def _opens_at(self) -> float:
        """The time from which collision exchanges hold nothing back, if none begins or ends before."""
        if self._stopped:
            return -math.inf
        return math.inf if self._collision else self._quiet_until
