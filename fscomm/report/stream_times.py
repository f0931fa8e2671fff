"""Times on a device that the host runs ahead of: from events on its streams, which are read without blocking.

There the host only issues a wait. Whether compute is idle is decided later, on its stream: between an event before the
wait and one after it that stream has nothing else to do, so the time between them is exposed. This includes the time
for which the host itself is blocked in a wait, because the stream reaches the second event only after the host has
issued it. So every wait of `Recorder.wait` on such a device is measured here, none of them on the host.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fscomm.device import Device, Mark
from fscomm.report.host_times import Add


@dataclass(eq=False, slots=True)
class Timed:
    """A wait or work. begin, end: events on the stream of its thread, None until they are issued; inline work has
    instants of the host instead."""

    kind: str
    step: int | None
    what: str
    begin: Mark = None
    end: Mark = None


class StreamTimes:
    """The interface of `HostTimes`. Waits, and work of workers, are added after the device has passed their end. Work
    of the training thread itself is timed on the host."""

    def __init__(self, device: Device, clock: Callable[[], float], add: Add) -> None:
        self._device = device
        self._clock = clock
        self._add = add
        self._training = {threading.get_ident()}
        self._waiting = 0
        self._waits: deque[Timed] = deque()  # in the order of the compute stream
        self._work: list[Timed] = []
        self._idle: deque[tuple[float, float]] = deque()  # (begin, end) of compute's idle times
        # Events give float32 milliseconds: measured from the start of a long run they would be too coarse.
        self._base, self._base_s = device.instant(), 0.0
        self.waited_s = 0.0

    def begin(self, kind: str, step: int | None, *, waiting: bool) -> Timed:
        thread = threading.get_ident()
        if waiting:
            self._training.add(thread)
            self._waiting += 1
            timed = Timed(kind, step, "exposed")
            if self._waiting == 1:
                timed.begin = self._device.instant()
                self._waits.append(timed)
        elif thread in self._training:
            timed = Timed(kind, step, "inline", self._clock())
        else:
            timed = Timed(kind, step, "hidden", self._device.instant())
            self._work.append(timed)
        return timed

    def end(self, timed: Timed) -> None:
        """Called by the thread that began it."""
        self._waiting -= timed.what == "exposed"
        if timed.what == "inline":
            self._add("inline", timed.kind, timed.step, self._clock() - timed.begin)
        elif timed.begin is None:
            self._give_up(timed)
        else:
            timed.end = self._device.instant()
            if timed.end is None:
                self._give_up(timed)
        self.settle()

    def settle(self) -> None:
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
                self._add("hidden", work.kind, work.step, end - begin - self._overlap(begin, end))
            else:
                first = min(first, math.inf if begin is None else begin)
                under_way.append(work)
        self._work = under_way
        while len(self._idle) > 1 and self._idle[0][1] < first:
            self._idle.popleft()

    def _give_up(self, timed: Timed) -> None:
        """A wait inside another one, or an event that was captured into a CUDA graph: it has no time of its own."""
        if timed.what == "exposed":
            self._waits = deque(each for each in self._waits if each is not timed)
        else:
            self._work.remove(timed)
        self._add(timed.what, timed.kind, timed.step, 0.0)

    def _overlap(self, begin: float, end: float) -> float:
        return sum(max(min(stop, end) - max(start, begin), 0.0) for start, stop in self._idle)

    def _at(self, instant: Mark) -> float | None:
        """In seconds; None if the device has not reached it, or it was not issued."""
        since = None if instant is None else self._device.seconds(self._base, instant)
        return None if since is None else self._base_s + since
