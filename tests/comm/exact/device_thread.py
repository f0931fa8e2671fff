"""A stand-in for the one thread in which autograd runs all backward nodes of a CUDA device.

On a CPU every thread that calls `backward` runs the nodes itself. On CUDA they all run in one thread, whoever called:
a hook in there that waits for a worker whose own work needs `backward` never returns. Inside `one_device_thread` it is
so here, too. A backward pass that is started inside of another one runs in the same thread, as autograd does it.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import torch
from exact import Loop, Mode, compare, plain
from exact_model import Config


def compare_in_one_thread(
    rank: int, size: int, config: Config, loop: Loop, mode: Mode = "fscomm", options: dict[str, Any] | None = None
) -> tuple[list[str], Any]:
    """What differs from the plain run, whose backward passes run where they are called."""
    plain(rank, size, config, loop)
    with one_device_thread():
        return compare(rank, size, config, loop, mode, options)


@contextlib.contextmanager
def one_device_thread() -> Iterator[None]:
    engine: Any = torch.autograd._engine_run_backward
    threads = torch.get_num_threads()  # it counts for the thread that sets it, and sums depend on it
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as device:
        of_device = device.submit(threading.current_thread).result()

        def through_the_thread(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is of_device:
                return engine(*args, **options)
            return device.submit(engine, *args, **options).result()

        with mock.patch.object(torch.autograd, "_engine_run_backward", through_the_thread):
            yield
