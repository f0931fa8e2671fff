"""Computes items ahead of the training loop, in a thread that ends with the loop, with the loader, and with Python.

`IteratorGuard` allows one iterator of a loader at a time, in the process in which the loader's threads run.
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
    "this iterator has ended: load_state_dict() or skip() moved its loader to another position. Call iter() again: it "
    "starts there"
)


class IteratorGuard:
    """A token that only the newest iterator of a loader has. Used by the training thread only."""

    def __init__(self) -> None:
        self._token = object()
        self._reason = _TOOK_OVER
        self._process: int | None = None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that called `bind_process`, and so has none of its threads."""
        return self._process not in (None, os.getpid())

    def bind_process(self) -> None:
        """From now on, threads and connections belong to this process."""
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises RuntimeError in a forked child, where waiting for a thread would never end."""
        if self.forked:
            raise RuntimeError(
                f"this loader was used in process {self._process} before process {os.getpid()} was forked from it, "
                "which has none of its threads and would wait for ever. Make the loader in the process that iterates it"
            )

    def acquire(self) -> object:
        """The token of a new iterator; earlier tokens become invalid."""
        self.check_process()
        self.revoke(_TOOK_OVER)
        return self._token

    def revoke(self, reason: str) -> None:
        """Make the current token invalid: `check` raises RuntimeError(reason)."""
        self._token, self._reason = object(), reason  # a new object: no iterator has it

    def check(self, token: object) -> None:
        """Raises RuntimeError in a forked child, or if the token is invalid."""
        self.check_process()
        if token is not self._token:
            raise RuntimeError(self._reason)


ItemT = TypeVar("ItemT")


class _PrefetchQueue(Generic[ItemT]):
    """Items that `make` returned, and the state shared by the prefetch thread and the training thread.

    The thread refers to this object only, not to `Prefetcher`: so an abandoned `Prefetcher` is collected while the
    thread runs, and its `__del__` stops the thread.

    Attributes:
        changed: guards the other attributes, and is notified when one of them changes.
        ready: items that `take` has not returned yet.
        error: raised by `make`; `take` raises it after the ready items.
        stopped: no further call of `make` begins. ended: no item follows those that are ready.
        thread: the thread that is inside `make`, None between calls.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._make = make
        self._depth = depth
        self._pin = pin
        # Its lock is reentrant: the garbage collector may call `Prefetcher.__del__`, and so `stop`, in a thread that is
        # inside one of the blocks below.
        self.changed = threading.Condition()
        self.ready: deque[ItemT] = deque()
        self.error: BaseException | None = None
        self.stopped = self.ended = False
        self.thread: int | None = None

    def next(self) -> ItemT | None:
        """Call `make` in this thread. None at the end and after `stop`."""
        if self.stopped:
            return None
        self.thread = threading.get_ident()  # so that `end`, called by `make`, does not wait for itself
        try:
            item = self._make()
            if self._pin:  # here, so that an error of the copy is raised at the item, too
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
        """The thread's function. device: of CUDA, where the thread pins."""
        try:
            if device is not None:
                torch.set_num_threads(1)  # of this thread: its copies to pinned memory would otherwise use all cores
                torch.cuda.set_device(device)
            # Room first: `depth` bounds the items in memory, including the one that is computed.
            while self._has_room() and (item := self.next()) is not None:
                with self.changed:
                    self.ready.append(item)
                    self.changed.notify_all()
        except BaseException as error:  # KeyboardInterrupt and SystemExit of `make`, too, are raised by `take`
            self.error = error
        finally:
            # Always: `take` and `wait` would otherwise block for ever.
            with self.changed:
                self.stopped = self.ended = True
                self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def take(self) -> ItemT | None:
        """The next item, None at the end. Raises the error of `make`."""
        with self.changed:
            while not self.ready and not self.ended:
                self.changed.wait()
            if self.ready:  # before the error: it belongs to the item after these
                self.changed.notify_all()
                return self.ready.popleft()
        if self.error is not None:
            raise self.error
        return None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the thread has ended its last call of `make`, at most `seconds`; whether it has."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended, seconds)

    def _has_room(self) -> bool:
        """Wait until there is room for one more item (True), or `stop` was called (False)."""
        with self.changed:
            while len(self.ready) >= self._depth and not self.stopped:
                self.changed.wait()
            return not self.stopped


class Prefetcher(Generic[ItemT]):
    """Calls `make` up to `depth` items ahead in a thread; with depth 0, in the calling thread when an item is taken.

    When no reference to this object is left, the thread ends after its current item. Python waits for the thread at
    exit: an owner that may live so long calls `end` in `before_pools_end`. A daemon thread would not help: one that
    returns from C++ after the end of the interpreter ends the process by std::terminate.

    Args:
        make: returns the next item, or None at the end. Called by one thread at a time.
        pin: copy items to page-locked memory in that thread (CUDA). Batches that are allocated in page-locked memory
            do not need it, see `fsdata.batch.host_memory`.
    """

    def __init__(self, make: Callable[[], ItemT | None], *, depth: int, pin: bool) -> None:
        self._queue = _PrefetchQueue(make, depth=depth, pin=pin)
        self._depth = depth
        self._device = torch.cuda.current_device() if pin else None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:  # in a forked child, the thread that may own the lock does not exist
            self._queue.stop()

    @property
    def waiting(self) -> int:
        """Items that are ready. From any thread."""
        return len(self._queue.ready)

    def take(self) -> ItemT | None:
        """The next item; None at the end. After `end`, the items that were ready. Blocks until there is an item.

        Raises any error of `make` in place of the item for which it was raised.
        """
        if self._depth == 0:
            return self._queue.next()
        if self._thread is None and not self._queue.stopped:
            self._begin()
        return None if self._thread is None else self._queue.take()

    def _begin(self) -> None:
        # Assigned before `start`: Ctrl-C may interrupt `start` after the thread has begun, and `end` must join it.
        self._thread = threading.Thread(target=self._queue.run, args=(self._device,), name="fsdata-prefetch")
        try:
            self._thread.start()
        except RuntimeError:  # the system cannot start another thread; a later call tries again
            self._thread = None
            raise

    def end(self, grace_s: float | None = None, give_up: Callable[[], object] = lambda: None) -> None:
        """Stop after the current item, and wait for the thread. Called from inside `make`, it does not wait.

        After `grace_s`, or at Ctrl-C, it calls `give_up`, which must make `make` return, and continues to wait.
        """
        self._queue.stop()
        if self._thread is None or self._queue.thread == threading.get_ident():
            return
        try:
            ended = self._queue.wait(grace_s)
        except BaseException:
            give_up()
            raise
        if not ended:
            give_up()
            self._queue.wait()
        self._thread.join()


def pinned(value: Any) -> Any:
    """A copy in page-locked memory: by the object's own `pin_memory`, else recursively through mappings, lists, tuples
    and dataclasses. Other objects are returned unchanged."""
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
