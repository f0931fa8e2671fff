"""The rows of a folder that grows, segment by segment."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsdata.decode.opened_source import OpenSource
from fsdata.decode.source_files import RowGroup
from fsdata.errors import SchemaError, StateError
from fsdata.follow.watcher import Watcher
from fsdata.order.mix import RowRange, Unit
from fsdata.order.progress import Progress
from fsdata.order.segment import Segment, UnitAt, rest_of
from fsdata.order.stream import Stream
from fsdata.schema import Schema
from fsdata.sources import ParquetSource
from fsdata.steps.dataset import Dataset
from fsdata.steps.unit_reader import piece_reader

_PATIENCE_S = 10.0  # for a file that rank 0 sees and this rank does not yet


class FollowedData(Dataset):
    """A `Dataset` of one source that is followed. `enter` a segment before its rows are read."""

    def __init__(self, source: OpenSource, given: ParquetSource, schema: Schema, **order: Any) -> None:
        super().__init__([source], schema, mix="sequential", **order)
        del self.fingerprint["rows"]
        self._source = source
        self._time_column = _time_column(given, schema)
        self._segment: Segment | None = None
        self._numbers: dict[tuple[str, str], int] = {}  # (name, digest) -> file
        self._places: dict[int, int] = {}  # unit -> row group of the source
        self._read = piece_reader([source], self.layout, _Units(source, self._places), None)

    def watcher(self, seen: Mapping[str, Any] | None) -> Watcher:
        """What looks for further files; see there."""
        return Watcher(self._source.opened, self._time_column, seen)

    def enter(self, segment: Segment) -> None:
        """Open the files of a segment, those that are not open yet. Blocks.

        Raises: as `OpenSource.extend`.
        """
        if segment is self._segment:
            return
        missing = [file for file in segment.files if file not in self._numbers]
        if missing:
            first = len(self._source.files)
            self._open(missing)
            self._numbers |= {file: first + n for n, file in enumerate(missing)}
        groups, numbers = self._source.groups, [self._numbers[file] for file in segment.files]
        places = {}
        for at in segment.rest_units:
            found = [place for place in groups.of_file(numbers[at.file]) if groups[place].index == at.group]
            if not found:
                raise StateError(f"{segment.files[at.file][0]}: no row group {at.group}, where the state is")
            places[at.unit] = found[0]
        new = [place for number in numbers[segment.old :] for place in groups.of_file(number)]
        places |= {segment.first_unit + n: place for n, place in enumerate(new)}
        self._places.clear()
        self._places |= places
        self._unit_rows = groups.row_counts[new]
        self._segment = segment

    def extended(
        self, progress: Progress, files: Sequence[tuple[str, str]], seen: Mapping[str, Any], world_size: int
    ) -> Progress:
        """The first place of the segment of these files, in which what `progress` has left comes first."""
        before = progress.segment
        rest = rest_of(self.streams(progress, world_size)) if before is not None else rest_of([])
        groups = {unit: self._group(unit) for unit in np.unique(rest.unit).tolist()}
        by_number = {number: file for file, number in self._numbers.items()}
        numbers = sorted({group.file for group in groups.values()})
        segment = Segment(
            number=0 if before is None else before.number + 1,
            first_unit=0 if before is None else before.first_unit + len(self._unit_rows),
            files=(*(by_number[number] for number in numbers), *files),
            old=len(numbers),
            rest=rest,
            rest_units=tuple(UnitAt(unit, numbers.index(group.file), group.index) for unit, group in groups.items()),
            seen=dict(seen),
        )
        return progress.extended(segment, world_size)

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """What every rank still has to read of the segment, which was entered."""
        assert progress.segment is not None
        first = progress.segment.streams(
            self._unit_rows,
            progress.first_world_size,
            shuffle=self._shuffle,
            shuffle_window=self._shuffle_window,
            seed=self._seed,
        )
        return self._left(first, progress, world_size)

    def _group(self, unit: int) -> RowGroup:
        return self._source.groups[self._places[unit]]

    def _open(self, files: Sequence[tuple[str, str]]) -> None:
        names, digests = zip(*files, strict=True)
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._source.extend(names, digests)
            except FileNotFoundError as error:
                if time.monotonic() > end:
                    error.add_note("it has not been read yet: files may be removed when all of their rows were read")
                    raise
                time.sleep(0.5)


class _Units:
    """The units of the segment, by number."""

    def __init__(self, source: OpenSource, places: Mapping[int, int]) -> None:
        self._source = source
        self._places = places

    def __getitem__(self, number: int) -> Unit:
        place = self._places[number]
        rows = int(self._source.groups.row_counts[place])
        return Unit((RowRange(0, place, 0, rows, 0),))


def _time_column(source: ParquetSource, schema: Schema) -> str | None:
    assert source.follow is not None
    if source.follow.by == "path":
        return None
    column = None if schema.time is None else source.columns.get(schema.time, schema.time)
    if not isinstance(column, str):
        raise SchemaError(f"Follow(by='time') goes by Schema(time=...), which has to be a column, got {column!r}")
    return column
