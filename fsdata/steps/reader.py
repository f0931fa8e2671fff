"""One rank's rows of an epoch, in the plan's order, decoded ahead by threads."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import tee

import numpy as np

from fsdata.decode.block import Rows, SurvivingRows, concat, no_rows
from fsdata.decode.files.read_ahead import Fetch, Fetches
from fsdata.order.stream import Piece, Window
from fsdata.steps.timing import Timing
from fsdata.steps.unit_reader import RowGroups

_LOG = logging.getLogger("fsdata")
_TOO_SMALL = (
    "memory=%d bytes are less than the %d bytes of the rows that are shuffled together, which are held all the same. "
    "Give more, or a smaller shuffle_window"
)


class Memory:
    """Bytes of the rows that one rank has decoded and not yielded yet.

    Attributes:
        limit: see `FreeScaleDataLoader`. most: that were held so far.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.most = 0
        self._told = False

    def count(self, held: int, window: int = 0) -> None:
        """held: bytes now. window: of them, those of the window in use, which is held whatever the limit is."""
        self.most = max(self.most, held)
        if self.limit is not None and window > self.limit and not self._told:
            self._told = True
            _LOG.warning(_TOO_SMALL, self.limit, window)


@dataclass(slots=True)
class _Open:
    """Decoded rows still to come, in the order in which they are yielded.

    passed: int64 [n], or a range, the reader's position once the row has been yielded. Rows that were dropped while
    reading appear in neither. start: the first that has not been yielded.
    """

    rows: Rows
    passed: np.ndarray | range
    start: int = 0


