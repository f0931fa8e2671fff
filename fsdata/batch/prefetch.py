"""Steps made ahead of the training loop, in a thread that ends with the loop, with the loader, and with Python.

An `IteratorGuard` says which iterator may take the next batch: one at a time, in the process that the thread belongs
to.
"""

import copy
import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar

import torch

_TOOK_OVER = (
    "this iterator has ended: another iter() of the same loader took over. A loader has one iterator at a time; make a "
    "loader for each"
)
STATE_LOADED = (
    "this iterator has ended: load_state_dict() moved its loader to another place. Begin a new iter() of the loader, "
    "which starts at the loaded state"
)


class IteratorGuard:
    """Handed to the newest iterator of a loader; the one before it loses it. For the training thread alone."""

    def __init__(self) -> None:
        self._holder: object = None
        self._why_lost = _TOOK_OVER
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
        self._holder, self._why_lost = object(), _TOOK_OVER
        return self._holder

    def revoke(self, why: str) -> None:
        """No iterator has the turn until the next `take`; `check` raises `why`."""
        self._holder, self._why_lost = object(), why

    def check(self, shown: object) -> None:
        """Raises RuntimeError in a forked child, and if the turn was revoked or another iterator has taken over."""
        self.check_process()
        if shown is not self._holder:
            raise RuntimeError(self._why_lost)


ItemT = TypeVar("ItemT")


class _Making(Generic[ItemT]):
    """Calls `make` for every item until it returns None, fails, or is stopped: all that the thread refers to.

    Attributes:
        changed: guards the others, and is notified when one of them changes.
        ready: items that were made and not taken yet.
        error: what `make` raised after them.
        stopped: begin no further item. ended: nothing comes after what is ready.
        thread: that makes an item just now.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._make = make
        self._depth = depth
        self._pin = pin
        self.changed = threading.Condition()
        self.ready: deque[ItemT] = deque()
        self.error: BaseException | None = None
        self.stopped = self.ended = False
        self.thread: int | None = None

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
        return item

    def run(self, device: int | None) -> None:
        """The thread. device: see `_enter`."""
        try:
            _enter(device)
            while self._has_room() and self._made(self.next()):
                pass
        except BaseException as error:
            self.error = error
        finally:
            with self.changed:
                self.stopped = self.ended = True
                self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def take(self) -> ItemT | None:
        """The next item, None at the end. Raises what `make` raised."""
        with self.changed:
            while not self.ready and not self.ended:
                self.changed.wait()
            if self.ready:
                self.changed.notify_all()
                return self.ready.popleft()
        if self.error is not None:
            raise self.error
        return None

    def wait(self, seconds: float | None = None) -> bool:
        """Until the thread makes nothing any more; whether it does not."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended, seconds)

    def _has_room(self) -> bool:
        """Wait until there is room for one more item, or this is stopped; whether there is."""
        with self.changed:
            while len(self.ready) >= self._depth and not self.stopped:
                self.changed.wait()
            return not self.stopped

    def _made(self, item: ItemT | None) -> bool:
        """Whether it is one."""
        if item is None:
            return False
        with self.changed:
            self.ready.append(item)
            self.changed.notify_all()
        return True


class Prefetcher(Generic[ItemT]):
    """What `make` returns, computed up to `depth` items ahead in a thread; depth 0 makes them in the calling thread.

    When nothing refers to this object any more, the thread ends after the item in hand. Python waits for it before it
    ends: an owner that may live so long calls `end` in `before_pools_end`. A daemon thread is no way out: one that
    comes out of C++ after Python's end would end the process by std::terminate.

    Args:
        make: returns the next item, or None at the end. Called in one thread at a time.
        pin: pin items in that thread, too (CUDA). Batches that lie in page-locked memory from the start need no such
            step, see `fsdata.batch.host_memory`.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._making = _Making(make, depth=depth, pin=pin)
        self._depth = depth
        self._device = torch.cuda.current_device() if pin else None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:  # a forked child has no thread that would release the lock
            self._making.stop()

    @property
    def waiting(self) -> int:
        """Items that were made and not taken yet. From any thread."""
        return len(self._making.ready)

    def take(self) -> ItemT | None:
        """The next item; None at the end. After `end`, those that were made before it. Blocks until it is made.

        Raises what `make` raised, whatever that is, at the item concerned.
        """
        if self._depth == 0:
            return self._making.next()
        if self._thread is None and not self._making.stopped:
            self._begin()
        return None if self._thread is None else self._making.take()

    def _begin(self) -> None:
        # Ctrl-C may interrupt `start`, and the thread runs all the same: so it is known beforehand.
        self._thread = threading.Thread(target=self._making.run, args=(self._device,), name="fsdata-prefetch")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no further thread
            self._thread = None
            raise

    def end(self, grace_s: float | None = None, give_up: Callable[[], object] = lambda: None) -> None:
        """Begin no further item, and wait for the one in hand. Called by `make` itself, this does not wait.

        After `grace_s`, or at Ctrl-C, it calls `give_up`, which has to wake the thread, and goes on waiting.
        """
        self._making.stop()
        if self._thread is None or self._making.thread == threading.get_ident():
            return
        try:
            ended = self._making.wait(grace_s)
        except BaseException:
            give_up()
            raise
        if not ended:
            give_up()
            self._making.wait()
        self._thread.join()


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
