"""Row groups are read by I/O threads ahead of the threads that decode them, in the order in which these want them.

Files are opened for some row groups ahead, which tells what has to be requested. Requests then go out in order, as long
as the bytes that were requested, and whose row groups are not decoded yet, stay within a bound. When all row groups
before it are decoded, one that is larger than the bound may hold more, and nothing else is held then.

Nothing waits in a circle: I/O threads wait for the store only, and requests go out in the order in which row groups are
decoded, so those that hold a request back are all decoded without it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Generic, TypeVar

from fsdata.remote.byte_ranges import ByteRange
from fsdata.remote.row_group import RowGroupBytes

ItemT = TypeVar("ItemT")

THREADS = 24  # Arrow's S3 has 25 connections
_ITEMS = 256  # known ahead, however small their row groups are


class Fetch(Generic[ItemT]):
    """The row groups of one item on their way.

    Attributes:
        row_groups: what decoding the item takes, None for row groups of local files.
        bytes: of the item that were requested so far.
        requests: what is still to be requested; left: requests without an answer.
    """

    def __init__(self, item: ItemT, row_groups: Sequence[RowGroupBytes | None]) -> None:
        self.item = item
        self.row_groups = row_groups
        self.remote = [each for each in row_groups if each is not None]
        self.bytes = 0
        self.requests: deque[tuple[RowGroupBytes, ByteRange]] = deque()
        self.opened = not self.remote
        self.left = 0
        self.cancelled = False
        self.ready = threading.Event()

    def wait(self) -> None:
        """Block until the row groups were read, or reading them has failed, which decoding then says.

        Raises:
            CancelledError: the epoch has ended.
        """
        self.ready.wait()
        if self.cancelled:
            raise CancelledError


class Fetches(Generic[ItemT]):
    """An iterator over `items`, each as a `Fetch` that I/O threads work on already. Made by `ReadAhead.over`.

    One thread iterates, any threads wait and release.
    """

    def __init__(
        self, pool: "ReadAhead", items: Iterator[ItemT], of_item: Callable[[ItemT], Sequence[RowGroupBytes | None]]
    ) -> None:
        self._pool = pool
        self._items = items
        self._of_item = of_item
        self._ahead: deque[Fetch[ItemT]] = deque()  # not handed out yet
        self._planned: deque[Fetch[ItemT]] = deque()  # not opened yet
        self._opening: deque[Fetch[ItemT]] = deque()  # not all of it requested yet
        self._live: dict[Fetch[ItemT], None] = {}  # not released yet, in order
        self._held = 0
        self._running = 0
        self._closed = False
        self._changed = threading.Condition()

    def __iter__(self) -> "Fetches[ItemT]":
        return self

    def __next__(self) -> Fetch[ItemT]:
        while len(self._ahead) < _ITEMS and not self._closed:
            item = next(self._items, None)
            if item is None:
                break
            fetch = Fetch(item, self._of_item(item))
            self._ahead.append(fetch)
            with self._changed:
                self._planned.append(fetch)
                self._live[fetch] = None
        self._advance()
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()

    def release(self, fetch: Fetch[ItemT]) -> None:
        """The item was decoded: forget its bytes, and request others in their place."""
        fetch.row_groups, fetch.remote = (), []
        with self._changed:
            self._live.pop(fetch, None)
            self._held -= fetch.bytes
        self._advance()

    def close(self) -> None:
        """Read nothing more, and wake who waits. Blocks until the requests under way have ended."""
        with self._changed:
            self._cancel()
            self._changed.wait_for(lambda: not self._running)
            self._live.clear()
            for queue in (self._ahead, self._planned, self._opening):
                queue.clear()

    def _cancel(self) -> None:
        self._closed = True
        for fetch in self._live:
            fetch.cancelled = not fetch.ready.is_set()
            fetch.ready.set()

    def _advance(self) -> None:
        with self._changed:
            try:
                while not self._closed and (self._request_next() or self._open_next()):
                    pass
            except RuntimeError:  # Python is ending and takes no work any more: nobody may wait for it
                self._cancel()

    def _open_next(self) -> bool:
        if not self._planned or len(self._opening) >= self._pool.threads:
            return False
        fetch = self._planned.popleft()
        self._opening.append(fetch)
        if not fetch.opened:
            self._pool.submit(self._run, self._open, fetch)
        return True

    def _request_next(self) -> bool:
        if not self._opening or not self._opening[0].opened:
            return False
        fetch = self._opening[0]
        if not fetch.requests:
            self._opening.popleft()
            if not fetch.bytes:
                fetch.ready.set()
            return True
        row_group, part = fetch.requests[0]
        size = part[1] - part[0]
        if self._held + size > self._pool.limit and fetch is not next(iter(self._live)):
            return False
        fetch.requests.popleft()
        fetch.bytes += size
        self._held += size
        self._pool.peak = max(self._pool.peak, self._held)
        self._pool.submit(self._run, self._read, fetch, row_group, part)
        return True

    def _run(self, job: Callable[..., None], *arguments: object) -> None:
        """One job in an I/O thread."""
        with self._changed:
            if self._closed:
                return
            self._running += 1
        try:
            job(*arguments)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        self._advance()

    def _open(self, fetch: Fetch[ItemT]) -> None:
        for row_group in fetch.remote:
            try:
                fetch.requests += [(row_group, part) for part in row_group.plan()]
            except BaseException as error:
                row_group.fail(error)
        with self._changed:
            fetch.left = len(fetch.requests)
            fetch.opened = True

    def _read(self, fetch: Fetch[ItemT], row_group: RowGroupBytes, part: ByteRange) -> None:
        try:
            row_group.read(part)
        except BaseException as error:
            row_group.fail(error)
        with self._changed:
            fetch.left -= 1
            last = fetch.left == 0
        if last:
            for each in fetch.remote:
                each.finish()
            fetch.ready.set()


class ReadAhead:
    """The I/O threads of one rank, and the bound on what they hold.

    Args:
        limit: bytes that were requested and are not decoded yet.

    Attributes:
        peak: the most bytes that were held at a time.
    """

    def __init__(self, limit: int, threads: int = THREADS) -> None:
        self.limit = limit
        self.threads = threads
        self.peak = 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="fsdata-io")
        self.submit = self._executor.submit

    def over(
        self, items: Iterator[ItemT], of_item: Callable[[ItemT], Sequence[RowGroupBytes | None]]
    ) -> Fetches[ItemT]:
        """`items` in their order, while the row groups of those to come are read. Close it before this object."""
        return Fetches(self, items, of_item)

    def close(self) -> None:
        """End the threads. Blocks until the requests under way have ended."""
        self._executor.shutdown(cancel_futures=True)
