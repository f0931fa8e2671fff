"""A device that does everything as late as it may: copies run when somebody waits for them, and not before.

So what is not waited for, or not ordered behind other streams, is not there, every time and not now and then.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch

from fscomm.device import Host
from fscomm.transports import staged


class Stream:
    """Work in order; entered, the calling thread's work goes here."""

    def __init__(self, device: "Late") -> None:
        self._device = device
        self.work: list[Callable[[], Any]] = []
        self.begun = 0

    def __enter__(self) -> Self:
        self._before = self._device.current()
        self._device.own.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        self._device.own.stream = self._before

    def run(self, end: int) -> None:
        while self.begun < end:
            self.begun += 1
            self.work[self.begun - 1]()


class Late(Host):
    """A mark is done once it was asked for twice."""

    def __init__(self) -> None:
        self.own = threading.local()
        self.read: set[int] = set()
        self._asked: set[tuple[Stream, int]] = set()
        self._lock = threading.RLock()

    def current(self) -> Stream:
        if not hasattr(self.own, "stream"):
            self.own.stream = Stream(self)
        return self.own.stream

    def issue(self, work: Callable[[], Any]) -> None:
        self.current().work.append(work)

    def stream(self) -> Stream:
        return Stream(self)

    def staging(self, like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, 99)

    def mark(self) -> tuple[Stream, int]:
        return self.current(), len(self.current().work)

    def after(self, mark: tuple[Stream, int]) -> None:
        self.issue(lambda: mark[0].run(mark[1]))

    def is_done(self, mark: tuple[Stream, int] | None) -> bool:
        with self._lock:
            if mark is not None and mark[0].begun < mark[1] and mark not in self._asked:
                self._asked.add(mark)
                return False
            self.wait(mark, 0.0)
            return True

    def wait(self, mark: tuple[Stream, int] | None, limit_s: float) -> None:
        with self._lock:
            if mark is not None:
                mark[0].run(mark[1])

    def reads(self, *tensors: Any) -> None:
        self.read |= {tensor.data_ptr() for tensor in tensors}


class Later:
    """A tensor whose copies a device is given."""

    def __init__(self, device: Late, tensor: torch.Tensor) -> None:
        self._device, self._tensor = device, tensor

    def copy_(self, source: "Later", *, non_blocking: bool) -> None:
        assert non_blocking
        self._device.issue(lambda: self._tensor.copy_(source._tensor))


def copied_by(device: Late) -> Callable[..., Iterator[tuple[Later, Later]]]:
    """What takes the place of `staged._pairs`."""
    pairs = staged._pairs

    def later(*given: Any) -> Iterator[tuple[Later, Later]]:
        for staging, rows in pairs(*given):
            yield Later(device, staging), Later(device, rows)

    return later
