"""A segment of followed data: the row groups of one extension, after the rows that were left of the segment before.

A segment is dealt like an epoch. The rows left at its end, less than a global batch, begin the next segment. Units are
numbered from the beginning of the job and keep their numbers, because the order of the rows of a shuffled window
depends on them: it is the same in whichever segment they are read.

Letters: U units of the extension, W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsdata.order.deal import dealt_after, permutation
from fsdata.order.stream import Stream, compact, grouped, in_turn

VERSION = 2

SideFile = tuple[int, str, str]
"""A file of a late side table: number of the join, name, digest of the footer."""


@dataclass(frozen=True, slots=True)
class FileAt:
    """A file by its name and the digest of its footer in hex. sides: the files with the matches of its rows."""

    name: str
    digest: str
    sides: tuple[SideFile, ...] = ()

    def state(self) -> list[Any]:
        return [self.name, self.digest, *([list(map(list, self.sides))] if self.sides else [])]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> "FileAt":
        name, digest, *rest = state
        sides = rest[0] if rest else ()
        return cls(str(name), str(digest), tuple((int(join), str(file), str(hexed)) for join, file, hexed in sides))


@dataclass(frozen=True, slots=True)
class UnitAt:
    """The location of a unit of an earlier extension: a row group of a file of the segment."""

    unit: int
    file: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The rows that are read between two extensions.

    Attributes:
        number: of the extension, from 0.
        first_unit: the number of its first unit.
        files: the files with rows left, then those of the extension, in order.
        rows: for each file of the extension, the rows of every row group; 0 if the group is skipped.
        rest: the windows left of the segment before.
        rest_units: the locations of their units.
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
        first_file = len(self.files) - len(self.rows)
        groups = [
            (file, group, rows)
            for file, rows_of_groups in enumerate(self.rows, start=first_file)
            for group, rows in enumerate(rows_of_groups)
            if rows
        ]
        return [(UnitAt(unit, file, group), rows) for unit, (file, group, rows) in enumerate(groups, self.first_unit)]

    def streams(self, world_size: int, *, shuffle: bool, shuffle_window: int, seed: int) -> list[Stream]:
        """The stream of every rank."""
        unit_rows = np.array([rows for rows_of_groups in self.rows for rows in rows_of_groups if rows], np.int64)
        count = len(unit_rows)
        # 3: no other permutation with this seed has this key, see `fsdata.order.deal`.
        order = permutation(count, seed, 0, 3, self.number) if shuffle else np.arange(count)
        size = shuffle_window if shuffle else 1
        return dealt_after(self.rest, unit_rows, order, first_unit=self.first_unit, size=size, world_size=world_size)

    def state(self) -> dict[str, Any]:
        """JSON-able; see `from_state`."""
        # The units of the extension are not listed: `files` and `rows` give them, in order.
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
    def from_state(cls, state: dict[str, Any]) -> "Segment":
        """Raises KeyError, TypeError or ValueError if `state` is not the state of a segment."""
        if state["version"] != VERSION:
            raise ValueError(
                f"the segment of a followed source has version {state['version']}, this fsdata reads version {VERSION}"
            )
        windows = [(int(first), int(last), pieces) for first, last, pieces in state["rest"]]
        pieces = np.array([piece for _, _, of_window in windows for piece in of_window], np.int64).reshape(-1, 3).T
        counts = np.array([len(of_window) for _, _, of_window in windows], np.int64)
        ends = np.cumsum(counts)
        rest = Stream(
            unit=pieces[0],
            start=pieces[1],
            stop=pieces[2],
            begins=ends - counts,
            ends=ends,
            first=np.array([first for first, _, _ in windows], np.int64),
            last=np.array([last for _, last, _ in windows], np.int64),
        )
        return cls(
            number=int(state["number"]),
            first_unit=int(state["first_unit"]),
            files=tuple(map(FileAt.from_state, state["files"])),
            rows=tuple(tuple(map(int, rows)) for rows in state["rows"]),
            rest=rest,
            rest_units=tuple(UnitAt(int(unit), int(file), int(group)) for unit, file, group in state["rest_units"]),
            seen=dict(state["seen"]),
        )


def rest_of(streams: Sequence[Stream]) -> Stream:
    """The rows left in the streams of all ranks, as one stream. streams: empty before the first segment."""
    none = np.empty(0, np.int64)
    return compact(in_turn(streams)) if streams else grouped(none, none, none, 1)
