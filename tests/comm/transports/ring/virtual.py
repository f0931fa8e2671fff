"""A machine in virtual time: processes are generators, copy engines are queues with a bandwidth.

clock = Clock()
link = Engine(clock, bytes_per_s=1e9, latency_s=2e-6)

def worker():
    yield from link.copy(1 << 20)          # its turn on the engine, then as long as the bytes take
    yield 0.001                            # seconds
    yield lambda: flag.value >= 3          # until true; asked again whenever something has happened

clock.spawn(worker())
clock.run()                                # until nobody can go on; `clock.now` says how long that took
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator

Process = Generator[float | Callable[[], bool], None, None]


class Clock:
    """Runs processes one after the other, the earliest first; those at one instant in the order they got there."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._blocked: deque[tuple[Callable[[], bool], Process]] = deque()
        self._number = itertools.count()

    def spawn(self, process: Process) -> None:
        heapq.heappush(self._due, (self.now, next(self._number), process))

    def run(self, until: float = float("inf")) -> bool:
        """Whether every process ended; otherwise some are blocked for good, or `until` has come."""
        while True:
            self._wake()
            if not self._due or self._due[0][0] > until:
                return not self._due and not self._blocked
            self.now, _, process = heapq.heappop(self._due)
            self._step(process)

    def _wake(self) -> None:
        for _ in range(len(self._blocked)):
            ready, process = self._blocked.popleft()
            if ready():
                self.spawn(process)
            else:
                self._blocked.append((ready, process))

    def _step(self, process: Process) -> None:
        try:
            asked = next(process)
        except StopIteration:
            return
        if callable(asked):
            self._blocked.append((asked, process))
        else:
            heapq.heappush(self._due, (self.now + asked, next(self._number), process))


class Engine:
    """Copies in the order they were asked for, one at a time; priorities mean nothing to it, as on real hardware."""

    def __init__(self, clock: Clock, *, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_at = 0.0
        self.busy_s = 0.0

    def copy(self, nbytes: int) -> Process:
        takes = self._latency_s + nbytes / self._bytes_per_s
        self._free_at = max(self._free_at, self._clock.now) + takes
        self.busy_s += takes
        yield self._free_at - self._clock.now
