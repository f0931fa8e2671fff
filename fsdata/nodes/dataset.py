"""The rows of all sources: the order in which they make an epoch, and how pieces of it are read."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
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
from fsdata.order.changes import Run, resumed
from fsdata.order.deal import quotas, window_order, window_units
from fsdata.order.epoch import EpochOrder, UnitsOfEpoch
from fsdata.order.mix import Keys, Mix, Unit
from fsdata.order.mixture import Weights
from fsdata.order.progress import Progress, SegmentState, to_state
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
        self._mix = mix
        self.weights: Weights = tuple(source.weight for source in sources)
        if not any(weight != 0 for weight in self.weights):
            raise ValueError("every source has weight=0, so no row would be read: give one of them another weight")
        self._order = EpochOrder(
            [source.groups.row_counts for source in sources],
            self.weights,
            mix=mix,
            times=_times(sources, schema, threads) if mix == "time" and len(sources) > 1 else None,
            shuffle=shuffle,
            shuffle_window=shuffle_window,
            seed=seed,
        )
        self._of_epoch = UnitsOfEpoch([self._order.whole])
        self._time_windows = _time_windows(sources)
        units = self._order.whole.units
        most = int(np.diff(self._time_windows[0]).max()) if self._time_windows else len(units)
        self.window_units = window_units(shuffle_window, -(-most // world_size)) if shuffle else 0
        self._units: UnitsByNumber = self._of_epoch
        self._one_by_one = shuffle or self.followed or any(source.remote for source in sources)
        self._small = self._small_units()
        self.rows = int(units.row_counts.sum())
        self._schema = schema
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

    def state_of(self, progress: Progress, *, batch_size: int | None = None) -> dict[str, Any]:
        """The saved state of a position."""
        run: dict[str, Any] = {"weights": list(self.weights)}
        if batch_size is not None:
            run["batch_size"] = batch_size
        if progress.mixes:
            run["rows"] = self.rows_of_epoch(progress)
        return to_state(progress, self.fingerprint, run)

    def place_of(
        self, state: dict[str, Any], changed: str | Collection[str] = (), *, batch_size: int | None = None
    ) -> tuple[Progress, list[str]]:
        """(the position of a saved state, the accepted differences). Raises: see `fsdata.order.changes.resumed`."""
        run = Run(
            fingerprint=self.fingerprint,
            labels=[source.label for source in self.sources],
            weights=self.weights,
            mix=self._mix,
            arguments=lambda number, weight: self.sources[number].arguments_with(weight),
            sequences=[group.name for group in self._schema.groups],
            schema=partial(_with_lengths, self._schema),
            segment_of=self.segment_of,
        )
        return resumed(state, run, changed, batch_size=batch_size)

    def rows_of_epoch(self, progress: Progress) -> int:
        """Rows of the epoch of a position, in which sources may have been added or dropped."""
        if not progress.mixes:
            return self.rows_in(progress.epoch)
        _, streams = self._order.streams(progress, len(progress.positions))
        return progress.passed - sum(progress.positions) + sum(stream.rows for stream in streams)

    def _units_of(self, epoch: int) -> tuple[int, int]:
        """(first unit of a window of time, unit behind its last)."""
        assert self._time_windows is not None
        bounds = self._time_windows[0]
        begin, end = np.minimum([epoch, epoch + 1], len(bounds) - 1)
        return int(bounds[begin]), int(bounds[end])

    def left(self, progress: Progress, world_size: int) -> np.ndarray:
        """int64 [W]: the remaining rows of the epoch, of every rank."""
        if progress.history:
            return np.array([stream.rows for stream in self.streams(progress, world_size)])
        return quotas(self.rows_in(progress.epoch), world_size) - progress.positions

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """The remaining rows of the epoch, per rank."""
        units = slice(*self._units_of(progress.epoch)) if self._time_windows else slice(None)
        mixtures, streams = self._order.streams(progress, world_size, units)
        if mixtures != self._of_epoch.mixtures:
            self._units = self._of_epoch = UnitsOfEpoch(mixtures)
            self._small = self._small_units()
        return left_of(streams, progress)

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
        order = self._of_epoch.order_in(piece.unit)
        parts = []
        for number, row_range in enumerate(unit.ranges):
            source = self.sources[row_range.source]
            group, fetch = source.groups[row_range.group], fetched[number : number + 1]
            parts.append(source.read(group, self.layout, row_range.start, row_range.stop, *fetch, epoch=epoch))
        return concat(parts).take(order[piece.start : piece.stop])

    def fetches_of(self, piece: Piece) -> list[RemoteGroup | None]:
        """Handles to read the row groups of a piece ahead."""
        ranges = ((self.sources[each.source], each.group) for each in self._units[piece.unit].ranges)
        return [source.fetch(source.groups[group], self.layout) for source, group in ranges]

    def unit_ends(self, piece: Piece) -> np.ndarray:
        """int64: number of rows of a piece up to the end of each whole unit in it; at least its own end."""
        if not piece.more:
            return np.array([piece.rows])
        return np.cumsum(self._of_epoch.row_counts[[piece.unit, *piece.more]])

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

    def _small_units(self) -> SmallUnits | None:
        """The small ones among units that are row groups; None if there are none, or units are read one by one."""
        last = self._of_epoch.mixtures[-1]
        if self._one_by_one or last.keys is not None:
            return None
        # Without shuffling, all remaining rows are in units of the last mixture.
        files, shares, first_file = [np.full(last.first_unit, -1)], [np.zeros(last.first_unit)], 0
        for source, rows, is_read in zip(self.sources, last.rows, last.is_read, strict=True):
            groups = source.groups.row_counts
            if is_read:
                file, share = source.small(self.layout) or (np.full(len(groups), -1), np.zeros(len(groups)))
                is_small = (file[rows.group] >= 0) & (rows.stop - rows.start == groups[rows.group])
                files.append(np.where(is_small, file[rows.group] + first_file, -1))
                shares.append(np.where(is_small, share[rows.group], 0.0))
            first_file += len(source.files)
        units = SmallUnits(file=np.concatenate(files), share=np.concatenate(shares), rows=self._of_epoch.row_counts)
        return units if (units.file >= 0).any() else None

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


def _times(sources: Sequence[OpenSource], schema: Schema, threads: int) -> Keys:
    """The sort keys of `mix="time"`. Reads the times of all rows and blocks."""
    if schema.time is None:
        raise SchemaError("mix='time' merges by Schema(time=...), which is not set")
    for _, _, what in mixed([{} if source.time is None else {schema.time: source.time} for source in sources]):
        raise SchemaError(f"mix='time' cannot compare times of two kinds: {what}")
    return Times(sources, schema.time, threads)


def _with_lengths(schema: Schema, lengths: Sequence[int | None]) -> str:
    """The schema as fingerprints have it, with other `max_length`s, in the order of `Schema.groups`."""
    groups = [replace(group, max_length=length) for group, length in zip(schema.groups, lengths, strict=True)]
    candidates = None if schema.candidates is None else groups.pop()
    return repr(replace(schema, sequences=tuple(groups), candidates=candidates))


def left_of(streams: Sequence[Stream], progress: Progress) -> list[Stream]:
    """The streams behind the positions of the ranks."""
    return [stream.after(position) for stream, position in zip(streams, progress.positions, strict=True)]


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
