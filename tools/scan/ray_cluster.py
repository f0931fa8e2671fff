"""Runs work on many files on a Ray cluster. This is the only file that imports Ray."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.engines import Item, Lost, Result, ahead

AGAIN = 3
_AHEAD = 4  # tasks that wait or run per core of the cluster


@contextlib.contextmanager
def cluster() -> Iterator["Cluster"]:
    """The cluster that this process is connected to, or that RAY_ADDRESS names, or a new one on this machine.

    At the end, this process leaves a cluster that it joined or started here. Raises UsageError if Ray is
    missing.
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


class Cluster:
    """Runs one task per item on any node. Every node must see the files under the same paths.

    A task is retried `AGAIN` times if its worker dies or cannot reach its file.
    """

    workers = 0

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """See `Engine.run`."""

        def one(item: Any) -> Any:
            return work(item)

        task = self._ray.remote(one).options(num_cpus=1, max_retries=AGAIN, retry_exceptions=[OSError])
        cores = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        for item, reference in ahead(items, task.remote, count=cores * _AHEAD):
            yield item, self._result(reference)

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, OSError):
                return Lost(reason=str(error.cause))
            raise
        except errors.RayError as error:
            return Lost(reason=f"its task was lost {AGAIN + 1} times: {str(error).splitlines()[0]}")
