"""Where work on many files runs: threads here, or a Ray cluster. Both give the same results in the same order."""

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fsdata.cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")

REMOTE_THREADS = 16  # reads of remote files wait more than they compute
_AHEAD = 3  # items handed over per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An item whose work could not be done: its file cannot be reached, or what ran it died every time."""

    reason: str


class Engine(Protocol):
    """Something that runs `work` on every item.

    `workers`: how many items are worked on at a time; 0 where an item should be a whole file.
    """

    workers: int

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """(item, result) in the order of the items, of which few are taken ahead.

        An item for which `work` raises OSError (its file cannot be reached) is lost. Other exceptions pass.
        """


class Local:
    """Threads of this process."""

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


def ahead(items: Iterable[Item], begin: Callable[[Item], Handle], *, count: int) -> Iterator[tuple[Item, Handle]]:
    """(item, `begin(item)`) in order, `count` items begun before the first is asked for again."""
    waiting: collections.deque[tuple[Item, Handle]] = collections.deque()
    for item in items:
        waiting.append((item, begin(item)))
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting


@contextlib.contextmanager
def engine(name: str, *, threads: int | None = None) -> Iterator[Engine]:
    """The engine called `local` or `ray`, for the length of the block.

    Raises UsageError for `ray` where it is not installed, ValueError for another name.
    """
    if name == "local":
        yield Local(threads)
    elif name == "ray":
        from freescale_tools.scan.engines.ray_cluster import cluster

        with cluster() as found:
            yield found
    else:
        raise ValueError(f"an engine is 'local' or 'ray', not {name!r}")
