"""The interface of what runs work on many files, and how items are started ahead of their results."""

import collections
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")


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


def ahead(items: Iterable[Item], begin: Callable[[Item], Handle], *, count: int) -> Iterator[tuple[Item, Handle]]:
    """(item, `begin(item)`) in order. At most `count` items are begun and not yet handed out."""
    waiting: collections.deque[tuple[Item, Handle]] = collections.deque()
    for item in items:
        waiting.append((item, begin(item)))
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting
