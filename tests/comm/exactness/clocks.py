"""A device that runs late and of which only the order is looked at: every thread keeps a vector clock.

A mark carries the clock of the thread that took it, and `after` joins it into the clock of the thread that waits. What
thread T does is ordered before what thread S does later only if S has seen a mark that T took afterwards.
"""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fscomm.device import Host


class Mark:
    def __init__(self, clock: Counter[str]) -> None:
        self.clock = clock


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, in one thread."""

    thread: str
    count: int
    clock: Counter[str]

    def is_before(self, other: "Moment") -> bool:
        """What ended at this moment is ordered before what began at the other one."""
        return self.thread == other.thread or other.clock[self.thread] > self.count


class Clocks(Host):
    """`done_share` of the questions whether a mark is done are answered by yes; who is told so has seen it done."""

    def __init__(self, done_share: float = 0.0, seed: int = 0) -> None:
        self._own = threading.local()
        self._random = random.Random(seed)
        self._done_share = done_share
        self.read: set[int] = set()
        self.waited: set[Mark] = set()

    @property
    def clock(self) -> Counter[str]:
        if not hasattr(self._own, "clock"):
            self._own.clock = Counter()
        return self._own.clock

    def now(self) -> Moment:
        name = threading.current_thread().name
        return Moment(name, self.clock[name], self.clock.copy())

    def mark(self) -> Mark:
        self.clock[threading.current_thread().name] += 1
        return Mark(self.clock.copy())

    def after(self, mark: Any) -> None:
        self._own.clock = self.clock | mark.clock

    def is_done(self, mark: Any) -> bool:
        if mark in self.waited or self._random.random() < self._done_share:
            self.after(mark)
            return True
        return False

    def wait(self, mark: Any, limit_s: float) -> None:
        self.waited.add(mark)
        self.after(mark)

    def reads(self, *tensors: Any) -> None:
        self.read |= {id(tensor) for tensor in tensors}
