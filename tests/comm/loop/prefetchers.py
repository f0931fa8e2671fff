"""Loops that ask for the next batch before they train on this one, in the order of calls of those who do so.

None of these libraries is imported: each function makes the calls of its library on a loader, in its order.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def accelerate(loader: Iterable[T]) -> Iterator[T]:
    """`DataLoaderShard.__iter__` (accelerate 1.x): whether a batch is the last one is known before it is given."""
    batches = iter(loader)
    try:
        current = next(batches)
    except StopIteration:
        return
    while True:
        try:
            following = next(batches)
        except StopIteration:
            yield current
            return
        yield current
        current = following


def lightning(loader: Iterable[T], prefetch_batches: int = 1) -> Iterator[T]:
    """`_PrefetchDataFetcher` (lightning 2.x), which takes a loader without a length."""
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


class Apex(Iterator[T]):
    """`data_prefetcher` of apex's examples: `preload` in the constructor, and in `next` before it returns."""

    def __init__(self, loader: Iterable[T]) -> None:
        self._batches = iter(loader)
        self._preload()

    def __next__(self) -> T:
        batch = self._next
        if batch is None:
            raise StopIteration
        self._preload()
        return batch

    def _preload(self) -> None:
        self._next = next(self._batches, None)


def deep(depth: int) -> Any:
    """So many batches are in hand while one is trained on."""
    return lambda loader: lightning(loader, depth)


_END = object()


def queued(depth: int) -> Any:
    """A thread fills a queue of `depth` batches."""

    def batches(loader: Iterable[T]) -> Iterator[T]:
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

    return batches


PREFETCHERS = {
    "accelerate": accelerate,
    "lightning": lightning,
    "apex": Apex,
    "four in hand": deep(4),
    "a queue of 1": queued(1),
    "a queue of 3": queued(3),
}
