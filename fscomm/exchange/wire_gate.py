"""Which class may use the wire: control words and collision rows first, exclusive rows and ids when neither runs.

Separate process groups give no priority on the wire, as all connections share it. So exclusive exchanges are held
back before they are issued: no exclusive chunk starts while a collision exchange runs, nor in the short time after it
in which the next step's first control word is expected, or rows that its forward reassigns. An issued exchange cannot
be called back. So exclusive rows go in chunks, and few bytes of them are under way at a time: a collision exchange
waits for those at most.

What somebody waits for is never held back. A collision exchange may wait for a rank that waits for the very work which
that exchange holds back: one rank reads its tables between two backward passes, say, and another one goes on to the
second. So a rank that waits for exclusive operations says so, and all ranks let go those up to the last one it waits
for (`let_go`). Operations are numbered in program order, on all ranks alike.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from fscomm.transports.transport import Handle, Part, Transport

GRACE_S = 0.025  # how long exclusive rows stay off the wire for a control word that does not come
BUDGET_BYTES = 1 << 20
IN_FLIGHT = 2  # collision parts: the next one is ready when one ends
_LOOK_S = 0.005  # between two looks at what other ranks have said, while something is held back


class OpenWire:
    """The wire as collision operations find it: never closed, and parts go a few at a time."""

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        handles: deque[Handle] = deque()
        for part in parts:
            if len(handles) == IN_FLIGHT:
                handles.popleft().follow()
            handles.append(part.over(transport))
        for handle in handles:
            handle.follow()


class WireGate:
    """Collision exchanges `enter` and `leave`; exclusive ones `wait`, and go chunk by chunk; ids `wait_for_ids`.

    A wait ends with the collision exchanges, by `settle` or `stop`, or because somebody waits for what is held back.

    One worker does all exclusive exchanges, and every rank issues their parts in the same order. With two workers on
    one budget, ranks whose budgets are used up by different workers would wait for each other.

    clock: seconds of any clock that does not go back.
    budget_bytes: of exclusive parts under way at a time. A part that is larger goes alone.
    awaited: the number of the last exclusive operation that another rank began to wait for since it was asked last.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        budget_bytes: int = BUDGET_BYTES,
        grace_s: float = GRACE_S,
        awaited: Callable[[], int] = lambda: 0,
    ) -> None:
        for name, value in (("budget_bytes", budget_bytes), ("grace_s", grace_s)):
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._grace_s = grace_s
        self._awaited = awaited
        self._changed = threading.Condition()
        self._collision = 0  # exchanges that run
        self._quiet_until = -math.inf
        self._number = self._let_go = 0
        self._ids_awaited = False
        self._stopped = False

    def enter(self) -> None:
        with self._changed:
            self._collision += 1

    def leave(self, *, expecting: bool = False) -> None:
        """The collision exchange is over; `expecting` that a control word follows soon."""
        with self._change():
            self._collision -= 1
            if expecting:
                self._quiet_until = self._clock() + self._grace_s

    def settle(self) -> None:
        """No control word is expected: exclusive exchanges may go as soon as no collision exchange runs."""
        with self._change():
            self._quiet_until = -math.inf

    def stop(self) -> None:
        """Nothing waits from now on: the engine is ending."""
        with self._change():
            self._stopped = True

    def let_go(self, number: int) -> None:
        """Somebody waits for the exclusive operations up to this one."""
        with self._change():
            self._let_go = max(self._let_go, number)

    @contextlib.contextmanager
    def awaiting_ids(self) -> Iterator[None]:
        """Inside, the training thread waits for ids: they go."""
        with self._change():
            self._ids_awaited = True
        try:
            yield
        finally:
            with self._change():
                self._ids_awaited = False

    def wait_for_ids(self) -> None:
        """Block until ids may go."""
        self._wait(self.ids_at)

    def wait_until_quiet(self) -> None:
        """Block until no control word is expected: collision exchanges may go that are less urgent than it."""
        self._wait(self.quiet_at)

    def begin(self, number: int) -> None:
        """What the exclusive worker does from now on belongs to the operation of this number; they count from 1."""
        with self._changed:
            self._number = number

    def wait(self) -> None:
        """Block until exclusive work may go on."""
        self._wait(self.exclusive_at)

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        """Exclusive parts, each when it may go and the budget has room for it."""
        under_way: deque[tuple[Handle, int]] = deque()
        for part in parts:
            nbytes = max(part.out.nbytes, part.inp.nbytes)
            while not (self._has_room(under_way, nbytes) and self._is_open()):
                if under_way:
                    under_way.popleft()[0].follow()
                else:
                    self.wait()
            under_way.append((part.over(transport), nbytes))
        for handle, _ in under_way:
            handle.follow()

    def exclusive_at(self) -> float:
        """The time from which exclusive work may go on; infinity if only another call can change that."""
        return -math.inf if 0 < self._number <= self._let_go else self._opens_at()

    def ids_at(self) -> float:
        """The same of ids."""
        return -math.inf if self._ids_awaited else self._opens_at()

    def quiet_at(self) -> float:
        """The time from which no control word is expected, if no exchange ends before."""
        return -math.inf if self._stopped else self._quiet_until

    def _opens_at(self) -> float:
        """The time from which collision exchanges hold nothing back, if none begins or ends before."""
        return math.inf if self._collision and not self._stopped else self.quiet_at()

    def _is_open(self) -> bool:
        with self._changed:
            return self.exclusive_at() <= self._clock()

    def _has_room(self, under_way: Iterable[tuple[Handle, int]], nbytes: int) -> bool:
        in_flight_bytes = sum(size for _, size in under_way)
        return in_flight_bytes == 0 or in_flight_bytes + nbytes <= self._budget_bytes

    def _wait(self, until: Callable[[], float]) -> None:
        with self._changed:
            while (at := until()) > (now := self._clock()):
                self._changed.wait(min(at - now, _LOOK_S))
                self._let_go = max(self._let_go, self._awaited())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()
