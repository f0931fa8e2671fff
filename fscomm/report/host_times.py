"""Waits of the training thread, and work of any thread, timed on the host."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

Add = Callable[[str, str, int | None, float], None]
"""(what, kind, step, seconds): adds seconds that were "exposed", "inline" or "hidden"."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A wait or work that has begun. waited: exposed time until then. nested: inside another wait."""

    kind: str
    step: int | None
    waiting: bool
    start: float
    waited: float
    nested: bool


class HostTimes:
    """Splits the time of work into exposed and hidden with a second clock, which runs only while the training thread
    waits. Work reads that clock when it begins and ends: the difference was exposed, the rest was hidden behind
    compute. So intervals are never compared with each other, and work may end while the training thread still waits.

    Not thread-safe: the caller holds a lock. The thread that creates it is the training thread.
    """

    def __init__(self, clock: Callable[[], float], add: Add) -> None:
        self._clock = clock
        self._add = add
        self._training = {threading.get_ident()}
        self._waiting = 0
        self._waiting_since = 0.0
        self._waited = 0.0

    def begin(self, kind: str, step: int | None, *, waiting: bool) -> Begun:
        start = self._clock()
        begun = Begun(kind, step, waiting, start, self._waited_by(start), nested=self._waiting > 0)
        if waiting:
            self._training.add(threading.get_ident())
            if not begun.nested:
                self._waiting_since = start
            self._waiting += 1
        return begun

    def end(self, begun: Begun) -> None:
        """Called by the thread that began it."""
        now = self._clock()
        taken, waited = now - begun.start, self._waited_by(now)
        if begun.waiting:
            self._waiting -= 1
            self._waited, self._waiting_since = waited, now
            self._add("exposed", begun.kind, begun.step, 0.0 if begun.nested else taken)
        else:
            inline = threading.get_ident() in self._training
            self._add("inline" if inline else "hidden", begun.kind, begun.step, taken - (waited - begun.waited))

    def settle(self) -> None:
        """Add what has ended. Never blocks. On the host `end` has added it already."""

    @property
    def waited_s(self) -> float:
        """Exposed time so far."""
        return self._waited_by(self._clock())

    def _waited_by(self, now: float) -> float:
        return self._waited + (now - self._waiting_since if self._waiting else 0.0)
