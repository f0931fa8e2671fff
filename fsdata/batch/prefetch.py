"""Steps made ahead of the training loop by a thread, and pinned by torchdata's PinMemory, without leaving a thread.

The root node never raises: what goes wrong travels as an item and is raised, unchanged, in the training thread at the
batch concerned (torchdata would rebuild it from its text). torchdata's Prefetcher does the same as `_Thread` here, with
locks made in Python: they cost as much as a batch of 128 samples.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from torchdata.nodes import BaseNode, PinMemory

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


@dataclass(frozen=True, slots=True)
class _End:
    """There are no further items."""


class _Thread:
    """Takes items from `node` in a thread of its own, up to `depth` ahead, from the first `next` on."""

    def __init__(self, node: BaseNode[Any], depth: int) -> None:
        self._node: BaseNode[Any] | None = node
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._items: SimpleQueue[Any] = SimpleQueue()
        for _ in range(depth):
            self._wanted.put(True)
        self._over = False

    def __next__(self) -> Any:
        if self._node is not None:
            # The thread knows the queues and not this object, so that it ends when nobody refers to this object.
            given = self._node, self._wanted, self._items
            self._node = None
            threading.Thread(target=_take_ahead, args=given, daemon=True).start()
        item = _End() if self._over else self._items.get()
        if isinstance(item, _End):
            self._over = True
            raise StopIteration
        self._wanted.put(True)
        return item

    def close(self) -> None:
        """Take no further item."""
        self._wanted.put(False)

    def __del__(self) -> None:
        self.close()


def _take_ahead(node: BaseNode[Any], wanted: "SimpleQueue[bool]", items: "SimpleQueue[Any]") -> None:
    while wanted.get():
        try:
            item = next(node)
        except StopIteration:
            break
        except Exception as error:  # of the pinning thread: the root node does not raise
            item = Failure(error)
        items.put(item)
        if isinstance(item, Failure):
            break
    items.put(_End())


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
        self._node: BaseNode[Any] | _Thread | None = _Thread(node, depth) if depth else node
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
        node, self._node = self._node, None
        if isinstance(node, _Thread):
            node.close()


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
