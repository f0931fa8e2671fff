"""Which waits and which work of an event are exposed, inline or hidden.

Compute is idle between an event before a wait of the training thread and one after it; the time between them is
exposed. Work of another thread is hidden, except for the time in which compute is idle beside it.

On the CPU the events are instants of the clock. On a device that the host runs ahead of, the host only issues a wait,
and whether compute is idle is decided later, on its stream: there the events are on streams, and are read without
blocking. The time for which the host itself is blocked in a wait is included, because the stream reaches the second
event only after the host has issued it.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fscomm.device import Device, Mark

Add = Callable[[str, str, int | None, float], None]
"""(what, kind, step, seconds): adds seconds that were "exposed", "inline" or "hidden"."""


@dataclass(eq=False, slots=True)
class Timed:
    """A wait or work. begin, end: instants of its thread, None until they are issued."""

    what: str
    kind: str
    step: int | None
    begin: Mark = None
    end: Mark = None


class EventTimes:
    """Adds a wait, or work, once its end has been reached; the order of the events is that of their streams.

    Not thread-safe: the caller holds a lock. The thread that creates it is the training thread.

    device: None where the host does the work itself, which `clock` times.

    Attributes:
        waited_s: exposed time of the waits that have ended.
    """

    def __init__(self, clock: Callable[[], float], add: Add, device: Device | None = None) -> None:
        self._clock = clock
        self._add = add
        self._device = device
        self._training = {threading.get_ident()}
        self._waiting = 0
        self._waits: deque[Timed] = deque()  # in the order of the compute stream
        self._work: list[Timed] = []
        self._idle: deque[tuple[float, float]] = deque()  # (begin, end) of compute's idle times
        # Events give float32 milliseconds: measured from the start of a long run they would be too coarse.
        self._base, self._base_s = self._instant(), 0.0
        self.waited_s = 0.0

    def begin(self, kind: str, step: int | None, *, waiting: bool) -> Timed:
        thread = threading.get_ident()
        if waiting:
            self._training.add(thread)
            self._waiting += 1
            timed = Timed("exposed", kind, step)
            if self._waiting == 1:
                timed.begin = self._instant()
                self._waits.append(timed)
            return timed
        timed = Timed("inline" if thread in self._training else "hidden", kind, step)
        if self._on_host(timed):
            timed.begin = self._clock()
        else:
            timed.begin = self._instant()
            self._work.append(timed)
        return timed

    def end(self, timed: Timed) -> None:
        """Called by the thread that began it."""
        self._waiting -= timed.what == "exposed"
        if self._on_host(timed):
            self._add("inline", timed.kind, timed.step, self._clock() - timed.begin)
        elif timed.begin is None or (instant := self._instant()) is None:
            self._give_up(timed)
        else:
            timed.end = instant
        self.settle()

    def settle(self) -> None:
        """Add what has ended. Never blocks."""
        while self._waits and (end := self._at(self._waits[0].end)) is not None:
            wait = self._waits.popleft()
            begin = self._at(wait.begin)
            assert begin is not None  # it precedes the end on the same stream
            self._idle.append((begin, end))
            self.waited_s += end - begin
            self._add("exposed", wait.kind, wait.step, end - begin)
            self._base, self._base_s = wait.end, end
        # For work that ends after this, it is not known yet how long compute is idle beside it.
        known_until = math.inf if not self._waits else self._idle[-1][1] if self._idle else -math.inf
        first, under_way = math.inf, []
        for work in self._work:
            begin, end = self._at(work.begin), self._at(work.end)
            if begin is not None and end is not None and end <= known_until:
                self._add(work.what, work.kind, work.step, end - begin - self._overlap(begin, end))
            else:
                first = min(first, math.inf if begin is None else begin)
                under_way.append(work)
        self._work = under_way
        while len(self._idle) > 1 and self._idle[0][1] < first:
            self._idle.popleft()

    def oldest_step(self) -> float:
        """The first step of which a wait or work has not been added yet; infinity if there is none."""
        open_steps = [each.step for each in (*self._waits, *self._work) if each.step is not None]
        return min(open_steps, default=math.inf)

    def _on_host(self, timed: Timed) -> bool:
        """Work of the training thread is the host's own, whatever it issues to a device that it runs ahead of."""
        return self._device is not None and timed.what == "inline"

    def _give_up(self, timed: Timed) -> None:
        """A wait inside another one, or an event that was captured into a CUDA graph: it has no time of its own."""
        if timed.what == "exposed":
            self._waits = deque(each for each in self._waits if each is not timed)
        else:
            self._work.remove(timed)
        self._add(timed.what, timed.kind, timed.step, 0.0)

    def _overlap(self, begin: float, end: float) -> float:
        return sum(max(min(stop, end) - max(start, begin), 0.0) for start, stop in self._idle)

    def _instant(self) -> Mark:
        return self._clock() if self._device is None else self._device.instant()

    def _at(self, instant: Mark) -> float | None:
        """In seconds; None if the device has not reached it, or it was not issued."""
        if instant is None or self._device is None:
            return instant
        since = self._device.seconds(self._base, instant)
        return None if since is None else self._base_s + since
