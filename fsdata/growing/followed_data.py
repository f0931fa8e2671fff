"""The rows of a followed source, segment by segment, on every rank.

The source numbers its files in the order in which this process has opened them, which is another one after a resume.
So states, and what ranks send, refer to files of the segment; here they are mapped to files of the source.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fsdata.decode.opened_source import OpenSource
from fsdata.decode.readers.row_groups import RowGroups
from fsdata.errors import CorruptFileError, SchemaError
from fsdata.growing.growing_files import GrowingFiles
from fsdata.growing.late import LateTable
from fsdata.growing.late_side import LateSide
from fsdata.growing.segment import FileAt, Segment, UnitAt, rest_of
from fsdata.growing.watcher import Watcher, seen_after
from fsdata.nodes.dataset import Dataset, left_of
from fsdata.order.mix import RowRange, Unit
from fsdata.order.progress import Progress
from fsdata.order.stream import Stream, compact
from fsdata.schema import Schema
from fsdata.sources import ParquetSource

_PATIENCE_S = 10.0  # for a file that rank 0 has seen whole, and this rank does not see yet


class FollowedData(Dataset):
    """A `Dataset` of one followed source. Call `enter` with a position before rows behind it are read."""

    followed = True
    segment_of = staticmethod(Segment.from_state)

    def __init__(self, source: OpenSource, given: ParquetSource, schema: Schema, **order: Any) -> None:
        if order["shuffle"] and isinstance(order["shuffle_window"], float):
            raise ValueError(
                f"shuffle_window={order['shuffle_window']!r} is a share of the epoch, but a followed source has no "
                "end: give a number of row groups"
            )
        super().__init__([source], schema, mix="sequential", **order)
        del self.fingerprint["rows"]  # a state is valid for a folder that has grown
        self._source = source
        assert isinstance(source.opened, GrowingFiles)
        self._files = source.opened
        late = [stage for stage in source.stages if isinstance(stage, LateSide)]
        # Late side tables by the number of their join, as in a state.
        joins = enumerate(source.attached)
        self._late = {number: stage for number, table in joins for stage in late if stage.empty is table}
        self._time_column = _time_column(given, schema)
        self._numbers: dict[FileAt, int] = {}  # file of the segment -> number of the file in the source
        self._groups_of_units: dict[int, int] = {}  # unit -> number of its row group in the source
        self._units = _UnitsOfSegment(source, self._groups_of_units)

    def watcher(self, seen: Mapping[str, Any] | None) -> Watcher:
        """A `Watcher` of the source. seen: `Segment.seen`."""
        late = [LateTable(number, side.empty.join, self._files, side.files) for number, side in self._late.items()]
        return Watcher(self._files, self._time_column, seen, late)

    def enter(self, progress: Progress, world_size: int) -> None:
        """Open the files with rows behind this position, unless they are open. Blocks.

        Raises: as `GrowingFiles.extend` and `OpenSource.changing`.
        """
        segment = progress.segment
        assert segment is not None
        needed = {unit for stream in self.streams(progress, world_size) for unit in compact(stream).unit.tolist()}
        units = [at for at in (*segment.rest_units, *(at for at, _ in segment.new_units)) if at.unit in needed]
        self._open([segment.files[number] for number in sorted({at.file for at in units})])
        files = {at: segment.files[at] for at in dict.fromkeys(at.file for at in units)}
        for number, table in self._late.items():
            sides = {
                self._numbers[file]: [(name, digest) for join, name, digest in file.sides if join == number]
                for file in files.values()
            }
            _wait_until_visible(partial(table.enter, sides))
        groups = self._groups()
        group_at: dict[tuple[int, int], int] = {}  # file of the segment, index of the row group in it
        for at, file in files.items():
            group_at |= {(at, groups[group].index): group for group in groups.of_file(self._numbers[file])}
        # In place: the functions that decode pieces hold this dict.
        self._groups_of_units.clear()
        self._groups_of_units |= {at.unit: group_at[at.file, at.group] for at in units}

    def extended(
        self, progress: Progress, files: Sequence[FileAt], change: Mapping[str, Any], world_size: int
    ) -> Progress:
        """The first position of the next segment: the rows left behind `progress`, then `files`. Opens these files.

        change: `News.seen`.
        """
        before = progress.segment
        rest = rest_of(self.streams(progress, world_size)) if before is not None else rest_of([])
        self._open(files)
        groups = self._groups()
        left = {unit: groups[self._groups_of_units[unit]] for unit in np.unique(rest.unit).tolist()}
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
        self._numbers = {file: self._numbers[file] for file in segment.files}  # forgets files without rows left
        return progress.extended(segment, world_size)

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """The rows of the segment that every rank has still to read."""
        assert progress.segment is not None
        first = progress.segment.streams(
            progress.first_world_size, shuffle=self._shuffle, shuffle_window=int(self._shuffle_window), seed=self._seed
        )
        return left_of(progress.streams(first, world_size), progress)

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

        _wait_until_visible(extend)
        self._numbers |= {file: first + n for n, file in enumerate(missing)}


def _wait_until_visible(open_files: Callable[[], None]) -> None:
    """Call `open_files` until it succeeds, for files that rank 0 has seen whole.

    A network file system may show a new file to other hosts some seconds later, or with an old size.

    Raises: the last error of `open_files`.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return open_files()
        except (FileNotFoundError, CorruptFileError) as error:
            if time.monotonic() > end:
                if isinstance(error, FileNotFoundError):
                    error.add_note("it has not been read yet: files may be removed after all of their rows were read")
                raise
            time.sleep(0.5)


class _UnitsOfSegment:
    """The units of the segment, by number. groups: unit -> number of its row group in the source."""

    def __init__(self, source: OpenSource, groups: Mapping[int, int]) -> None:
        self._source = source
        self._groups = groups

    def __getitem__(self, number: int) -> Unit:
        group = self._groups[number]
        rows = int(self._source.groups.row_counts[group])
        return Unit((RowRange(0, group, 0, rows, 0),))


def _time_column(source: ParquetSource, schema: Schema) -> str | None:
    assert source.follow is not None
    if source.follow.by_path:
        return None
    column = None if schema.time is None else source.columns.get(schema.time, schema.time)
    if not isinstance(column, str):
        raise SchemaError(f"Follow(by='time') needs Schema(time=...), which has to be a column, got {column!r}")
    return column
