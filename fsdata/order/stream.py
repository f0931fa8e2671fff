"""What one rank reads of an epoch, in order: windows of pieces of units, kept in arrays.

An epoch may have millions of units, and every rank computes the stream of every rank: a piece costs 40 bytes, and no
Python object before it is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a unit."""

    unit: int
    start: int
    stop: int

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
        unit, start, stop: int64[P].
        ends: int64[K] pieces before the end of each window.
        first, last: int64[K] which of the rows of its pieces a window gives.
    """

    unit: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def rows(self) -> int:
        return int((self.last - self.first).sum())

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Window]:
        begin = 0
        for window in range(len(self)):
            end = int(self.ends[window])
            of = (array[begin:end].tolist() for array in (self.unit, self.start, self.stop))
            pieces = tuple(Piece(*piece) for piece in zip(*of, strict=True))
            yield Window(pieces, int(self.first[window]), int(self.last[window]))
            begin = end

    def after(self, position: int) -> "Stream":
        """The stream without its first `position` rows."""
        passed = np.cumsum(self.last - self.first)
        window = int(np.searchsorted(passed, position, "right"))
        begin = int(self.ends[window - 1]) if window else 0
        first = self.first[window:].copy()
        if len(first):
            first[0] += position - (int(passed[window - 1]) if window else 0)
        return Stream(
            unit=self.unit[begin:],
            start=self.start[begin:],
            stop=self.stop[begin:],
            ends=self.ends[window:] - begin,
            first=first,
            last=self.last[window:],
        )


def grouped(unit: np.ndarray, start: np.ndarray, stop: np.ndarray, size: int) -> Stream:
    """Windows of `size` whole pieces each; the last one may have fewer."""
    rows = np.concatenate([[0], np.cumsum(stop - start)])
    ends = np.append(np.arange(size, len(unit), size), len(unit)) if len(unit) else np.empty(0, np.int64)
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    first = np.zeros(len(ends), np.int64)
    return Stream(unit=unit, start=start, stop=stop, ends=ends, first=first, last=rows[ends] - rows[begins])


def joined(streams: list[Stream]) -> tuple[Stream, np.ndarray]:
    """All windows of all streams in turn: the first of each, then the second of each. And the ends of their pieces.

    Returns a stream whose `ends` are not in order, and int64[K] the first piece of each window.
    """
    sizes = [len(stream.unit) for stream in streams]
    bases = np.cumsum([0, *sizes])[:-1]
    ends = np.concatenate([base + stream.ends for base, stream in zip(bases, streams, strict=True)])
    begins = np.concatenate(
        [base + np.concatenate([[0], stream.ends])[:-1] for base, stream in zip(bases, streams, strict=True)]
    )
    turn = np.concatenate([np.arange(len(stream)) for stream in streams])
    order = np.argsort(turn, kind="stable")
    whole = Stream(
        unit=np.concatenate([stream.unit for stream in streams]),
        start=np.concatenate([stream.start for stream in streams]),
        stop=np.concatenate([stream.stop for stream in streams]),
        ends=ends[order],
        first=np.concatenate([stream.first for stream in streams])[order],
        last=np.concatenate([stream.last for stream in streams])[order],
    )
    return whole, begins[order]


def chosen(whole: Stream, begins: np.ndarray, windows: np.ndarray, start: np.ndarray, stop: np.ndarray) -> Stream:
    """Of `windows`, numbers into what `joined` gave, rows [start, stop) of those that each has."""
    sizes = whole.ends[windows] - begins[windows]
    ends = np.cumsum(sizes)
    pieces = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins[windows] - (ends - sizes), sizes)
    first = whole.first[windows]
    return Stream(
        unit=whole.unit[pieces],
        start=whole.start[pieces],
        stop=whole.stop[pieces],
        ends=ends,
        first=first + start,
        last=first + stop,
    )
