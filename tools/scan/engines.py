"""Runs work on many files: in threads of this process, or on a Ray cluster with the same results.

This is the only file that imports Ray.
"""

import collections
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from freescale_tools.console.errors import UsageError
from fsranks.machine.cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")

REMOTE_THREADS = 16  # more than cores, because reading remote files is mostly waiting
AGAIN = 3  # retries of a task by Ray
_AHEAD, _AHEAD_ON_RAY = 3, 4  # items that wait or run, per thread and per core of the cluster


class Lost(NamedTuple):
    """An item without a result: its file cannot be reached, or its worker died in every attempt."""

    reason: str


class Threads:
    """Runs work in threads of this process, on `workers` items at a time."""

    def __init__(self, threads: int | None = None) -> None:
        self.workers = threads or usable_cores()

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """(item, `work(item)`) in the order of the items. Consumes only a few items ahead.

        If `work` raises OSError (the file cannot be reached), the result is `Lost`. Other exceptions propagate.
        """
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="freescale-scan")
        try:
            for item, future in ahead(items, lambda item: pool.submit(work, item), count=self.workers * _AHEAD):
                result: Result | Lost
                try:
                    result = future.result()
                except OSError as error:
                    result = Lost(reason=str(error))
                yield item, result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class Cluster:
    """Runs one task per item on any node. Every node must have the files under the same paths.

    A task is retried `AGAIN` times if its worker dies or cannot reach its file.
    """

    workers = 0  # see `lengths.pieces`: an item is a whole file

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """See `Threads.run`."""
        ray, errors = self._ray, self._ray.exceptions

        def call(item: Any) -> Any:  # Ray accepts functions only, and `work` may be any callable
            return work(item)

        task = ray.remote(call).options(num_cpus=1, max_retries=AGAIN, retry_exceptions=[OSError])
        cores = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        for item, reference in ahead(items, task.remote, count=cores * _AHEAD_ON_RAY):
            result: Result | Lost
            try:
                result = ray.get(reference)
            except errors.RayTaskError as error:
                if not isinstance(error.cause, OSError):
                    raise
                result = Lost(reason=str(error.cause))
            except errors.RayError as error:
                result = Lost(reason=f"its task was lost {AGAIN + 1} times: {str(error).splitlines()[0]}")
            yield item, result


Engine = Threads | Cluster


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """The cluster to which this process is connected, or that of RAY_ADDRESS, or a new one on this machine.

    At the end, this process disconnects from a cluster that it joined or started. Raises UsageError if Ray is missing.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray: pip install 'freescale[ray]'") from error
    joined = not ray.is_initialized()
    if joined:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield Cluster(ray)
    finally:
        if joined:
            ray.shutdown()


def ahead(items: Iterable[Item], begin: Callable[[Item], Handle], *, count: int) -> Iterator[tuple[Item, Handle]]:
    """(item, `begin(item)`) in order. At most `count` items have been begun and not yielded yet."""
    waiting: collections.deque[tuple[Item, Handle]] = collections.deque()
    for item in items:
        waiting.append((item, begin(item)))
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting
