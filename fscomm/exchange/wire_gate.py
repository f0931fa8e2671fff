"""Which class may use the link: control words and collision rows first, exclusive rows and ids when neither runs.

Separate process groups give no priority on the link, as all connections share it. So exclusive exchanges are held back
before they are issued: no exclusive chunk starts while a collision exchange runs, nor in the short time after it in
which the next step's first control word is expected, or rows that its forward reassigns. An issued exchange cannot be
called back. So exclusive rows go in chunks, and few bytes of them are under way at a time: a collision exchange waits
for those at most.

Work that a thread waits for is never held back. A collision exchange may wait for a rank that waits for the very work
which that exchange holds back: one rank reads its tables between two backward passes, say, and another one starts
the second. So a rank that waits for exclusive operations announces it, and all ranks release those up to the last one
it waits for (`release_up_to`). Operations are numbered in program order, on all ranks alike.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from fscomm.transports.transport import Chunk, Handle, Transport

GRACE_S = 0.025  # how long exclusive rows wait for a control word that does not arrive
BUDGET_BYTES = 1 << 20
CHUNKS_UNDER_WAY = 2  # exclusive ones: one follows the other without a pause
IN_FLIGHT = 2  # collision chunks: the next one is ready when one ends
_MEASURED_BYTES = 256 << 10  # of an exchange: what smaller ones take is mostly latency
_LOOK_S = 0.005  # between two checks of what other ranks announced, while something is held back


class OpenWire:
    """The link for collision operations: never closed, and a few chunks at a time."""

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, chunks: Iterable[Chunk]) -> None:
        handles: deque[Handle] = deque()
        for chunk in chunks:
            if len(handles) == IN_FLIGHT:
                handles.popleft().follow()
            handles.append(chunk.over(transport))
        for handle in handles:
            handle.follow()


class WireGate:
    """Collision exchanges `enter` and `leave`; exclusive ones `wait`, and go chunk by chunk; ids `wait_for_ids`.

    A wait ends with the collision exchanges, by `stop_expecting_control_word` or `stop`, or because a thread waits for
    what is held back.

    One worker does all exclusive exchanges, and every rank issues their chunks in the same order. With two workers on
    one budget, ranks whose budgets are used up by different workers would wait for each other.

    clock: seconds of any clock that does not go back.
    awaited: the number of the last exclusive operation that another rank began to wait for since the last call.

    Attributes:
        budget_bytes: of exclusive chunks under way at a time. A chunk that is larger goes alone.
        us_per_mb: how long the last exchange of exclusive chunks took, without the time in which it was held back; 0 if
            there was none of some size.
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
        self.budget_bytes = budget_bytes
        self._grace_s = grace_s
        self._awaited = awaited
        self._changed = threading.Condition()
        self._collision = 0  # exchanges that run
        self._expecting_until = -math.inf  # until then a control word is expected
        self._number = self._released = 0  # of exclusive operations: the one that runs, the last one released
        self._ids_awaited = False
        self._stopped = False
        self.us_per_mb = 0

    def enter(self) -> None:
        with self._changed:
            self._collision += 1

    def leave(self, *, expecting: bool = False) -> None:
        """The collision exchange is over; `expecting` that a control word follows soon."""
        with self._change():
            self._collision -= 1
            # An exclusive chunk that started now would delay the control word by its whole transfer, and with it all
            # ranks: an idle link for up to GRACE_S costs less. The grace is short, as the control word may not come.
            if expecting:
                self._expecting_until = self._clock() + self._grace_s

    def stop_expecting_control_word(self) -> None:
        """No control word is expected any more: exclusive exchanges may go once no collision exchange runs."""
        with self._change():
            self._expecting_until = -math.inf

    def stop(self) -> None:
        """Nothing waits from now on: the engine is ending."""
        with self._change():
            self._stopped = True

    def release_up_to(self, number: int) -> None:
        """A thread, here or on another rank, waits for the exclusive operations up to this one."""
        with self._change():
            # Only upwards: announcements of several ranks arrive in any order.
            self._released = max(self._released, number)

    @contextlib.contextmanager
    def awaiting_ids(self) -> Iterator[None]:
        """Inside, the training thread waits for ids, which are not held back."""
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

    def wait_while_expecting(self) -> None:
        """Block until no control word is expected: collision exchanges may go that are less urgent than it."""
        self._wait(self.expecting_until)

    def begin(self, number: int) -> None:
        """The exclusive worker begins the operation of this number; they count from 1."""
        with self._changed:
            self._number = number

    def wait(self) -> None:
        """Block until exclusive work may continue."""
        self._wait(self.exclusive_at)

    def exchange(self, transport: Transport, chunks: Iterable[Chunk]) -> None:
        """Exclusive chunks, each when it may go and the budget has room for it."""
        under_way: deque[tuple[Handle, int]] = deque()
        began, held_s, total = math.inf, 0.0, 0
        for chunk in chunks:
            nbytes = max(chunk.out.nbytes, chunk.inp.nbytes)
            while not (self._has_room(under_way, nbytes) and self._is_open()):
                # Room is made by what is under way, which ends without this thread. So that is waited for first, and
                # the gate only when nothing is left: it may open meanwhile.
                if under_way:
                    under_way.popleft()[0].follow()
                else:
                    since = self._clock()
                    self.wait()
                    held_s += self._clock() - since if total else 0.0
            began, total = min(began, self._clock()), total + nbytes
            under_way.append((chunk.over(transport), nbytes))
        for handle, _ in under_way:
            handle.follow()
        if total >= _MEASURED_BYTES:
            self.us_per_mb = max(round(1e12 * (self._clock() - began - held_s) / total), 1)

    def exclusive_at(self) -> float:
        """The time from which exclusive work may continue; infinity if only another call can change that."""
        return -math.inf if 0 < self._number <= self._released else self._opens_at()

    def ids_at(self) -> float:
        """The same of ids."""
        return -math.inf if self._ids_awaited else self._opens_at()

    def expecting_until(self) -> float:
        """The time from which no control word is expected, if no exchange ends before."""
        return -math.inf if self._stopped else self._expecting_until

    def _opens_at(self) -> float:
        """The time from which collision exchanges hold nothing back, if none begins or ends before."""
        return math.inf if self._collision and not self._stopped else self.expecting_until()

    def _is_open(self) -> bool:
        with self._changed:
            return self.exclusive_at() <= self._clock()

    def _has_room(self, under_way: Iterable[tuple[Handle, int]], nbytes: int) -> bool:
        in_flight_bytes = sum(size for _, size in under_way)
        # Whatever its size, one chunk may go where none is under way: else a large one would wait for ever.
        return in_flight_bytes == 0 or in_flight_bytes + nbytes <= self.budget_bytes

    def _wait(self, until: Callable[[], float]) -> None:
        with self._changed:
            while (at := until()) > (now := self._clock()):
                # `notify_all` reports changes on this rank; announcements of other ranks have to be polled.
                self._changed.wait(min(at - now, _LOOK_S))
                self._released = max(self._released, self._awaited())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()
