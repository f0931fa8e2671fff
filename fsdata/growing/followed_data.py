"""The rows of a folder that grows, segment by segment."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fsdata.decode.opened_source import OpenSource
from fsdata.decode.row_groups import RowGroups
from fsdata.errors import CorruptFileError, SchemaError
from fsdata.growing.growing_files import GrowingFiles
from fsdata.growing.late import LateTable
from fsdata.growing.late_side import LateSide
from fsdata.growing.segment import FOLLOWS, FileAt, Segment, UnitAt, rest_of
from fsdata.growing.watcher import Watcher, seen_after
from fsdata.nodes.dataset import Dataset
from fsdata.order.mix import RowRange, Unit
from fsdata.order.progress import Progress
from fsdata.order.stream import Stream, compact
from fsdata.schema import Schema
from fsdata.sources import ParquetSource

_PATIENCE_S = 10.0  # for a file that rank 0 sees whole and this rank does not yet


class FollowedData(Dataset):
    """A `Dataset` of one source that is followed. Enter a place (`enter`) before rows behind it are read."""

    followed = True
    meets = FOLLOWS
    segment_of = staticmethod(Segment.of_state)

    def __init__(self, source: OpenSource, given: ParquetSource, schema: Schema, **order: Any) -> None:
        if order["shuffle"] and isinstance(order["shuffle_window"], float):
            raise ValueError(
                f"shuffle_window={order['shuffle_window']!r} is a share of the epoch, and a source that is followed "
                "has none: give a number of row groups"
            )
        super().__init__([source], schema, mix="sequential", **order)
        del self.fingerprint["rows"]
        self._source = source
        assert isinstance(source.opened, GrowingFiles)
        self._files = source.opened
        late = [stage for stage in source.stages if isinstance(stage, LateSide)]
        numbered = enumerate(source.attached)  # as a state numbers joins
        self._late = {number: stage for number, each in numbered for stage in late if stage.empty is each}
        self._time_column = _time_column(given, schema)
        self._numbers: dict[FileAt, int] = {}  # in the source, of the files of the segment
        self._places: dict[int, int] = {}  # unit -> row group of the source
        self._units = _UnitsOfSegment(source, self._places)

    def watcher(self, seen: Mapping[str, Any] | None) -> Watcher:
        """What looks for further files; see there."""
        late = [LateTable(n, of.empty.join, self._files, of.files) for n, of in self._late.items()]
        return Watcher(self._files, self._time_column, seen, late)

    def enter(self, progress: Progress, world_size: int) -> None:
        """Open the files that hold rows behind this place, those that are not open yet. Blocks.

        Raises: as `GrowingFiles.extend` and `OpenSource.changing`.
        """
        segment = progress.segment
        assert segment is not None
        needed = {unit for stream in self.streams(progress, world_size) for unit in compact(stream).unit.tolist()}
        units = [at for at in (*segment.rest_units, *(at for at, _ in segment.new_units)) if at.unit in needed]
        self._open([segment.files[number] for number in sorted({at.file for at in units})])
        sides = {self._numbers[file]: file.sides for file in dict.fromkeys(segment.files[at.file] for at in units)}
        for number, table in self._late.items():
            of = {file: [side[1:] for side in each if side[0] == number] for file, each in sides.items()}
            _when_it_is_seen(partial(table.enter, of))
        groups = self._groups()
        places: dict[tuple[int, int], int] = {}
        for file in dict.fromkeys(at.file for at in units):
            number = self._numbers[segment.files[file]]
            places |= {(file, groups[place].index): place for place in groups.of_file(number)}
        self._places.clear()
        self._places |= {at.unit: places[at.file, at.group] for at in units}

    def extended(
        self, progress: Progress, files: Sequence[FileAt], change: Mapping[str, Any], world_size: int
    ) -> Progress:
        """The first place of the segment of these files, in which what `progress` has left comes first. Opens them.

        change: `News.seen`.
        """
        before = progress.segment
        rest = rest_of(self.streams(progress, world_size)) if before is not None else rest_of([])
        self._open(files)
        groups = self._groups()
        left = {unit: groups[self._places[unit]] for unit in np.unique(rest.unit).tolist()}
        by_number = {number: file for file, number in self._numbers.items()}
        numbers = sorted({group.file for group in left.values()})
        segment = Segment(
            number=0 if before is None else before.number + 1,
            first_unit=0 if before is None else before.first_unit + len(before.new_units),
            files=(*(by_number[number] for number in numbers), *files),
            rows=tuple(groups.rows_of(self._numbers[file]) for file in files),
            rest=rest,
            rest_units=tuple(UnitAt(unit, numbers.index(group.file), group.index) for unit, group in left.items()),
            seen=seen_after(None if before is None else before.seen, files, change),
        )
        self._numbers = {file: self._numbers[file] for file in segment.files}
        return progress.extended(segment, world_size)

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """What every rank still has to read of the segment."""
        assert progress.segment is not None
        first = progress.segment.streams(
            progress.first_world_size, shuffle=self._shuffle, shuffle_window=int(self._shuffle_window), seed=self._seed
        )
        return self._left(first, progress, world_size)

    def _groups(self) -> RowGroups:
        groups = self._source.groups
        assert isinstance(groups, RowGroups)
        return groups

    def _open(self, files: Sequence[FileAt]) -> None:
        missing = [file for file in files if file not in self._numbers]
        if not missing:
            return
        first = len(self._source.files)
        names, digests = [file.name for file in missing], [file.digest for file in missing]

        def extend() -> None:
            with self._source.changing(names[0]):
                self._files.extend(names, digests)

        _when_it_is_seen(extend)
        self._numbers |= {file: first + n for n, file in enumerate(missing)}


def _when_it_is_seen(open_files: Callable[[], None]) -> None:
    """Open files that rank 0 has seen whole: for a while, a network file system shows other hosts none, or an old size.

    Raises: what `open_files` raises.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return open_files()
        except (FileNotFoundError, CorruptFileError) as error:
            if time.monotonic() > end:
                if isinstance(error, FileNotFoundError):
                    error.add_note("it has not been read yet: files may be removed when all of their rows were read")
                raise
            time.sleep(0.5)


class _UnitsOfSegment:
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
    if source.follow.by_path:
        return None
    column = None if schema.time is None else source.columns.get(schema.time, schema.time)
    if not isinstance(column, str):
        raise SchemaError(f"Follow(by='time') goes by Schema(time=...), which has to be a column, got {column!r}")
    return column
