"""The rows of all sources: the order in which they make an epoch, and how pieces of it are read."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from fsdata.catalog.binding.counted import mixed
from fsdata.decode.block import Block, Column, RowRefs, concat
from fsdata.decode.opened_source import OpenSource, other_forms
from fsdata.decode.readers.open_files import RemoteGroup
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.errors import SchemaError
from fsdata.nodes.times import Times
from fsdata.nodes.timing import Timing
from fsdata.order.deal import epoch_streams, window_order, window_units
from fsdata.order.mix import AllUnits, Keys, Mix, Unit, merge_order, merged_units, sequential_units, weighted_keys
from fsdata.order.progress import Progress, SegmentState
from fsdata.order.stream import Piece, SmallUnits, Stream, Window, coalesced
from fsdata.schema import Schema

_FIRST_ROWS = 512
_FEW_VALUES = 1 << 22  # decoded in some 30 ms

Fetched = Sequence[RemoteGroup | None]
"""Bytes read ahead for a piece: one entry for each of its row groups; empty without read-ahead."""


class Dataset:
    """The rows of all sources: number, order, and reading.

    Planning reads no data, except the time columns under `mix="time"`.

    Attributes:
        bucket: function rows -> int64 [n]; shuffled rows of a window are ordered by it. None without such a table, see
            `Stage.bucket`.
        followed: whether the data grows without end, see `fsdata.growing`.
        segment_of: parses the segment of a saved state, for followed data.
        window_units: number of units of a rank that are shuffled together; 0 without shuffling.
    """

    followed = False
    segment_of: Callable[[dict[str, Any]], SegmentState] | None = None

    def __init__(
        self,
        sources: Sequence[OpenSource],
        schema: Schema,
        *,
        mix: Mix,
        shuffle: bool,
        shuffle_window: int | float,
        seed: int,
        threads: int = 1,
        world_size: int = 1,
    ) -> None:
        self.sources = sources
        for _, _, what in other_forms(sources, schema):
            raise SchemaError(what)
        references = [{name for stage in source.stages for name in stage.references} for source in sources]
        self.layout = layout_of(
            schema,
            frozenset[str]().union(*(source.list_labels for source in sources)),
            set.intersection(*references),
            texts=sources[0].texts,
            masks=frozenset(name for source in sources for name in source.masks),
        )
        self.bucket = _bucket(sources, self.layout)
        self.timing = Timing()
        self._shuffle = shuffle
        self._shuffle_window = shuffle_window
        self._seed = seed
        units, keys = _units(sources, schema, mix, threads)
        self._unit_rows = units.row_counts
        self._time_windows = _time_windows(sources)
        most = int(np.diff(self._time_windows[0]).max()) if self._time_windows else len(units)
        self.window_units = window_units(shuffle_window, -(-most // world_size)) if shuffle else 0
        self._units: UnitsByNumber = units
        self._keys = keys
        one_by_one = shuffle or keys is not None or self.followed or any(source.remote for source in sources)
        self._small = None if one_by_one else _small_units(sources, self.layout, self._unit_rows)
        self.rows = int(self._unit_rows.sum())
        self.may_drop = any(source.may_drop for source in sources)
        self.fingerprint = {
            "schema": repr(schema),
            "order": f"mix={mix}, shuffle={shuffle}, shuffle_window={shuffle_window if shuffle else None}, seed={seed}",
            "rows": str(self.rows),
        }
        for number, source in enumerate(sources):
            for item, value in source.fingerprint.items():
                self.fingerprint[f"source {number} {item}"] = value

    def close(self) -> None:
        """Close open files."""
        for source in self.sources:
            source.close()

    def rows_of(self, columns: list[Column], rows: int) -> RowRefs:
        """References to rows received from other ranks; see `Stage.received`."""
        if not self.layout.references:
            return RowRefs.of(Block.of(columns, rows))
        stage = next(stage for stage in self.sources[0].stages if stage.references)
        return stage.received(columns, rows, self.layout, [source.stages for source in self.sources])

    def first_events(self, rows: RowRefs) -> dict[str, np.ndarray]:
        """See `Stage.first_events`."""
        stages = self.sources[0].stages if self.layout.shared and self.layout.references else ()
        return next((stage.first_events(rows, self.layout) for stage in stages if stage.references), {})

    @property
    def time_windows(self) -> np.ndarray | None:
        """int64 [T + 1]: bounds of the time windows in rows. Each window is an epoch. None without windows."""
        return self._time_windows[1] if self._time_windows else None

    def rows_in(self, epoch: int) -> int:
        """Rows of an epoch; 0 behind the last time window."""
        if self.time_windows is None:
            return self.rows
        return int(np.diff(self.time_windows[epoch : epoch + 2]).sum())

    def _units_of(self, epoch: int) -> tuple[int, int]:
        """(first unit of an epoch, unit behind its last)."""
        if self._time_windows is None:
            return 0, len(self._unit_rows)
        bounds = self._time_windows[0]
        begin, end = np.minimum([epoch, epoch + 1], len(bounds) - 1)
        return int(bounds[begin]), int(bounds[end])

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """The remaining rows of the epoch, per rank."""
        begin, end = self._units_of(progress.epoch)
        first = epoch_streams(
            self._unit_rows[begin:end],
            first_unit=begin,
            world_size=progress.first_world_size,
            shuffle=self._shuffle,
            shuffle_window=self._shuffle_window,
            seed=self._seed,
            epoch=progress.epoch,
        )
        return self._left(first, progress, world_size)

    def _left(self, first: Sequence[Stream], progress: Progress, world_size: int) -> list[Stream]:
        streams = progress.streams(first, world_size)
        return [stream.after(position) for stream, position in zip(streams, progress.positions, strict=True)]

    def read(self, piece: Piece, fetched: Fetched = (), *, epoch: int = 0) -> RowRefs:
        """References to all planned rows of a piece, in order, some of them dropped. Thread-safe.

        fetched: the result of `fetches_of`, if the bytes were read ahead. epoch: see `OpenSource.read`.

        Raises:
            ReadInPart: the piece has several row groups, and one behind the first cannot be read.
            Other errors: see `OpenSource.read`.
        """
        with self.timing.of("decode"):
            unit = self._units[piece.unit]
            if piece.more:
                ranges = [unit.ranges[0], *(self._units[number].ranges[0] for number in piece.more)]
                source = self.sources[ranges[0].source]
                return _read_small(source, self.layout, [source.groups[each.group] for each in ranges], epoch)
            if len(unit.ranges) == 1:
                row_range = unit.ranges[0]
                source = self.sources[row_range.source]
                group, start = source.groups[row_range.group], row_range.start + piece.start
                return source.read(group, self.layout, start, start + piece.rows, *fetched, epoch=epoch)
            return self._read_merged(unit, piece, fetched, epoch)

    def _read_merged(self, unit: Unit, piece: Piece, fetched: Fetched, epoch: int) -> RowRefs:
        """A piece of a unit in which rows of several row groups are merged by `mix`."""
        assert self._keys is not None
        keys = [self._keys(each.source, each.group)[each.start : each.stop] for each in unit.ranges]
        parts = []
        for number, row_range in enumerate(unit.ranges):
            source = self.sources[row_range.source]
            group, fetch = source.groups[row_range.group], fetched[number : number + 1]
            parts.append(source.read(group, self.layout, row_range.start, row_range.stop, *fetch, epoch=epoch))
        return concat(parts).take(merge_order(unit, keys)[piece.start : piece.stop])

    def fetches_of(self, piece: Piece) -> list[RemoteGroup | None]:
        """Handles to read the row groups of a piece ahead."""
        ranges = ((self.sources[each.source], each.group) for each in self._units[piece.unit].ranges)
        return [source.fetch(source.groups[group], self.layout) for source, group in ranges]

    def unit_ends(self, piece: Piece) -> np.ndarray:
        """int64: number of rows of a piece up to the end of each whole unit in it; at least its own end."""
        if not piece.more:
            return np.array([piece.rows])
        return np.cumsum(self._unit_rows[[piece.unit, *piece.more]])

    def windows(self, stream: Stream) -> Iterator[Window]:
        """The windows of a stream.

        Without shuffling, small row groups of local files are merged, the first window is short, and windows have no
        rows that are not needed.
        """
        if self._shuffle:
            return iter(stream)
        windows = iter(stream) if self._small is None else coalesced(stream, self._small)
        values = sum(field.width for field in self.layout.fields)
        most = 0 if any(field.is_list for field in self.layout.fields) else _FEW_VALUES // max(values, 1)
        return map(_only_needed, _begin_small(windows, most))

    def order_of(self, epoch: int) -> Callable[[Window], np.ndarray] | None:
        """The permutation of the rows of a window; None to keep them in order."""
        return partial(window_order, seed=self._seed, epoch=epoch) if self._shuffle else None


def _bucket(sources: Sequence[OpenSource], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
    """See `Stage.bucket`: that of the last stage that has a table on disk."""
    stages = [source.stages for source in sources]
    in_turn = sorted((stage for of in stages for stage in of), key=lambda stage: -stage.turn)
    found = (stage.bucket(stages, layout) for stage in in_turn)
    return next((each for each in found if each is not None), None)


def _time_windows(sources: Sequence[OpenSource]) -> tuple[np.ndarray, np.ndarray] | None:
    """(int64 [T + 1], bounds of the time windows in units; int64 [T + 1], in rows); None without windows."""
    with_windows = [source for source in sources if source.time_windows is not None]
    if not with_windows:
        return None
    if len(sources) > 1:
        raise SchemaError(
            f"{with_windows[0].label}: anchors(time_window=...) make epochs of windows, so they are the only source"
        )
    found = with_windows[0].time_windows
    assert found is not None
    return found


def _begin_small(windows: Iterator[Window], most: int) -> Iterator[Window]:
    """Splits the first window, so that the first batch does not wait for a whole row group.

    most: a first window of at most so many rows is not split, since its row group would be decoded twice.
    """
    for first in windows:
        yield from first.cut(_FIRST_ROWS) if first.rows > max(2 * _FIRST_ROWS, most) else (first,)
        break
    yield from windows


def _only_needed(window: Window) -> Window:
    """The window with its pieces cut to the rows in [start, stop)."""
    if window.rows == sum(piece.rows for piece in window.pieces):
        return window
    pieces, skip, left = [], window.start, window.rows
    for piece in window.pieces:
        start = min(skip, piece.rows)
        rows = min(piece.rows - start, left)
        if rows:
            pieces.append(Piece(piece.unit, piece.start + start, piece.start + start + rows))
        skip, left = skip - start, left - rows
    return Window(tuple(pieces), 0, window.rows)


def _units(sources: Sequence[OpenSource], schema: Schema, mix: Mix, threads: int) -> tuple[AllUnits, Keys | None]:
    groups = [source.groups.row_counts for source in sources]
    if mix == "sequential" or len(sources) == 1:
        return sequential_units(groups), None
    if mix == "weighted":
        keys: Keys = weighted_keys(groups, _weights(sources))
    else:
        if schema.time is None:
            raise SchemaError("mix='time' merges by Schema(time=...), which is not set")
        for _, _, what in mixed([{} if source.time is None else {schema.time: source.time} for source in sources]):
            raise SchemaError(f"mix='time' cannot compare times of two kinds: {what}")
        keys = Times(sources, schema.time, threads)
    return merged_units(groups, keys), keys


def _small_units(sources: Sequence[OpenSource], layout: Layout, rows: np.ndarray) -> SmallUnits | None:
    """Small ones among units that are the row groups of all sources; None if there are none."""
    files, shares, first = [], [], 0
    for source in sources:
        small = source.small(layout)
        if small is None:
            small = np.full(len(source.groups), -1), np.zeros(len(source.groups))
        file, share = small
        files.append(np.where(file < 0, -1, file + first))
        shares.append(share)
        first += len(source.files)
    units = SmallUnits(file=np.concatenate(files), share=np.concatenate(shares), rows=rows)
    return units if (units.file >= 0).any() else None


def _weights(sources: Sequence[OpenSource]) -> list[float]:
    """The weights of `mix="weighted"`, 1 if one is missing. Without any, row counts: all sources then end together."""
    if all(source.weight is None for source in sources):
        return [float(max(int(source.groups.row_counts.sum()), 1)) for source in sources]
    return [1.0 if source.weight is None else source.weight for source in sources]


class UnitsByNumber(Protocol):
    """Units by number."""

    def __getitem__(self, number: int, /) -> Unit: ...


class ReadInPart(Exception):
    """`error` was raised after `rows`, the references to the first rows of a piece, had been read."""

    def __init__(self, rows: RowRefs, error: Exception) -> None:
        super().__init__(str(error))
        self.rows, self.error = rows, error


def _read_small(source: OpenSource, layout: Layout, groups: Sequence[RowGroup], epoch: int) -> RowRefs:
    """All rows of row groups, decoded together, or one by one if there is an error in any of them."""
    together = source.read_together(groups, layout, epoch=epoch)
    if together is not None:
        return together
    parts: list[RowRefs] = []
    for group in groups:
        try:
            parts.append(source.read(group, layout, 0, group.rows, epoch=epoch))
        except Exception as error:
            if not parts:
                raise
            raise ReadInPart(concat(parts), error) from error
    return concat(parts)
