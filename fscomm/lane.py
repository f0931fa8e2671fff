"""A thread that does what it is given in order, and hands results or errors to those who wait for them."""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

NICENESS = 10  # added to that of a lane in the background; 5 gives way too little, 19 brings no more


class Lane:
    """One worker thread. After an error nothing more runs: later work fails with the same error.

    `on_error` is called in the thread with the first error, before anybody who waits sees it. A lane in the
    `background` gives way on the processor to whatever trains, in this process and in others (on Linux, where threads
    have priorities of their own).
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None], *, background: bool = False) -> None:
        self.name = name
        self._background = background
        self._on_error = on_error
        self._closed = False
        self._error: BaseException | None = None
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"fscomm {name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Raises RuntimeError once the lane is closed."""
        if self._closed:
            raise RuntimeError(f"the {self.name} lane is closed")
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    def close(self) -> None:
        """End the thread once everything submitted is done. Blocks."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        if self._background and sys.platform == "linux":
            with contextlib.suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
        while (item := self._queue.get()) is not None:
            future, work = item
            if self._error is None:
                try:
                    future.set_result(work())
                except BaseException as error:
                    self._error = error
                    try:
                        self._on_error(error)
                    finally:
                        future.set_exception(error)
            else:
                future.set_exception(self._error)
            del future, work, item
