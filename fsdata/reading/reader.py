"""One rank's rows of an epoch, in the plan's order, decoded ahead by threads."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np

from fsdata.reading.plan import Piece, Stream, Window
from fsdata.reading.unit_reader import PieceRows
from fsdata.rows import RowTable, concat, empty


@dataclass(frozen=True, slots=True)
class _Open:
    """A decoded window: the rows still to come.

    order: int64 [n], table rows in the order in which they are yielded. passed: int64 [n], rows of the window's plan
    that are passed once the row has been yielded. Rows that were dropped while reading appear in neither.
    """

    table: RowTable
    order: np.ndarray
    passed: np.ndarray


class Reader:
    """Yields a stream's rows by number; `position` counts the planned rows passed, dropped ones included.

    Args:
        stream: what is left to read; `position` starts at 0.
        read: decodes a piece, called in `executor`.
        order: the permutation of a window's rows, or None to keep them in order.
        executor: decodes up to `ahead` pieces beyond the window being read.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        read: Callable[[Piece], PieceRows],
        order: Callable[[Window], np.ndarray] | None,
        itemsize: np.ndarray,
        executor: Executor,
        ahead: int,
    ) -> None:
        if order is None:
            stream = tuple(_only_needed(window) for window in stream)
        self.position = 0
        self._order = order
        self._read = read
        self._itemsize = itemsize
        self._executor = executor
        self._ahead = ahead
        self._windows = deque(stream)
        self._to_submit: Iterator[Piece] = iter([piece for window in stream for piece in window.pieces])
        self._pending: deque[Future[PieceRows]] = deque()
        self._open: _Open | None = None
        self._at = 0
        self._window_start = 0
        self._window_rows = 0

    def take(self, count: int) -> RowTable:
        """The next `count` rows, fewer only at the end of the stream. Blocks until they are decoded.

        Raises what decoding raised, at the first row concerned; the reader is of no use afterwards.
        """
        parts: list[RowTable] = []
        while count > 0:
            current = self._current()
            if current is None:
                break
            rows = current.order[self._at : self._at + count]
            parts.append(current.table.take(rows))
            self._at += len(rows)
            count -= len(rows)
            self.position = self._window_start + int(current.passed[self._at - 1])
            self._close_if_done(current)
        return concat(parts) if parts else empty(self._itemsize)

    def close(self) -> None:
        """Forget what has not been decoded yet; running decodes end by themselves."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._windows.clear()
        self._to_submit = iter(())
        self._open = None

    def _current(self) -> _Open | None:
        """The window that has rows left, or None at the end."""
        while self._open is None:
            if not self._windows:
                return None
            window = self._windows.popleft()
            self._submit(self._ahead + len(window.pieces))
            pieces = [self._pending.popleft().result() for _ in window.pieces]
            self._submit(self._ahead)
            self._window_rows = window.rows
            self._open, self._at = self._opened(window, pieces), 0
            self._close_if_done(self._open)
        return self._open

    def _close_if_done(self, current: _Open) -> None:
        if self._at == len(current.order):
            self._open = None
            self._window_start += self._window_rows
            self.position = self._window_start

    def _submit(self, limit: int) -> None:
        while len(self._pending) < limit:
            piece = next(self._to_submit, None)
            if piece is None:
                return
            self._pending.append(self._executor.submit(self._read, piece))

    def _opened(self, window: Window, pieces: list[PieceRows]) -> _Open:
        planned = sum(piece.rows for piece in window.pieces)
        order = np.arange(planned) if self._order is None else self._order(window)
        order = order[window.start : window.stop]
        passed = np.arange(1, window.rows + 1)
        table = concat([piece.table for piece in pieces])
        if table.num_rows < planned:
            row_of = np.full(planned, -1)
            row_of[_kept(window, pieces)] = np.arange(table.num_rows)
            alive = row_of[order] >= 0
            order, passed = row_of[order[alive]], passed[alive]
        return _Open(table, order, passed)


def _kept(window: Window, pieces: list[PieceRows]) -> np.ndarray:
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
