"""A stand-in for the one thread in which autograd runs all backward nodes of a CUDA device.

On a CPU every thread that calls `backward` runs the nodes itself. On CUDA they all run in one thread, whoever called:
a hook in there that waits for a worker whose own work needs `backward` never returns. Inside `one_device_thread` it is
so here, too. A backward pass that is started inside of another one runs in the same thread, as autograd does it.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

import torch
from exact import Loop, Mode, compare, plain
from exact_model import Config

Job = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], "Future[Any]"]


class DeviceThread(threading.Thread):
    """Runs whatever backward passes all threads start, one after the other."""

    def __init__(self) -> None:
        super().__init__(name="backward of the device", daemon=True)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = torch.get_num_threads()

    def run(self) -> None:
        torch.set_num_threads(self._threads)  # it counts for the thread that sets it, and sums depend on it
        while (job := self._jobs.get()) is not None:
            work, args, options, done = job
            try:
                done.set_result(work(*args, **options))
            except BaseException as error:
                done.set_exception(error)
            del job, work, args, options, done  # or they would keep the graph

    def call(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Blocks until it is done. Raises what it raises."""
        if threading.current_thread() is self:
            return work(*args, **options)
        done: Future[Any] = Future()
        self._jobs.put((work, args, options, done))
        return done.result()

    def close(self) -> None:
        self._jobs.put(None)
        self.join()


def compare_in_one_thread(
    rank: int, size: int, config: Config, loop: Loop, mode: Mode = "fscomm", options: dict[str, Any] | None = None
) -> tuple[list[str], Any]:
    """What differs from the plain run, whose backward passes run where they are called."""
    plain(rank, size, config, loop)
    with one_device_thread():
        return compare(rank, size, config, loop, mode, options)


@contextlib.contextmanager
def one_device_thread() -> Iterator[None]:
    thread = DeviceThread()
    thread.start()
    engine: Any = torch.autograd._engine_run_backward

    def through_the_thread(*args: Any, **options: Any) -> Any:
        return thread.call(engine, *args, **options)

    try:
        with mock.patch.object(torch.autograd, "_engine_run_backward", through_the_thread):
            yield
    finally:
        thread.close()
