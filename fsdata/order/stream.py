"""What one rank reads of an epoch, in order: windows of pieces of units, kept in arrays.

An epoch may have millions of units, and every rank computes the stream of every rank: a piece costs 24
bytes and its window 32, and no Python object before it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a unit; or all rows of it and of the units `more`, in this order, decoded at once."""

    unit: int
    start: int
    stop: int
    more: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """Rows [start, stop) of the pieces' rows, which are permuted first if the epoch is shuffled."""

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
    """K windows of P pieces. Iterating makes the windows, one at a time.

    Attributes:
        unit, start, stop: int64[P]; streams may share them, with pieces that belong to others.
        begins, ends: int64[K] the pieces of each window.
        first, last: int64[K] which of the rows of its pieces a window gives.
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
            here = slice(self.begins[window], self.ends[window])
            of = (array[here].tolist() for array in (self.unit, self.start, self.stop))
            pieces = tuple(Piece(*piece) for piece in zip(*of, strict=True))
            yield Window(pieces, int(self.first[window]), int(self.last[window]))

    def of(self, windows: np.ndarray | slice, start: np.ndarray, stop: np.ndarray) -> "Stream":
        """Some of the windows, and of the rows that each gives only [start, stop)."""
        first = self.first[windows]
        return replace(
            self, begins=self.begins[windows], ends=self.ends[windows], first=first + start, last=first + stop
        )

    def after(self, position: int) -> "Stream":
        """The stream without its first `position` rows."""
        rows = self.last - self.first
        passed = np.cumsum(rows)
        window = int(np.searchsorted(passed, position, "right"))
        start = np.zeros(len(self) - window, np.int64)
        start[:1] = position - (passed[window - 1] if window else 0)
        return self.of(slice(window, None), start, rows[window:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmallUnits:
    """Which of U units are decoded together with their neighbours: to decode a unit costs as much as many rows.

    Attributes:
        file: int64 [U], equal numbers for small units that can be decoded together, -1 for others.
        share: float64 [U], of a small unit in what is decoded at once; 0 for others.
        rows: int64 [U].
    """

    file: np.ndarray
    share: np.ndarray
    rows: np.ndarray


def coalesced(stream: Stream, small: SmallUnits) -> Iterator[Window]:
    """The rows of a stream whose windows have one piece each, in order: whole small units that follow each other and
    can be decoded together become one piece. The first window stays as it is, as the first batch waits for it."""
    unit = stream.unit[stream.begins]
    whole = (stream.start[stream.begins] + stream.first == 0) & (stream.last - stream.first == small.rows[unit])
    file = np.where(whole, small.file[unit], -1)
    file[:1] = -1
    share = np.where(file < 0, 0.0, small.share[unit])
    number = np.floor(np.cumsum(share) - share)  # a piece begins where a whole number of shares has been reached
    continues = (file[1:] >= 0) & (file[1:] == file[:-1]) & (number[1:] == number[:-1])
    begins = np.flatnonzero(np.append(len(stream) > 0, ~continues))
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
    """All windows of all streams: the first of each, then the second of each."""
    order = np.argsort(np.concatenate([np.arange(len(stream)) for stream in streams]), kind="stable")
    return _in_order(streams, order)


def one_after_another(streams: Sequence[Stream]) -> Stream:
    """All windows of the first stream, then those of the second."""
    return _in_order(streams, np.arange(sum(map(len, streams))))


def compact(stream: Stream) -> Stream:
    """The same windows, without pieces that belong to others."""
    counts = stream.ends - stream.begins
    ends = np.cumsum(counts)
    pieces = np.repeat(stream.begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    of = {name: getattr(stream, name)[pieces] for name in ("unit", "start", "stop")}
    return replace(stream, **of, begins=ends - counts, ends=ends)


def _in_order(streams: Sequence[Stream], order: np.ndarray) -> Stream:
    """The windows of all streams, in this order of them all."""
    bases = np.cumsum([0, *(len(stream.unit) for stream in streams)])

    def of_all(name: str) -> np.ndarray:
        return np.concatenate([getattr(stream, name) for stream in streams])

    base = np.repeat(bases[:-1], [len(stream) for stream in streams])  # where the pieces of each window's stream begin
    return Stream(
        unit=of_all("unit"),
        start=of_all("start"),
        stop=of_all("stop"),
        begins=(of_all("begins") + base)[order],
        ends=(of_all("ends") + base)[order],
        first=of_all("first")[order],
        last=of_all("last")[order],
    )
