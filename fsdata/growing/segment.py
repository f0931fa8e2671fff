"""A stretch of data that is followed: the row groups of one extension, and what was left of the stretch before.

Units are counted from the beginning of the job and keep their numbers, so that a shuffled window gives its rows in the
same order in whichever stretch they are read. A stretch is dealt like an epoch; what is left of it, less than a global
batch, comes first in the next one.

Letters: U units of the extension, W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsdata.order.deal import deal, permutation
from fsdata.order.stream import Stream, compact, grouped, in_turn, one_after_another

VERSION = 2
FOLLOWS = "a source that is followed"  # why ranks meet in every step
_NONE = np.empty(0, np.int64)
_NOTHING = grouped(_NONE, _NONE, _NONE, 1)


SideFile = tuple[int, str, str]
"""A file of a late side table: number of the join, name, digest of the footer."""


@dataclass(frozen=True, slots=True)
class FileAt:
    """A file by its name and the digest of its footer in hex; `sides`: where the matches of its rows are."""

    name: str
    digest: str
    sides: tuple[SideFile, ...] = ()

    def state(self) -> list[Any]:
        return [self.name, self.digest, *([list(map(list, self.sides))] if self.sides else [])]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> "FileAt":
        name, digest, *sides = state
        of = tuple((int(join), str(file), str(its)) for join, file, its in (sides[0] if sides else ()))
        return cls(str(name), str(digest), of)


@dataclass(frozen=True, slots=True)
class UnitAt:
    """Where a unit of an earlier extension is: a row group of a file of the segment."""

    unit: int
    file: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """What is read between two extensions.

    Attributes:
        number: of the extension, from 0.
        first_unit: the number of its first unit.
        files: some with rows that were left, then those of the extension, in order.
        rows: of the extension's files, rows of every row group, 0 if it is left out.
        rest: the windows that were left.
        rest_units: where their units are.
        seen: which files were read, see `fsdata.growing.watermark`; JSON-able.
    """

    number: int
    first_unit: int
    files: tuple[FileAt, ...]
    rows: tuple[tuple[int, ...], ...]
    rest: Stream = field(repr=False)
    rest_units: tuple[UnitAt, ...]
    seen: dict[str, Any]

    @property
    def new_units(self) -> list[tuple[UnitAt, int]]:
        """The units of the extension and their rows."""
        old = len(self.files) - len(self.rows)
        there = [(old + n, group, rows) for n, of in enumerate(self.rows) for group, rows in enumerate(of) if rows]
        return [(UnitAt(self.first_unit + n, file, group), rows) for n, (file, group, rows) in enumerate(there)]

    def streams(self, world_size: int, *, shuffle: bool, shuffle_window: int, seed: int) -> list[Stream]:
        """Every rank's stream."""
        unit_rows = np.array([rows for of in self.rows for rows in of if rows], np.int64)
        count, left = len(unit_rows), len(self.rest)
        order = permutation(count, seed, 0, 3, self.number) if shuffle else np.arange(count)
        rows = np.concatenate([self.rest.last - self.rest.first, unit_rows[order]])
        size = shuffle_window if shuffle else 1
        streams = []
        for hand in deal(rows, world_size):
            of_rest = hand.span < left
            span, start, stop = (of[~of_rest] for of in hand)
            new = grouped(self.first_unit + order[span - left], start, stop, size)
            streams.append(one_after_another([self.rest.of(*(of[of_rest] for of in hand)), new]))
        return streams

    def state(self) -> dict[str, Any]:
        """JSON-able; see `of_state`."""
        return {
            "version": VERSION,
            "number": self.number,
            "first_unit": self.first_unit,
            "files": [file.state() for file in self.files],
            "rows": [list(rows) for rows in self.rows],
            "rest": [
                [window.start, window.stop, [[piece.unit, piece.start, piece.stop] for piece in window.pieces]]
                for window in self.rest
            ],
            "rest_units": [[at.unit, at.file, at.group] for at in self.rest_units],
            "seen": self.seen,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Segment":
        """Raises KeyError, TypeError or ValueError if it is not one."""
        if state["version"] != VERSION:
            raise ValueError(f"a place in data that grows of version {state['version']}, this one reads {VERSION}")
        windows = [(int(first), int(last), pieces) for first, last, pieces in state["rest"]]
        pieces = np.array([piece for _, _, of in windows for piece in of], np.int64).reshape(-1, 3).T
        ends = np.cumsum([len(of) for _, _, of in windows], dtype=np.int64)
        rest = Stream(
            unit=pieces[0],
            start=pieces[1],
            stop=pieces[2],
            begins=ends - np.array([len(of) for _, _, of in windows], np.int64),
            ends=ends,
            first=np.array([first for first, _, _ in windows], np.int64),
            last=np.array([last for _, last, _ in windows], np.int64),
        )
        return cls(
            number=int(state["number"]),
            first_unit=int(state["first_unit"]),
            files=tuple(map(FileAt.of_state, state["files"])),
            rows=tuple(tuple(map(int, rows)) for rows in state["rows"]),
            rest=rest,
            rest_units=tuple(UnitAt(int(unit), int(file), int(group)) for unit, file, group in state["rest_units"]),
            seen=dict(state["seen"]),
        )


def rest_of(streams: Sequence[Stream]) -> Stream:
    """What every rank has left, as one stream."""
    return compact(in_turn(streams)) if streams else _NOTHING
