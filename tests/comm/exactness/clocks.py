"""A device that runs late and of which only the order is looked at: every thread keeps a vector clock.

A mark carries the clock of the thread that took it, and `after` joins it into the clock of the thread that waits. What
thread T does is ordered before what thread S does later only if S has seen a mark that T took afterwards. On a device
of which the host runs ahead, streams have the clocks, and threads issue to them.
"""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fscomm.device import Host
from fscomm.exchange import executor
from fscomm.transports.opening import NAMES


class Mark:
    """share: of the questions whether it is done that are answered by yes, where streams differ."""

    def __init__(self, clock: Counter[str]) -> None:
        self.clock = clock
        self.share = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, in one thread."""

    thread: str
    count: int
    clock: Counter[str]

    def is_before(self, other: "Moment") -> bool:
        """What ended at this moment is ordered before what began at the other one."""
        return self.thread == other.thread or other.clock[self.thread] > self.count


class Stream:
    """Entered, the calling thread's work goes here."""

    def __init__(self, device: "Clocks", name: str) -> None:
        self._device = device
        self.name = name
        self.clock: Counter[str] = Counter()

    def __enter__(self) -> None:
        self._outside = self._device.current
        self._device.current = self

    def __exit__(self, *_: object) -> None:
        self._device.current = self._outside


def on_streams() -> Any:
    """Inside, one worker issues to streams of the device, whatever the transport; else each class has a worker."""
    return mock.patch.object(executor, "ORDERED_BY_THE_DEVICE", NAMES)


class Clocks(Host):
    """`done_share` of the questions whether a mark is done are answered by yes; who is told so has seen it done."""

    def __init__(self, done_share: float = 0.0, seed: int = 0, *, runs_ahead: bool = False) -> None:
        self.runs_ahead = runs_ahead
        self._own = threading.local()
        self._random = random.Random(seed)
        self._done_share = done_share
        self._streams = 0
        self.read: set[int] = set()
        self.waited: set[Mark] = set()
        self.stalls: list[str] = []  # threads that waited for the device
        self.moved: dict[int, tuple[Any, Moment]] = {}  # batches and KJTs by identity, and when they were copied

    @property
    def current(self) -> Stream:
        """Where the calling thread issues to: a stream of its own, or one that it has entered."""
        if not hasattr(self._own, "stream"):
            self._own.stream = Stream(self, threading.current_thread().name)
        found: Stream = self._own.stream
        return found

    @current.setter
    def current(self, stream: Stream) -> None:
        self._own.stream = stream

    def stream(self, *, priority: int = 0) -> Stream:  # type: ignore[override]
        self._streams += 1
        return Stream(self, f"stream {self._streams}")

    def now(self) -> Moment:
        of = self.current
        return Moment(of.name, of.clock[of.name], of.clock.copy())

    def mark(self) -> Mark:
        of = self.current
        of.clock[of.name] += 1
        return Mark(of.clock.copy())

    def after(self, mark: Any) -> None:
        if mark is not None:
            self.current.clock = self.current.clock | mark.clock

    def is_done(self, mark: Any) -> bool:
        if mark is None or mark in self.waited or self._random.random() < self._done_share:
            self.after(mark)
            return True
        return False

    def wait(self, mark: Any, limit_s: float) -> None:
        self.stalls.append(threading.current_thread().name)
        self.waited.add(mark)
        self.after(mark)

    def reads(self, *tensors: Any) -> None:
        self.read |= {id(tensor) for tensor in tensors}