class Reader:
    """Yields a stream's rows by number; `position` counts the planned rows passed, dropped ones included.

    Args:
        windows: what is left to read; `position` starts at 0.
        read: decodes a piece, called in `executor`, from the row groups that were read ahead for it.
        fetch_ahead: reads row groups ahead; None leaves it to `read`.
        order: the permutation of a window's rows, or None to keep them in order.
        group: rows -> int64 [n], a number for each; permuted rows of a window come in the order of their numbers.
        executor: decodes up to `ahead` pieces beyond the window being read, fewer where `memory` has a limit.
        timing: where the time that reading and waiting take is counted.
    """

    def __init__(
        self,
        windows: Iterable[Window],
        *,
        read: Callable[[Piece, RowGroups], SurvivingRows],
        fetch_ahead: Callable[[Iterator[Piece]], Fetches[Piece]] | None = None,
        order: Callable[[Window], np.ndarray] | None,
        group: Callable[[Rows], np.ndarray] | None = None,
        fields: int,
        executor: Executor,
        ahead: int,
        timing: Timing,
        memory: Memory | None = None,
    ) -> None:
        if order is None:
            windows = map(_only_needed, windows)
        self.position = 0
        self.timing = timing
        self._order = order
        self._group = group
        self._read = read
        self._fields = fields
        self._executor = executor
        self._ahead = ahead
        self._memory = memory or Memory()
        self._largest = 0  # bytes of a piece
        of_windows, of_pieces = tee(windows)
        self._windows: Iterator[Window] = of_windows
        pieces = (piece for window in of_pieces for piece in window.pieces)
        self._fetches = fetch_ahead(pieces) if fetch_ahead else None
        self._to_submit: Iterator[Callable[[], SurvivingRows]]
        if self._fetches is None:
            self._to_submit = (partial(self._decoded_piece, piece, ()) for piece in pieces)
        else:
            self._to_submit = (partial(self._fetched_piece, self._fetches, fetch) for fetch in self._fetches)
        self._pending: deque[Future[SurvivingRows]] = deque()
        self._open: deque[_Open] = deque()
        self._decoded = 0  # planned rows of the windows decoded so far
        self._before = 0  # position before the last take
        self._passed: list[np.ndarray] = []  # positions after each row of the last take, part by part

    def take(self, count: int) -> Rows:
        """The next `count` rows, fewer only at the end of the stream. Blocks until they are decoded.

        Raises what decoding raised, at the first row concerned; the reader is of no use afterwards.
        """
        parts: list[Rows] = []
        self._before, self._passed = self.position, []
        if self._memory.limit is not None:
            self._submit(self._ahead)  # what was held may be gone
        while count > 0 and self._decode():
            opened = self._open[0]
            start, stop = opened.start, min(opened.start + count, opened.rows.num_rows)
            opened.start = stop
            if stop == opened.rows.num_rows:
                self._memory.count(self._held())
                self._open.popleft()
            parts.append(opened.rows.take(slice(start, stop)))
            self._passed.append(np.asarray(opened.passed[start:stop]))
            count -= stop - start
            self.position = int(opened.passed[stop - 1])
        return concat(parts) if parts else no_rows(self._fields)

    def put_back(self, rows: Rows) -> None:
        """Yield `rows`, the last ones of the last take, again: `take` begins with them, `position` is before them."""
        passed = np.concatenate([[self._before], *self._passed])
        if len(passed) > 1:
            passed[-1] = self.position
        first = len(passed) - rows.num_rows
        if rows.num_rows:
            self._open.appendleft(_Open(rows, passed[first:]))
        self._passed = [passed[1:first]]
        self.position = int(passed[first - 1])

    def close(self) -> None:
        """Forget what has not been decoded yet; running decodes end by themselves. Blocks for requests under way."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        if self._fetches is not None:
            self._fetches.close()
        self._windows = iter(())
        self._to_submit = iter(())
        self._open.clear()

    def _decode(self) -> bool:
        """Open windows until there are rows; whether there are."""
        while not self._open and (window := next(self._windows, None)) is not None:
            self._submit(self._ahead + len(window.pieces), needed=len(window.pieces))
            with self.timing.of("wait_for_decoding"):
                pieces = [self._pending.popleft().result() for _ in window.pieces]
            sizes = [piece.rows.bytes for piece in pieces]
            self._largest = max(self._largest, *sizes)
            opened = self._opened(window, pieces)
            self._decoded += window.rows
            if opened.rows.num_rows:
                self._open.append(opened)
            else:
                self.position = self._decoded
            self._memory.count(self._held(), sum(sizes))
            self._submit(self._ahead)
        return bool(self._open)

    def _submit(self, limit: int, needed: int = 0) -> None:
        """Have `limit` pieces decoded; beyond those that are `needed`, as long as there is room for them."""
        while len(self._pending) < limit and (len(self._pending) < needed or self._has_room()):
            work = next(self._to_submit, None)
            if work is None:
                return
            self._pending.append(self._executor.submit(work))

    def _has_room(self) -> bool:
        """Whether one more piece fits into memory, and those that are being decoded, if none is larger than before."""
        limit = self._memory.limit
        if limit is None:
            return True
        coming = 1 + sum(not future.done() for future in self._pending)
        return self._largest > 0 and self._held() + coming * self._largest <= limit

    def _held(self) -> int:
        """Bytes of all rows decoded."""
        blocks = {block for opened in self._open for block in opened.rows.blocks.of}
        for future in self._pending:
            if future.done() and not future.cancelled() and future.exception() is None:
                blocks.update(future.result().rows.blocks.of)
        return sum(block.bytes for block in blocks)

    def _fetched_piece(self, fetches: Fetches[Piece], fetch: Fetch[Piece]) -> SurvivingRows:
        try:
            with self.timing.of("fetch"):
                fetch.wait()
            return self._decoded_piece(fetch.item, fetch.row_groups)
        finally:
            fetches.release(fetch)

    def _decoded_piece(self, piece: Piece, row_groups: RowGroups) -> SurvivingRows:
        with self.timing.of("decode"):
            return self._read(piece, row_groups)

    def _opened(self, window: Window, pieces: list[SurvivingRows]) -> _Open:
        planned = sum(piece.rows for piece in window.pieces)
        rows = concat([piece.rows for piece in pieces])
        passed = range(self._decoded + 1, self._decoded + window.rows + 1)
        if self._order is None and self._group is None and rows.num_rows == planned:
            return _Open(rows.take(slice(window.start, window.stop)), passed)
        order = np.arange(planned) if self._order is None else self._order(window)
        kept = _kept(window, pieces) if rows.num_rows < planned else None
        if self._group is not None:
            numbers = np.zeros(planned, np.int64)
            numbers[slice(None) if kept is None else kept] = self._group(rows)
            order = order[np.argsort(numbers[order], kind="stable")]
        order = order[window.start : window.stop]
        if kept is None:
            return _Open(rows.take(order), passed)
        row_of = np.full(planned, -1)
        row_of[kept] = np.arange(rows.num_rows)
        alive = row_of[order] >= 0
        passed_by = np.asarray(passed)[alive]
        passed_by[-1:] = self._decoded + window.rows  # rows dropped at the end are passed with the last one that lives
        return _Open(rows.take(row_of[order[alive]]), passed_by)


def _kept(window: Window, pieces: list[SurvivingRows]) -> np.ndarray:
    """Which of the window's planned rows survived."""
    kept, first = [], 0
    for piece, rows in zip(window.pieces, pieces, strict=True):
        kept.append(first + (np.arange(piece.rows) if rows.kept is None else rows.kept))
        first += piece.rows
    return np.concatenate(kept)


def _only_needed(window: Window) -> Window:
    """The same rows in order, without those of the pieces that lie outside [start, stop)."""
    pieces, skip, left = [], window.start, window.rows
    for piece in window.pieces:
        start = min(skip, piece.rows)
        rows = min(piece.rows - start, left)
        if rows:
            pieces.append(Piece(piece.unit, piece.start + start, piece.start + start + rows))
        skip, left = skip - start, left - rows
    return Window(tuple(pieces), 0, window.rows)
