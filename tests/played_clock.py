"""A clock for what waits in one thread: waiting takes no time and moves it."""

import threading
from collections.abc import Callable


class PlayedClock:
    """A `Clock` of fsranks. Who waits goes on at once; when the clock has come to `alarm_s`, `alarm` is called."""

    def __init__(self, alarm_s: float = float("inf"), alarm: Callable[[], object] = lambda: None) -> None:
        self.seconds = 0.0
        self._alarm_s = alarm_s
        self._alarm = alarm

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float, event: threading.Event | None = None) -> bool:
        before, self.seconds = self.seconds, self.seconds + max(seconds, 0.0)
        if before < self._alarm_s <= self.seconds:
            self._alarm()
        return event is not None and event.is_set()
