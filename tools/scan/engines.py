"""Where work on many files runs: in threads of this process, or on a `ray_cluster` with the same results."""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fsranks.machine.cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")

REMOTE_THREADS = 16  # reading remote files is mostly waiting
_AHEAD = 3  # items that wait or run per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An item without a result: its file cannot be reached, or its worker died every time."""

    reason: str


class Engine(Protocol):
    """Runs `work` on every item.

    `workers`: how many items run at a time; 0 if an item should be a whole file.
    """

    workers: int

    def run(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | Lost]]:
        """(item, result) in the order of the items. Only a few items are taken ahead.

        If `work` raises OSError (the file cannot be reached), the result is `Lost`. Other exceptions pass
        through.
        """


class Threads:
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


def ahead(items: Iterable[Item], begin: Callable[[Item], Handle], *, count: int) -> Iterator[tuple[Item, Handle]]:
    """(item, `begin(item)`) in order. At most `count` items are begun and not yet handed out."""
    waiting: collections.deque[tuple[Item, Handle]] = collections.deque()
    for item in items:
        waiting.append((item, begin(item)))
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting
