"""Loops that ask for the next batch before they train on this one. No library that does so is imported."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def lightning(loader: Iterable[T], prefetch_batches: int = 1) -> Iterator[T]:
    """The calls of `_PrefetchDataFetcher` (lightning 2.x) on a loader without a length, in their order. With one batch
    it is also that of `DataLoaderShard.__iter__` (accelerate 1.x), and of `data_prefetcher` of apex's examples."""
    batches, fetched, done = iter(loader), deque[T](), False

    def fetch() -> bool:
        try:
            fetched.append(next(batches))
        except StopIteration:
            return True
        return False

    for _ in range(prefetch_batches):
        done = done or fetch()
    while fetched:
        batch = fetched.popleft()
        if not done:
            done = fetch()
        yield batch


_END = object()


def queued(loader: Iterable[T], depth: int) -> Iterator[T]:
    """A thread fills a queue of `depth` batches."""
    filled: queue.Queue[Any] = queue.Queue(depth)

    def fill() -> None:
        try:
            for batch in loader:
                filled.put(batch)
            filled.put(_END)
        except BaseException as error:
            filled.put(error)

    thread = threading.Thread(target=fill, name="filler")
    thread.start()
    try:
        while (batch := filled.get()) is not _END:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        thread.join()


PREFETCHERS: dict[str, Callable[[Iterable[Any]], Iterator[Any]]] = {
    "lightning": lightning,
    "four in hand": partial(lightning, prefetch_batches=4),
    "a queue": partial(queued, depth=3),
}
