"""I/O threads read row groups ahead of the threads that decode them, in the order of decoding.

The files of the next row groups are opened first, because their footers have the byte ranges. Requests are then issued
in order, as long as the bytes that were requested and are not decoded yet stay within a bound. The oldest row group may
exceed the bound: otherwise one that is larger than the bound would never be read.

There is no deadlock. I/O threads wait only for the store. A request that the bound delays waits for the decoding of
earlier row groups, all of whose requests were issued before it.
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
_ITEMS = 256  # planned ahead at most, however small their row groups are


class Fetch(Generic[ItemT]):
    """The reads for one item.

    Attributes:
        row_groups: the row groups that decoding the item needs; None for those of local files.
        bytes: bytes of the item that were requested so far.
        requests: requests that are not issued yet; left: requests without an answer.
    """

    def __init__(self, item: ItemT, row_groups: Sequence[RowGroupBytes | None]) -> None:
        self.item = item
        self.row_groups = row_groups
        self.remote = [row_group for row_group in row_groups if row_group is not None]
        self.bytes = 0
        self.requests: deque[tuple[RowGroupBytes, ByteRange]] = deque()
        self.opened = not self.remote
        self.left = 0
        self.cancelled = False
        self.ready = threading.Event()

    def wait(self) -> None:
        """Block until all row groups were read or a read has failed. Decoding raises the error of a failed read.

        Raises:
            CancelledError: the epoch has ended.
        """
        self.ready.wait()
        if self.cancelled:
            raise CancelledError


class Fetches(Generic[ItemT]):
    """An iterator over `items`, each as a `Fetch` that I/O threads already read. Made by `ReadAhead.over`.

    One thread iterates; any thread may call `Fetch.wait` and `release`.
    """

    def __init__(
        self, pool: "ReadAhead", items: Iterator[ItemT], of_item: Callable[[ItemT], Sequence[RowGroupBytes | None]]
    ) -> None:
        self._pool = pool
        self._items = items
        self._of_item = of_item
        self._ahead: deque[Fetch[ItemT]] = deque()  # not returned by the iterator yet
        self._planned: deque[Fetch[ItemT]] = deque()  # files not opened yet
        self._opening: deque[Fetch[ItemT]] = deque()  # not all requests issued yet
        self._live: dict[Fetch[ItemT], None] = {}  # not released yet, in order
        self._bytes = 0  # requested and not released
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
        """Free the bytes of a decoded item, and issue further requests."""
        fetch.row_groups, fetch.remote = (), []
        with self._changed:
            self._live.pop(fetch, None)
            self._bytes -= fetch.bytes
        self._advance()

    def close(self) -> None:
        """Issue no further requests, and wake waiting threads. Blocks until the running requests have ended."""
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
            except RuntimeError:  # the interpreter is shutting down and the pool accepts no work: wake waiting threads
                self._cancel()

    def _open_next(self) -> bool:
        # A bound on the files that are opened before their requests can be issued.
        if not self._planned or len(self._opening) >= self._pool.threads:
            return False
        fetch = self._planned.popleft()
        self._opening.append(fetch)
        if not fetch.opened:
            self._pool.submit(self._run, self._open, fetch)
        return True

    def _request_next(self) -> bool:
        # Requests are issued strictly in order: a later row group must not take the bytes that an earlier one needs.
        if not self._opening or not self._opening[0].opened:
            return False
        fetch = self._opening[0]
        if not fetch.requests:
            self._opening.popleft()
            if not fetch.bytes:  # local, failed to open, or nothing to read: no answer will set `ready`
                fetch.ready.set()
            return True
        row_group, byte_range = fetch.requests[0]
        size = byte_range[1] - byte_range[0]
        if self._bytes + size > self._pool.limit and fetch is not next(iter(self._live)):
            return False
        fetch.requests.popleft()
        fetch.bytes += size
        self._bytes += size
        self._pool.peak = max(self._pool.peak, self._bytes)
        self._pool.submit(self._run, self._read, fetch, row_group, byte_range)
        return True

    def _run(self, job: Callable[..., None], *arguments: object) -> None:
        """Run one job, in an I/O thread."""
        with self._changed:
            if self._closed:  # queued before `close`, which does not wait for it
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
                fetch.requests += [(row_group, byte_range) for byte_range in row_group.plan()]
            except BaseException as error:
                row_group.fail(error)
        with self._changed:
            fetch.left = len(fetch.requests)
            fetch.opened = True

    def _read(self, fetch: Fetch[ItemT], row_group: RowGroupBytes, byte_range: ByteRange) -> None:
        try:
            row_group.read(byte_range)
        except BaseException as error:
            row_group.fail(error)
        with self._changed:
            fetch.left -= 1
            last = fetch.left == 0
        if last:
            for remote in fetch.remote:
                remote.finish()
            fetch.ready.set()


class ReadAhead:
    """The I/O threads of one rank, and the bound on the bytes that they read ahead.

    Args:
        limit: maximum number of bytes that were requested and are not decoded yet.

    Attributes:
        peak: the largest number of such bytes so far.
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
        """Iterate over `items` in order while the row groups of later items are read. Close it before this object."""
        return Fetches(self, items, of_item)

    def close(self) -> None:
        """End the threads. Blocks until the running requests have ended."""
        self._executor.shutdown(cancel_futures=True)
