"""Runs work on many files in threads of this process."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from freescale_tools.scan.engines.engine import Item, Lost, Result, ahead
from fsranks.machine.cores import usable_cores

REMOTE_THREADS = 16  # reading remote files is mostly waiting
_AHEAD = 3  # items that wait or run per thread


class Local:
    """Runs work in threads of this process."""

    def __init__(self, threads: int | None = None) -> None:
        self.workers = threads or usable_cores()

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """See `Engine.run`."""

        def one(item: Item) -> Result | Lost:
            try:
                return work(item)
            except OSError as error:
                return Lost(reason=str(error))

        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="freescale-scan")
        try:
            begun = ahead(items, lambda item: pool.submit(one, item), count=self.workers * _AHEAD)
            for item, future in begun:
                yield item, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
