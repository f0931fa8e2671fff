"""A thread that does submitted work in order, and hands results or errors to the threads that wait for them."""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from fscomm.device import Device, Mark

T = TypeVar("T")

_OWN_STREAM: AbstractContextManager[Any] = contextlib.nullcontext()
_NOW: Mark = object()
URGENT, NORMAL, BACKGROUND = -1, 0, 1
"""Priorities of workers, and of streams: the lowest number goes first."""
NICENESS = 10  # added for a worker in the background; 5 yields too little, 19 gains no more


class Pending(Future[T]):
    """The result of submitted work. After `result`, what its caller issues to the device runs behind that work.

    number: of an exclusive operation, from 1 on in the order in which they were submitted; else 0.
    """

    number = 0

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self.mark: Mark = None

    def result(self, timeout: float | None = None) -> T:
        value = super().result(timeout)
        self._device.after(self.mark)
        return value

    def now(self) -> T:
        """The result of work that is known to be done; never waits."""
        assert self.done()
        value = super().result()
        self._device.after(self.mark)
        return value


_Submitted = tuple[Pending[Any], Mark, Callable[[], Any], AbstractContextManager[Any]]


class Worker:
    """One worker thread. After an error nothing more runs: later work fails with the same error.

    On the device, work runs behind everything that its submitter had issued. At its end the worker waits for the device
    for at most `limit_s`; if the device is later, that is an error too. `on_error` is called in the worker with the
    first error, before a waiting thread gets it. On the device, urgent work goes before other work. A worker in the
    background leaves the processor to the training threads of this and other processes (on Linux, where threads have
    priorities of their own).
    """

    def __init__(
        self,
        name: str,
        on_error: Callable[[BaseException], None],
        *,
        device: Device,
        limit_s: float,
        priority: int = NORMAL,
    ) -> None:
        self.name = name
        self._priority = priority
        self._on_error = on_error
        self._device = device
        self._limit_s = limit_s
        self._closed = False
        self._error: BaseException | None = None
        self._under_way: list[tuple[Mark, Any]] = []  # issued and not done: its tensors must be kept
        self._queue: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._ended = threading.Event()  # of the thread: after Ctrl-C it is waited for again, unlike in `join`
        threading.Thread(target=self._serve, name=f"fscomm {name}", daemon=True).start()

    def submit(
        self, work: Callable[[], T], *, behind: Mark = _NOW, stream: AbstractContextManager[Any] = _OWN_STREAM
    ) -> Pending[T]:
        """stream: of the device, to which `work` issues; `behind` a mark, or else all that this thread issued so far.

        Raises RuntimeError once the worker is closed.
        """
        if self._closed:
            raise RuntimeError(f"the {self.name} worker is closed")
        future: Pending[T] = Pending(self._device)
        self._queue.put((future, self._device.mark() if behind is _NOW else behind, work, stream))
        return future

    def close(self) -> None:
        """End the thread once everything submitted is done. Blocks, at most `limit_s` of it for the device."""
        self._closed = True
        self._queue.put(None)
        self._ended.wait()

    def _serve(self) -> None:
        """Runs in the thread, until None is submitted."""
        try:
            try:
                self._enter()
            except BaseException as error:  # of the device: what is submitted fails with it, and nothing waits forever
                self._error = error
                self._on_error(error)
            while (item := self._queue.get()) is not None:
                self._run(*item)
                del item  # and with it its tensors, which an idle worker must not keep
            self._await_device()
        finally:
            self._ended.set()

    def _run(
        self, future: Pending[Any], before: Mark, work: Callable[[], Any], stream: AbstractContextManager[Any]
    ) -> None:
        if self._error is not None:
            future.set_exception(self._error)
            return
        try:
            with stream:
                if before is not None:
                    self._device.after(before)
                value = work()
                future.mark = mark = self._device.mark()
            # `work` refers to tensors that another thread made, and the device may still read: it is kept until then.
            self._under_way = [each for each in self._under_way if not self._device.is_done(each[0])]
            if not self._device.is_done(mark):
                self._under_way.append((mark, work))
            future.set_result(value)
        except BaseException as error:
            self._error = error
            # Before the waiting thread gets the error: it may then find out at once why the work failed.
            try:
                self._on_error(error)
            finally:
                future.set_exception(error)

    def _enter(self) -> None:
        self._device.enter(priority=min(self._priority, NORMAL))
        if self._priority == BACKGROUND and sys.platform == "linux":
            with contextlib.suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)

    def _await_device(self) -> None:
        """Tensors of work that the device does not finish are kept: their memory must not be reused."""
        end = time.monotonic() + self._limit_s
        try:
            for mark, _ in self._under_way:
                self._device.wait(mark, max(end - time.monotonic(), 0.0))
        except BaseException as error:
            if self._error is None:
                self._error = error
                self._on_error(error)
        else:
            self._under_way.clear()
