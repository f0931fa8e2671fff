"""Opened sources, and the order in which their rows make an epoch; the times of all rows, where they order them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fsdata.catalog.binding.counted import mixed
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.block import Block, Column, RowRefs, SurvivingRows, concat
from fsdata.decode.open_files import RemoteGroup
from fsdata.decode.opened_source import OpenSource, other_forms
from fsdata.decode.row_groups import RowGroup
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.errors import SchemaError
from fsdata.nodes.timing import Timing
from fsdata.order.deal import epoch_streams, window_order, window_units
from fsdata.order.mix import AllUnits, Keys, Mix, Unit, merge_order, merged_units, sequential_units, weighted_keys
from fsdata.order.progress import Progress, SegmentState
from fsdata.order.stream import Piece, SmallUnits, Stream, Window, coalesced
from fsdata.schema import Schema

SHARED_FROM = 1 << 20  # rows; the times of fewer are read by every process for itself
_VERSION = 1
_TIMES = "times"


class Times:
    """The sort keys of `fsdata.order.mix` by time, 8 bytes a row. Making it reads the time columns and blocks.

    Of many rows the processes of a host read them once: one reads, the others wait and map the same memory.

    Raises: as `OpenSource.read_times`.
    """

    def __init__(self, sources: Sequence[OpenSource], time: str, threads: int) -> None:
        """time: `Schema.time`."""
        self._field = time
        self._shared: list[SharedArrays] = []
        self._times = [self._of(source, threads) for source in sources]
        self._ends = [np.cumsum(source.groups.row_counts) for source in sources]
        self._rows = [source.groups.row_counts for source in sources]

    def __call__(self, source: int, group: int) -> np.ndarray:
        """int64 [rows] of a row group, read-only."""
        end = int(self._ends[source][group])
        return self._times[source][end - int(self._rows[source][group]) : end]

    def _of(self, source: OpenSource, threads: int) -> np.ndarray:
        def make(_: Path | None) -> Arrays:
            return {_TIMES: _read(source, threads)}

        if int(source.groups.row_counts.sum()) < SHARED_FROM:
            return make(None)[_TIMES]
        contents = repr(
            (_VERSION, self._field, sorted(source.fingerprint.items()), source.opened.catalog.files.identity)
        )
        name = f"times{blake2b(contents.encode(), digest_size=16).hexdigest()}"
        self._shared.append(SharedArrays(name, make, f"{source.label}, its times"))
        return self._shared[-1][_TIMES]


def _read(source: OpenSource, threads: int) -> np.ndarray:
    groups = [source.groups[number] for number in range(len(source.groups))]
    if threads == 1 or len(groups) < 2:
        return np.concatenate([np.empty(0, np.int64), *map(source.read_times, groups)])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fsdata-times")
    try:
        return np.concatenate([np.empty(0, np.int64), *pool.map(source.read_times, groups)])
    finally:
        pool.shutdown(cancel_futures=True)


_FIRST_ROWS = 512
_FEW_VALUES = 1 << 22  # are decoded in some 30 ms

Fetched = Sequence[RemoteGroup | None]
"""What was read ahead for a piece: one for each row group that it is decoded from, or nothing."""


class Dataset:
    """The rows of all sources: how many, in which order, and how to read them.

    Planning reads no data, except that `mix="time"` reads the time columns.

    Attributes:
        read: decodes a piece, from the row groups that were read ahead for it; from any thread. fetches_of: which row
            groups these are.
        bucket: rows -> int64 [n], a number for each; permuted rows of a window come in the order of these numbers.
        followed: there is no end to it, see `fsdata.growing`.
        segment_of: reads the segment of a saved state, of data that is followed.
        window_units: units of a rank that are shuffled together; 0 without shuffling.
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
        self.read = piece_reader(sources, self.layout, units, keys)
        self.fetches_of = fetch_planner(sources, self.layout, units)
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
        """Close the files that decoding threads keep open."""
        for source in self.sources:
            source.close()

    def rows_of(self, columns: list[Column], rows: int) -> RowRefs:
        """Rows that came from other ranks; see `Stage.received`."""
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
        """int64 [T + 1]: the rows of each window of time, of which each is an epoch; None without windows."""
        return self._time_windows[1] if self._time_windows else None

    def rows_in(self, epoch: int) -> int:
        """Rows of an epoch; of none behind the last window of time."""
        if self.time_windows is None:
            return self.rows
        return int(np.diff(self.time_windows[epoch : epoch + 2]).sum())

    def _units_of(self, epoch: int) -> tuple[int, int]:
        """The first unit of an epoch, and the one behind its last."""
        if self._time_windows is None:
            return 0, len(self._unit_rows)
        bounds = self._time_windows[0]
        begin, end = np.minimum([epoch, epoch + 1], len(bounds) - 1)
        return int(bounds[begin]), int(bounds[end])

    def streams(self, progress: Progress, world_size: int) -> list[Stream]:
        """What every rank still has to read of the epoch."""
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

    def windows(self, stream: Stream) -> Iterator[Window]:
        """The windows of a stream; in order, they have no row that is not needed, and the first one has few. Small row
        groups are decoded together then, where all files are local."""
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
    """See `Stage.bucket`; the last stage that has a table on disk decides."""
    stages = [source.stages for source in sources]
    in_turn = sorted((stage for of in stages for stage in of), key=lambda stage: -stage.turn)
    found = (stage.bucket(stages, layout) for stage in in_turn)
    return next((each for each in found if each is not None), None)


