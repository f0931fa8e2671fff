"""Steps made ahead of the training loop, by torchdata's Prefetcher and PinMemory, ended without leaving a thread.

The root node never raises: what goes wrong travels as an item and is raised, unchanged, in the training thread at the
batch concerned (torchdata would rebuild it from its text).
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torchdata.nodes import BaseNode, PinMemory, Prefetcher

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the training thread."""

    error: Exception

    def pin_memory(self) -> "Failure":
        return self


class _Root(BaseNode[Any]):
    """Calls `make` for every item until it returns None, fails, or the node is stopped."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()
        self.busy = threading.Lock()
        self.stopped = False
        self.made = 0
        self._make = make

    def next(self) -> Any:
        self.threads.add(threading.current_thread())
        with self.busy:
            if self.stopped:
                raise StopIteration
            try:
                item = self._make()
            except Exception as error:
                self.stopped = True
                return Failure(error)
            if item is None:
                self.stopped = True
                raise StopIteration
            self.made += 1
            return item

    def get_state(self) -> dict[str, Any]:
        return {}


class Ahead(Generic[ItemT]):
    """An iterator over what `make` returns, computed up to `depth` items ahead in a thread; depth 0 makes them inline.

    Args:
        make: returns the next item, or None at the end. Called in one thread at a time.
        pin: pin items with their `pin_memory` method in a thread of its own (CUDA). Batches that lie in page-locked
            memory from the start need no such thread, see `fsdata.batch.host_memory`.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._root = _Root(make)
        node: BaseNode[Any] = self._root
        if pin:
            node = PinMemory(node, snapshot_frequency=0)
        if depth:
            node = Prefetcher(node, prefetch_factor=depth, snapshot_frequency=0)
        self._node: BaseNode[Any] | None = node
        self._taken = 0

    @property
    def waiting(self) -> int:
        """Items that were made and not taken yet. From any thread."""
        return max(self._root.made - self._taken, 0)

    def __iter__(self) -> "Ahead[ItemT]":
        return self

    def __next__(self) -> ItemT:
        if self._node is None:
            raise StopIteration
        item = next(self._node)
        if isinstance(item, Failure):
            raise item.error
        self._taken += 1
        return item

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads other than this one that have called `make`; they end by themselves after `stop`."""
        return [thread for thread in self._root.threads if thread is not threading.current_thread()]

    def stop(self) -> None:
        """Begin no further item. `make` may still be running in one of `threads`."""
        self._root.stopped = True
        self._node = None


def pinned(value: Any) -> Any:
    """A batch in pinned memory: by its own `pin_memory`, else through mappings, lists, tuples and dataclasses.

    What holds no tensors of these kinds stays as it is.
    """
    if callable(getattr(value, "pin_memory", None)):
        return value.pin_memory()
    if isinstance(value, MutableMapping):
        moved: Any = copy.copy(value)
        for key, item in value.items():
            moved[key] = pinned(item)
        return moved
    if isinstance(value, list | tuple):
        items = [pinned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moved = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(moved, field.name, pinned(getattr(value, field.name)))
        return moved
    return value
