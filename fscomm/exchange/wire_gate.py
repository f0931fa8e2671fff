"""Wire priority for threads: waiting, and being woken; which parts of an exchange are under way when."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from fscomm.exchange.wire_priority import WirePriority
from fscomm.transports.transport import Handle, Part, Transport

_LOOK_S = 0.005  # between two looks at what other ranks have said, while something is held back
IN_FLIGHT = 2  # collision parts: the next one is ready when one ends


class OpenWire:
    """The wire as collision operations find it: never closed, and parts go a few at a time."""

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        handles: deque[Handle] = deque()
        for part in parts:
            if len(handles) == IN_FLIGHT:
                handles.popleft().wait()
            handles.append(part.over(transport))
        for handle in handles:
            handle.wait()


class WireGate:
    """Collision exchanges `enter` and `leave`; exclusive ones `wait`, and go chunk by chunk; ids `wait_for_ids`.

    A wait ends with the collision exchanges, by `settle` or `stop`, or because somebody waits for what is held back.
    awaited: the number of the last exclusive operation that another rank began to wait for since it was asked last.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        schedule: WirePriority | None = None,
        awaited: Callable[[], int] = lambda: 0,
    ) -> None:
        self._clock = clock
        self._schedule = schedule or WirePriority()
        self._awaited = awaited
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._schedule.begin_collision()

    def leave(self, *, expecting: bool = False) -> None:
        """The collision exchange is over; `expecting` that a control word follows soon."""
        with self._change():
            self._schedule.end_collision(self._clock(), expecting=expecting)

    def settle(self) -> None:
        """No control word is expected: exclusive exchanges may go as soon as no collision exchange runs."""
        with self._change():
            self._schedule.settle()

    def stop(self) -> None:
        """Nothing waits from now on: the engine is ending."""
        with self._change():
            self._schedule.stop()

    def let_go(self, number: int) -> None:
        """Somebody waits for the exclusive operations up to this one."""
        with self._change():
            self._schedule.let_go(number)

    @contextlib.contextmanager
    def awaiting_ids(self) -> Iterator[None]:
        """Inside, the training thread waits for ids: they go."""
        with self._change():
            self._schedule.await_ids(True)
        try:
            yield
        finally:
            with self._change():
                self._schedule.await_ids(False)

    def wait_for_ids(self) -> None:
        """Block until ids may go."""
        self._wait(self._schedule.ids_at)

    def begin(self, number: int) -> None:
        """The exclusive worker comes to the operation of this number."""
        with self._changed:
            self._schedule.begin_exclusive(number)

    def wait(self) -> None:
        """Block until exclusive work may go on."""
        self._wait(self._schedule.exclusive_at)

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
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
                handles.append(part.over(transport))
            while handles:
                finish_oldest()
        finally:
            self.exclusive_done(sum(sizes))

    def try_exclusive(self, nbytes: int) -> bool:
        """Whether a chunk may go now; if so it counts as under way until `exclusive_done`. Does not block."""
        with self._changed:
            goes = self._schedule.chunk_at(nbytes) <= self._clock()
            if goes:
                self._schedule.issue(nbytes)
            return goes

    def wait_exclusive(self, nbytes: int) -> None:
        """Block until `try_exclusive` may succeed. Only for a thread without chunks under way."""
        self._wait(lambda: self._schedule.chunk_at(nbytes))

    def exclusive_done(self, nbytes: int) -> None:
        with self._change():
            self._schedule.done(nbytes)

    def _wait(self, until: Callable[[], float]) -> None:
        with self._changed:
            while (at := until()) > (now := self._clock()):
                self._changed.wait(min(at - now, _LOOK_S))
                self._schedule.let_go(self._awaited())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()
