"""Which class may use the wire: control and collision traffic first, exclusive traffic when neither is under way.

Separate process groups give no priority on the wire, as all connections share the link. So bulk exchanges are held back
before they are issued: no bulk byte starts while an urgent exchange runs, nor in the short time after it in which the
next step's first control word is expected.
"""

import threading
import time
from collections.abc import Callable

GRACE_S = 0.025  # how long bulk stays off the wire for a control word that does not come


class Gate:
    """Bulk senders `wait`; urgent ones go `enter` ... `leave`. Thread-safe.

    Waiting is bounded only by the urgent exchanges, which have deadlines of their own; `settle` and `stop` end it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._urgent = 0
        self._quiet_until = 0.0
        self._stopped = False

    def enter(self) -> None:
        with self._changed:
            self._urgent += 1

    def leave(self, *, expecting: bool = False) -> None:
        """The urgent exchange is over; `expecting` that a control word follows soon."""
        with self._changed:
            self._urgent -= 1
            if expecting:
                self._quiet_until = self._clock() + GRACE_S
            self._changed.notify_all()

    def settle(self) -> None:
        """Nothing more is expected: what waits may go as soon as no urgent exchange runs."""
        with self._changed:
            self._quiet_until = 0.0
            self._changed.notify_all()

    def stop(self) -> None:
        """Let everybody through for good: the engine is ending."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def may_pass(self) -> bool:
        return self._stopped or (self._urgent == 0 and self._clock() >= self._quiet_until)

    def wait(self) -> None:
        with self._changed:
            while not self.may_pass():
                self._changed.wait(None if self._urgent else max(self._quiet_until - self._clock(), 0.0))
