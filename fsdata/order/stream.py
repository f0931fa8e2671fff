"""The rows that one rank reads in an epoch, in order: windows of pieces of units, stored in arrays.

An epoch may have millions of units, and every rank computes the streams of all ranks. A piece therefore takes 24
bytes and a window 32; Python objects are created only when a window is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a unit. With `more`: all rows of this unit, then of the units `more`, decoded together."""

    unit: int
    start: int
    stop: int
    more: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """Rows [start, stop) of the rows of all its pieces; a shuffled epoch permutes these rows before the cut."""

    pieces: tuple[Piece, ...]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def cut(self, rows: int) -> tuple["Window", "Window"]:
        middle = self.start + rows
        return replace(self, stop=middle), replace(self, start=middle)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """K windows over P pieces. Iterating creates the windows one at a time.

    Attributes:
        unit, start, stop: int64[P]; streams may share these arrays, so they can hold pieces of other streams.
        begins, ends: int64[K], window k has the pieces [begins, ends).
        first, last: int64[K], window k yields the rows [first, last) of the rows of its pieces.
    """

    unit: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def rows(self) -> int:
        return int((self.last - self.first).sum())

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Window]:
        for window in range(len(self)):
            own = slice(self.begins[window], self.ends[window])
            columns = (array[own].tolist() for array in (self.unit, self.start, self.stop))
            pieces = tuple(Piece(*piece) for piece in zip(*columns, strict=True))
            yield Window(pieces, int(self.first[window]), int(self.last[window]))

    def of(self, windows: np.ndarray | slice, start: np.ndarray, stop: np.ndarray) -> "Stream":
        """The given windows, each cut to its rows [start, stop)."""
        # The pieces stay whole: window_order permutes all their rows, so a cut window yields rows in the same order.
        first = self.first[windows]
        return replace(
            self, begins=self.begins[windows], ends=self.ends[windows], first=first + start, last=first + stop
        )

    def after(self, position: int) -> "Stream":
        """The stream without its first `position` rows."""
        rows = self.last - self.first
        passed = np.cumsum(rows)
        # "right": a window that ends exactly at `position` is consumed, and so are empty windows there.
        window = int(np.searchsorted(passed, position, "right"))
        start = np.zeros(len(self) - window, np.int64)
        start[:1] = position - (passed[window - 1] if window else 0)
        return self.of(slice(window, None), start, rows[window:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmallUnits:
    """The small ones of U units. They are decoded together, as the fixed cost of a unit equals that of many rows.

    Attributes:
        file: int64 [U], equal numbers for small units that can be decoded together, -1 for others.
        share: float64 [U], size of a small unit as a share of the largest size decoded at once; 0 for others.
        rows: int64 [U].
    """

    file: np.ndarray
    share: np.ndarray
    rows: np.ndarray


def coalesced(stream: Stream, small: SmallUnits) -> Iterator[Window]:
    """Merges consecutive small units into one piece, in the same order of rows. Windows of `stream` have one piece."""
    unit = stream.unit[stream.begins]
    # After a resume or a new deal a window may start or stop inside its unit; a merged piece has whole units only.
    whole = (stream.start[stream.begins] + stream.first == 0) & (stream.last - stream.first == small.rows[unit])
    file = np.where(whole, small.file[unit], -1)
    file[:1] = -1  # the first batch waits for the first window: do not make it larger
    share = np.where(file < 0, 0.0, small.share[unit])
    number = np.floor(np.cumsum(share) - share)  # the sum of shares passes an integer: the piece is full
    continues = (file[1:] >= 0) & (file[1:] == file[:-1]) & (number[1:] == number[:-1])
    begins = np.flatnonzero(np.append(len(stream) > 0, ~continues))  # an empty stream has no first piece
    windows = iter(stream)
    for count in np.diff(begins, append=len(stream)):
        first = next(windows)
        others = list(islice(windows, int(count) - 1))
        yield _as_one_piece(first, others) if others else first


def _as_one_piece(first: Window, others: Sequence[Window]) -> Window:
    rows = first.rows + sum(window.rows for window in others)
    return Window((Piece(first.pieces[0].unit, 0, rows, tuple(window.pieces[0].unit for window in others)),), 0, rows)


def grouped(unit: np.ndarray, start: np.ndarray, stop: np.ndarray, size: int) -> Stream:
    """Windows of `size` whole pieces each; the last one may have fewer."""
    rows = np.concatenate([[0], np.cumsum(stop - start)])
    begins = np.arange(0, len(unit), size)
    ends = np.minimum(begins + size, len(unit))
    first = np.zeros(len(begins), np.int64)
    return Stream(
        unit=unit, start=start, stop=stop, begins=begins, ends=ends, first=first, last=rows[ends] - rows[begins]
    )


def in_turn(streams: Sequence[Stream]) -> Stream:
    """The windows of all streams, interleaved: the first of each, then the second of each."""
    # A stable sort by the number in the stream: windows of equal number stay in the order of the streams.
    order = np.argsort(np.concatenate([np.arange(len(stream)) for stream in streams]), kind="stable")
    return _in_order(streams, order)


def one_after_another(streams: Sequence[Stream]) -> Stream:
    """All windows of the first stream, then those of the second."""
    return _in_order(streams, np.arange(sum(map(len, streams))))


def compact(stream: Stream) -> Stream:
    """The same windows, with copies of their own pieces only: the shared arrays can be freed."""
    counts = stream.ends - stream.begins
    ends = np.cumsum(counts)
    pieces = np.repeat(stream.begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    own = {name: getattr(stream, name)[pieces] for name in ("unit", "start", "stop")}
    return replace(stream, **own, begins=ends - counts, ends=ends)


def _in_order(streams: Sequence[Stream], order: np.ndarray) -> Stream:
    """The windows of all streams. order: indices into the concatenated windows."""
    bases = np.cumsum([0, *(len(stream.unit) for stream in streams)])

    def of_all(name: str) -> np.ndarray:
        return np.concatenate([getattr(stream, name) for stream in streams])

    base = np.repeat(bases[:-1], [len(stream) for stream in streams])  # first piece of each window's stream
    return Stream(
        unit=of_all("unit"),
        start=of_all("start"),
        stop=of_all("stop"),
        begins=(of_all("begins") + base)[order],
        ends=(of_all("ends") + base)[order],
        first=of_all("first")[order],
        last=of_all("last")[order],
    )
