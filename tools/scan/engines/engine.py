"""What runs work on many files: the interface, and how items are handed over ahead of their results."""

import collections
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")


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


def ahead(items: Iterable[Item], begin: Callable[[Item], Handle], *, count: int) -> Iterator[tuple[Item, Handle]]:
    """(item, `begin(item)`) in order, `count` items begun before the first is asked for again."""
    waiting: collections.deque[tuple[Item, Handle]] = collections.deque()
    for item in items:
        waiting.append((item, begin(item)))
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting
