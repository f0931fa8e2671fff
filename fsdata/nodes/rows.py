"""The second node: threads decode pieces of row groups ahead, which become windows of rows by reference."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import tee
from typing import Any
from weakref import ref

import numpy as np

from fsdata.compose.reading import read_ahead_of
from fsdata.decode.block import Block, RowRefs, concat
from fsdata.nodes.dataset import ReadInPart
from fsdata.nodes.guards import not_the_end
from fsdata.nodes.node import Node
from fsdata.nodes.units import Units
from fsdata.options import bytes_of, integer
from fsdata.order.progress import Progress
from fsdata.order.stream import Window
from fsranks.machine.cores import cores_of_this_rank

_LOG = logging.getLogger("fsdata")
_TOO_SMALL = (
    "memory=%d bytes are less than the %d bytes of the rows that are shuffled together, which are kept all the same. "
    "Give more, or a smaller shuffle_window"
)


@dataclass(frozen=True, slots=True)
class WindowRows:
    """The rows of a window in the order of their use, without dropped ones.

    Attributes:
        rows: references to n rows.
        passed: int64 [n], or a range: position in this rank's stream behind each row, dropped rows included. end:
            position behind the window.
    """

    rows: RowRefs
    passed: np.ndarray | range
    end: int


class Rows(Node[WindowRows]):
    """Windows of rows by reference. `next` blocks until a window is decoded.

    Args:
        num_threads, read_ahead, memory: see `FreeScaleDataLoader`.
    """

    def __init__(
        self,
        source: Units,
        *,
        num_threads: int | None = None,
        read_ahead: int | str = "256MB",
        memory: int | str | None = None,
    ) -> None:
        super().__init__(source)
        self.source: Units = source
        self._threads = integer("num_threads", cores_of_this_rank() if num_threads is None else num_threads, 1)
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="fsdata-decode")
        most = bytes_of(read_ahead, "read_ahead")
        self.read_ahead = read_ahead_of(most) if most and source.remote else None
        self._memory = None if memory is None else bytes_of(memory, "memory")
        self._warned = False
        self.most_bytes = 0
        self._windows: Iterator[Window] = iter(())
        self._to_submit: Iterator[Callable[[], RowRefs]] = iter(())
        self._fetches: Any = None
        self._pending: deque[Future[RowRefs]] = deque()
        self._given: list[ref[Block]] = []
        self._largest = 0  # bytes of a piece
        self._decoded = 0  # planned rows of the windows decoded so far
        self._order: Callable[[Window], np.ndarray] | None = None
        self._error: Exception | None = None  # behind the rows last given

    def place(self) -> Progress:
        return self.source.place_after(self._decoded)

    def on_begin(self, progress: Progress) -> None:
        self.on_end()
        data, epoch = self.source.data, progress.epoch
        self._decoded, self._error = 0, None
        self._order = data.order_of(progress.epoch)
        of_windows, of_pieces = tee(_taken(self.source))  # pieces run ahead of the windows that they belong to
        self._windows = of_windows
        pieces = (piece for window in of_pieces for piece in window.pieces)
        self._fetches = None if self.read_ahead is None else self.read_ahead.over(pieces, of_item=data.fetches_of)
        if self._fetches is None:
            self._to_submit = (partial(data.read, piece, epoch=epoch) for piece in pieces)
        else:
            self._to_submit = (partial(self._fetched, self._fetches, fetch, epoch) for fetch in self._fetches)

    def next(self) -> WindowRows:
        """Raises an error of decoding behind the rows before it. The epoch has to be restarted afterwards."""
        if self._error is not None:
            raise self._error
        window = next(self._windows)
        ahead = max(self._threads, self.source.data.window_units)
        self._submit(ahead + len(window.pieces), needed=len(window.pieces))
        with self.source.data.timing.of("wait_for_decoding"):
            try:
                pieces = [not_the_end("reading", self._pending.popleft().result) for _ in window.pieces]
            except ReadInPart as part:  # in order, of the only piece of this window
                window, _ = window.cut(part.rows.num_rows)
                pieces, self._error = [part.rows], part.error
        sizes = [piece.bytes for piece in pieces]
        self._given = [each for each in self._given if each() is not None]
        self._given += [ref(block) for piece in pieces for block in piece.blocks.of]
        self._largest = max(self._largest, *sizes)
        self._check_memory(sum(sizes))
        found = self._of_window(window, pieces)
        self._decoded += window.rows
        self._submit(ahead)
        return found

    def go_on(self) -> None:
        """Resume decoding ahead if it was paused for lack of memory."""
        if self._memory is not None:
            self._submit(max(self._threads, self.source.data.window_units))

    def note_held(self) -> None:
        """Note peak memory; called when the last rows of a window are about to be released."""
        self.most_bytes = max(self.most_bytes, self._held())

    def on_close(self) -> None:
        self.on_end()
        self._executor.shutdown(cancel_futures=True)
        if self.read_ahead is not None:
            self.read_ahead.close()

    def on_end(self) -> None:
        """Cancel decoding ahead. Running decodes finish on their own. Blocks for requests in flight."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        if self._fetches is not None:
            self._fetches.close()
        self._windows, self._to_submit = iter(()), iter(())

    def _submit(self, limit: int, needed: int = 0) -> None:
        """Submit up to `limit` pieces; those beyond `needed` only if memory allows."""
        # Pieces of the next window are decoded even if memory is full: otherwise the loop would wait for ever.
        while len(self._pending) < limit and (len(self._pending) < needed or self._has_room()):
            work = next(self._to_submit, None)
            if work is None:
                return
            self._pending.append(self._executor.submit(work))

    def _has_room(self) -> bool:
        """Whether memory allows one more piece, assuming that none is larger than those before."""
        if self._memory is None:
            return True
        # The size of a running decode is not known yet: the largest piece so far is its estimate.
        coming = 1 + sum(not future.done() for future in self._pending)
        return self._largest > 0 and self._held() + coming * self._largest <= self._memory

    def _held(self) -> int:
        """Bytes of blocks that wait, and of returned blocks that are still referred to."""
        blocks = {block for each in self._given if (block := each()) is not None}
        for future in self._pending:
            if future.done() and not future.cancelled() and future.exception() is None:
                blocks.update(future.result().blocks.of)
        return sum(block.bytes for block in blocks)

    def _check_memory(self, window: int) -> None:
        if self._memory is not None and window > self._memory and not self._warned:
            self._warned = True
            _LOG.warning(_TOO_SMALL, self._memory, window)

    def _fetched(self, fetches: Any, fetch: Any, epoch: int) -> RowRefs:
        """Read a piece whose bytes are being fetched, see `fsdata.remote.read_ahead`."""
        data = self.source.data
        try:
            with data.timing.of("fetch"):
                fetch.wait()
            return data.read(fetch.item, fetch.row_groups, epoch=epoch)
        finally:
            fetches.release(fetch)

    def _of_window(self, window: Window, pieces: list[RowRefs]) -> WindowRows:
        rows = concat(pieces)
        end = self._decoded + window.rows
        passed = range(self._decoded + 1, end + 1)
        if self._order is None:
            rows = rows.take(slice(window.start, window.stop))
        else:
            rows = rows.take(self._permuted(window, rows))
        if rows.num_rows == len(alive := rows.alive):
            return WindowRows(rows, passed, end)
        passed_by = np.asarray(passed)[alive]
        if len(alive):
            # Dropped rows at the end of a unit are passed with its last other row: by unit, not by window, so a
            # state does not depend on which small units were decoded together.
            ends = np.array([window.rows])
            if self._order is None and len(window.pieces) == 1:
                ends = np.minimum(self.source.data.unit_ends(window.pieces[0]) - window.start, window.rows)
            unit = np.searchsorted(ends, alive, side="right")
            last = np.append(unit[1:] != unit[:-1], True)
            passed_by[last] = self._decoded + ends[unit[last]]
        return WindowRows(rows.take(alive), passed_by, end)

    def _permuted(self, window: Window, rows: RowRefs) -> np.ndarray:
        """int64 [rows of the window]: permutation of `rows`, which are those of all its pieces."""
        assert self._order is not None
        order = self._order(window)
        if self.source.data.bucket is not None:  # stable: within a bucket the order stays random
            alive = rows.alive
            bucket = np.zeros(rows.num_rows, np.int64)
            bucket[alive] = self.source.data.bucket(rows.take(alive))
            order = order[np.argsort(bucket[order], kind="stable")]
        return order[window.start : window.stop]


def _taken(units: Units) -> Iterator[Window]:
    while True:
        try:
            window = units.next()
        except StopIteration:
            return
        yield window
