"""What waits is given a clock: the machine's, or one that a test moves, so that waiting takes no time there."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def wait(self, seconds: float, event: threading.Event | None = None) -> bool:
        """Block for `seconds`, or until `event` is set; whether it is. Seconds below 0 are 0."""
        ...


class MachineClock:
    """The time of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, event: threading.Event | None = None) -> bool:
        if event is not None:
            return event.wait(max(seconds, 0.0))
        time.sleep(max(seconds, 0.0))
        return False


MACHINE_CLOCK = MachineClock()
