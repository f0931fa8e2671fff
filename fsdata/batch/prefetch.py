"""Steps made ahead of the training loop, in a thread that ends with the loop, with the loader, and with Python.

A `Turn` says which iterator may take the next batch: one at a time, in the process that the thread belongs to.
"""

import copy
import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

import torch


class Turn:
    """Handed to the newest iterator of a loader; the one before it loses it. For the training thread alone."""

    def __init__(self) -> None:
        self._holder: object = None
        self._process: int | None = None

    @property
    def forked(self) -> bool:
        """This process is a child of the one that `settle` was called in: it has none of its threads."""
        return self._process not in (None, os.getpid())

    def settle(self) -> None:
        """Threads and connections belong to this process from now on."""
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises RuntimeError in a forked child, where everything else would wait for ever."""
        if self.forked:
            raise RuntimeError(
                f"this loader was used in process {self._process} before process {os.getpid()} was forked from it, "
                "which has none of its threads and would wait for ever. Make the loader in the process that iterates it"
            )

    def take(self) -> object:
        """What the new iterator shows to `check`."""
        self.check_process()
        self._holder = object()
        return self._holder

    def check(self, shown: object) -> None:
        """Raises RuntimeError if another iterator has taken over."""
        if shown is not self._holder:
            raise RuntimeError(
                "this iterator has ended: another iter() of the same loader took over. A loader has one iterator at a "
                "time; make a loader for each"
            )


ItemT = TypeVar("ItemT")


class _Making(Generic[ItemT]):
    """Calls `make` for every item until it returns None, fails, or is stopped: all that the thread refers to."""

    def __init__(self, make: Callable[[], ItemT | None], *, pin: bool) -> None:
        self._make = make
        self._pin = pin
        self.stopped = False
        self.made = 0
        self.thread: int | None = None  # that makes an item just now

    def next(self) -> ItemT | None:
        if self.stopped:
            return None
        self.thread = threading.get_ident()
        try:
            item = self._make()
            if self._pin:
                item = pinned(item)
        except BaseException:
            self.stopped = True
            raise
        finally:
            self.thread = None
        if item is None:
            self.stopped = True
        else:
            self.made += 1
        return item


class Ahead(Generic[ItemT]):
    """What `make` returns, computed up to `depth` items ahead in a thread; depth 0 makes them in the calling thread.

    When nobody refers to this object any more, the thread ends after the item in hand.

    Args:
        make: returns the next item, or None at the end. Called in one thread at a time.
        pin: pin items in that thread, too (CUDA). Batches that lie in page-locked memory from the start need no such
            step, see `fsdata.batch.host_memory`.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._making = _Making(make, pin=pin)
        self._depth = depth
        # Python waits for the threads of a pool before it ends. A daemon thread that comes out of C++ after that end
        # would end the process by std::terminate.
        self._executor = ThreadPoolExecutor(
            1,
            thread_name_prefix="fsdata-prefetch",
            initializer=_enter,
            initargs=(torch.cuda.current_device() if pin else None,),
        )
        self._futures: deque[Future[ItemT | None]] = deque()
        self._taken = 0

    def __del__(self) -> None:
        self._making.stopped = True

    @property
    def waiting(self) -> int:
        """Items that were made and not taken yet. From any thread."""
        return max(self._making.made - self._taken, 0)

    def take(self) -> ItemT | None:
        """The next item; None at the end, and after `end`. Blocks until it is made.

        Raises what `make` raised, whatever that is, at the item concerned.
        """
        if self._depth == 0:
            item = self._making.next()
        else:
            self._submit()
            if not self._futures:
                return None
            item = self._futures[0].result()  # where Ctrl-C interrupts this, the item is not lost
            self._futures.popleft()
            self._submit()
        self._taken += item is not None
        return item

    def end(self, grace_s: float | None = None, give_up: Callable[[], object] = lambda: None) -> None:
        """Begin no further item, and wait for the one in hand. Called by `make` itself, this does not wait.

        After `grace_s`, or at Ctrl-C, it calls `give_up`, which has to wake the thread, and goes on waiting.
        """
        self._making.stopped = True
        if self._making.thread == threading.get_ident():
            return
        try:
            late = wait(list(self._futures), grace_s).not_done
        except BaseException:
            give_up()
            raise
        if late:
            give_up()
            wait(late)
        self._executor.shutdown()

    def _submit(self) -> None:
        while len(self._futures) < self._depth and not self._making.stopped:
            self._futures.append(self._executor.submit(self._making.next))


def _enter(device: int | None) -> None:
    """At the beginning of a thread. device: of CUDA, where the thread pins."""
    if device is not None:
        torch.set_num_threads(1)  # for this thread: copies to pinned memory would take all cores
        torch.cuda.set_device(device)


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