def _time_windows(sources: Sequence[OpenSource]) -> tuple[np.ndarray, np.ndarray] | None:
    """(int64 [T + 1], the units of each window of time; int64 [T + 1], its rows); None without windows."""
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
    """The same rows, the first few as a window of their own: the first batch need not wait for a whole row group.

    most: a first window of so many rows stays whole, as its row group would be decoded twice.
    """
    for first in windows:
        yield from first.cut(_FIRST_ROWS) if first.rows > max(2 * _FIRST_ROWS, most) else (first,)
        break
    yield from windows


def _only_needed(window: Window) -> Window:
    """The same rows in order, without those of the pieces that lie outside [start, stop)."""
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
    """Of units that are the row groups of all sources; None without any that are small."""
    files, shares, first = [], [], 0
    for source in sources:
        file, share = source.small(layout)
        files.append(np.where(file < 0, -1, file + first))
        shares.append(share)
        first += len(source.files)
    small = SmallUnits(file=np.concatenate(files), share=np.concatenate(shares), rows=rows)
    return small if (small.file >= 0).any() else None


def _weights(sources: Sequence[OpenSource]) -> list[float]:
    """The given weights, 1 where one is missing; with none given the row counts, so that all sources end together."""
    if all(source.weight is None for source in sources):
        return [float(max(int(source.groups.row_counts.sum()), 1)) for source in sources]
    return [1.0 if source.weight is None else source.weight for source in sources]


class ByNumber(Protocol):
    """Units by number."""

    def __getitem__(self, number: int, /) -> Unit: ...


def piece_reader(
    sources: Sequence[OpenSource], layout: Layout, units: ByNumber, keys: Keys | None
) -> Callable[[Piece, Fetched], SurvivingRows]:
    """A function that decodes one piece; safe to call from several threads. `keys` order the rows of merged units.

    It raises `ReadInPart` where a piece has several row groups and one behind the first cannot be read.
    """

    def read(piece: Piece, fetched: Fetched) -> SurvivingRows:
        unit = units[piece.unit]
        if piece.more:
            here = (unit.ranges[0], *(units[number].ranges[0] for number in piece.more))
            source = sources[here[0].source]
            return _read_small(source, layout, [source.groups[row_range.group] for row_range in here])
        if len(unit.ranges) == 1:
            row_range = unit.ranges[0]
            source = sources[row_range.source]
            start = row_range.start + piece.start
            return source.read(source.groups[row_range.group], layout, start, start + piece.rows, *fetched)
        assert keys is not None
        return _read_merged(sources, layout, unit, keys, piece, fetched)

    return read


class ReadInPart(Exception):
    """`error` was raised behind the first `rows` planned rows of a piece, of which `found` are left."""

    def __init__(self, found: SurvivingRows, rows: int, error: Exception) -> None:
        super().__init__(str(error))
        self.found, self.rows, self.error = found, rows, error


def _read_small(source: OpenSource, layout: Layout, groups: Sequence[RowGroup]) -> SurvivingRows:
    """All rows of row groups, at once if nothing is wrong with any of them."""
    at_once = source.read_at_once(groups, layout)
    if at_once is not None:
        return at_once
    found: list[SurvivingRows] = []
    planned: list[int] = []

    def so_far() -> SurvivingRows:
        return SurvivingRows(concat([each.rows for each in found]), kept_of(planned, found))

    for group in groups:
        try:
            found.append(source.read(group, layout, 0, group.rows))
        except Exception as error:
            if not found:
                raise
            raise ReadInPart(so_far(), sum(planned), error) from error
        planned.append(group.rows)
    return so_far()


def kept_of(planned: Sequence[int], found: Sequence[SurvivingRows]) -> np.ndarray:
    """int64 [n], increasing: which rows survived, of all those planned in several pieces of `planned` rows each."""
    kept, first = [], 0
    for rows, each in zip(planned, found, strict=True):
        kept.append(first + (np.arange(rows) if each.kept is None else each.kept))
        first += rows
    return np.concatenate(kept)


def fetch_planner(
    sources: Sequence[OpenSource], layout: Layout, units: ByNumber
) -> Callable[[Piece], list[RemoteGroup | None]]:
    """A function that says which row groups a piece is decoded from."""

    def row_groups(piece: Piece) -> list[RemoteGroup | None]:
        here = ((sources[each.source], each.group) for each in units[piece.unit].ranges)
        return [source.fetch(source.groups[group], layout) for source, group in here]

    return row_groups


def _read_merged(
    sources: Sequence[OpenSource], layout: Layout, unit: Unit, keys: Keys, piece: Piece, fetched: Fetched
) -> SurvivingRows:
    range_keys = [
        keys(row_range.source, row_range.group)[row_range.start : row_range.stop] for row_range in unit.ranges
    ]
    order = merge_order(unit, range_keys)[piece.start : piece.stop]
    found = []
    for number, row_range in enumerate(unit.ranges):
        source = sources[row_range.source]
        here = source.groups[row_range.group], layout, row_range.start, row_range.stop
        found.append(source.read(*here, *fetched[number : number + 1]))
    rows = concat([each.rows for each in found])
    if rows.num_rows == unit.rows:
        return SurvivingRows(rows.take(order), None)
    where = np.full(unit.rows, -1)
    where[kept_of([row_range.rows for row_range in unit.ranges], found)] = np.arange(rows.num_rows)
    alive = np.flatnonzero(where[order] >= 0)
    return SurvivingRows(rows.take(where[order[alive]]), alive)
