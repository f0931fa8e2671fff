"""The same on a device that the host runs ahead of: by events on its streams, which are read without blocking.

There the host only issues a wait. Whether compute stands still is decided later, on its stream: between an event before
the wait and one after it that stream has nothing else to do, so the time between them is exposed. So it is where the
host was blocked in between: the stream gets from the first event to the second one when the host has issued that.
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
    """begin, end: instants of the stream of the thread that did it, None until it has issued them; or of the host."""

    kind: str
    step: int | None
    what: str
    begin: Mark = None
    end: Mark = None


class StreamTimes:
    """As `HostTimes`; waits and work of workers are added late, once the device has come past their end. Work of the
    training thread itself is timed on the host."""

    def __init__(self, device: Device, clock: Callable[[], float], add: Add) -> None:
        self._device = device
        self._clock = clock
        self._add = add
        self._training = {threading.get_ident()}
        self._waiting = 0
        self._waits: deque[Timed] = deque()  # in the order of the compute stream
        self._work: list[Timed] = []
        self._stood_still: deque[tuple[float, float]] = deque()  # compute, from when to when, since work began
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
        """In the thread that began it."""
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
            assert begin is not None  # it stands before the end, on one stream
            self._stood_still.append((begin, end))
            self.waited_s += end - begin
            self._add("exposed", wait.kind, wait.step, end - begin)
            self._base, self._base_s = wait.end, end
        # Of work that ends later it is not known yet how long compute stands still beside it.
        known_until = math.inf if not self._waits else self._stood_still[-1][1] if self._stood_still else -math.inf
        first, under_way = math.inf, []
        for work in self._work:
            begin, end = self._at(work.begin), self._at(work.end)
            if begin is not None and end is not None and end <= known_until:
                self._add("hidden", work.kind, work.step, end - begin - self._overlap(begin, end))
            else:
                first = min(first, math.inf if begin is None else begin)
                under_way.append(work)
        self._work = under_way
        while len(self._stood_still) > 1 and self._stood_still[0][1] < first:
            self._stood_still.popleft()

    def _give_up(self, timed: Timed) -> None:
        """A wait inside another one, or what went into a CUDA graph: it has no time of its own."""
        if timed.what == "exposed":
            self._waits = deque(each for each in self._waits if each is not timed)
        else:
            self._work.remove(timed)
        self._add(timed.what, timed.kind, timed.step, 0.0)

    def _overlap(self, begin: float, end: float) -> float:
        return sum(max(min(stop, end) - max(start, begin), 0.0) for start, stop in self._stood_still)

    def _at(self, instant: Mark) -> float | None:
        """In seconds; None where the device was not yet, or nothing was issued."""
        since = None if instant is None else self._device.seconds(self._base, instant)
        return None if since is None else self._base_s + since
