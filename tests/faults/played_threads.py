"""`threading` and `queue` for code that runs on played ranks: its threads belong to the rank that starts them.

One thread of all ranks runs at a time, and only waiting gives the turn to another one. So a lock protects nothing that
is not protected already, and a condition is a wait until somebody has notified.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self

from ranks_as_threads import NEVER, Ranks


class PlayedThread:
    def __init__(self, ranks: Ranks, target: Callable[[], object], **_: object) -> None:
        self._ranks, self._target = ranks, target

    def start(self) -> None:
        self._ranks.spawn(self._target)


class PlayedEvent:
    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._set = ranks, False

    def set(self) -> None:
        self._set = True

    def wait(self) -> None:
        self._ranks.block(lambda: self._set)


class PlayedCondition:
    """To be used in `with`, as that of `threading`; who waits goes on when it is notified, or after the time."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._notified = ranks, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, seconds: float = NEVER) -> None:
        before = self._notified
        self._ranks.block(lambda: self._notified > before, seconds)

    def notify_all(self) -> None:
        self._notified += 1


class PlayedQueue:
    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        self._ranks.block(lambda: bool(self._items))
        return self._items.popleft()


def threading_of(ranks: Ranks) -> SimpleNamespace:
    """In the place of the module `threading`."""
    return SimpleNamespace(
        Thread=lambda target, **options: PlayedThread(ranks, target, **options),
        Event=lambda: PlayedEvent(ranks),
        Condition=lambda: PlayedCondition(ranks),
        get_native_id=threading.get_native_id,
    )


def queue_of(ranks: Ranks) -> SimpleNamespace:
    """In the place of the module `queue`."""
    return SimpleNamespace(SimpleQueue=lambda: PlayedQueue(ranks))


def result_of(ranks: Ranks) -> Callable[..., Any]:
    """In the place of `Pending.result`, whose device is the CPU."""

    def result(future: Future[Any], timeout: float | None = None) -> Any:
        ranks.block(future.done)
        return Future.result(future, 0)

    return result
