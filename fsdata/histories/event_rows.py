"""`AsOf.anchors`: rows that are events of a table of histories. They are selected once per host; their columns are
gathered from the table when they are read.

Letters: E events, K keys, A anchors (the events that are rows), T windows of time.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import bind_rows
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.block import Column
from fsdata.decode.readers.row_groups import Groups, RowGroup
from fsdata.decode.readers.row_reader import BatchReader
from fsdata.errors import Fault, Faults, SchemaError
from fsdata.histories.as_of import POSITION, Events
from fsdata.histories.history_table import HistoryTable, where
from fsdata.histories.lookup_table import LookupTable
from fsdata.histories.spill_buffer import SpillBuffer
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource

_FEWEST, _MOST = 256, 4096  # rows of a group, which takes the place of a row group of a file
_GROUPS = 64  # groups of a short window of time: the granularity of dealing to ranks and of shuffling
_CHUNK = 1 << 18  # events or anchors that are processed together
_SORTED = 1 << 24  # anchors that are sorted at once in memory; more are first distributed to stretches of time
_MOST_WINDOWS = 1 << 22  # of time: each takes memory in every process
_ROWS, _WINDOWS = "rows", "windows"
_VERSION = 1  # of the arrays that processes share


class EventGroups(Groups):
    """Anchors as row groups. A group belongs to one window of time.

    Attributes:
        row_counts: int64 [groups]. ends: int64 [T], number of groups up to the end of each window.
    """

    def __init__(self, source: int, windows: np.ndarray) -> None:
        """windows: int64 [T + 1], the first anchor of each window, and the number of all anchors."""
        rows = np.diff(windows)
        size = np.clip(-(-rows // _GROUPS), _FEWEST, _MOST)
        counts = -(-rows // size)
        self.ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(self.ends - counts, counts)
        self._source = source
        self._first = np.repeat(windows[:-1], counts) + within * np.repeat(size, counts)
        self.row_counts = np.minimum(np.repeat(size, counts), np.repeat(windows[1:], counts) - self._first)

    def __len__(self) -> int:
        return len(self.row_counts)

    def __getitem__(self, index: int) -> RowGroup:  # type: ignore[override]  # no slices
        return RowGroup(self._source, 0, int(index), int(self.row_counts[index]), int(self._first[index]))


class EventRows(BatchReader):
    """The anchors of a source, bound to the wanted fields. Thread-safe after construction.

    The constructor selects the anchors, or maps the arrays of another process of this host that has selected them.

    Attributes:
        catalog: of the files of the table.
        windows: int64 [T + 1], the first anchor of each window of time, and the number of all anchors; one window
            without `time_window`.

    Args:
        attached: the opened tables of the source, the histories first.
        index, label, notes: see `SourceFiles`.

    Raises:
        SchemaError: fields cannot be bound; see `open_source`.
    """

    groups: EventGroups

    def __init__(
        self,
        source: ParquetSource,
        wanted: Sequence[Field],
        attached: Sequence[HistoryTable | LookupTable],
        *,
        index: int,
        label: str,
        notes: list[Fault] | None = None,
    ) -> None:
        assert isinstance(source.events, Events)
        self._events = events = source.events
        table = attached[0]
        assert isinstance(table, HistoryTable)
        lookups = [stage for stage in attached if isinstance(stage, LookupTable)]
        begin = time.perf_counter()
        super().__init__(source, label, notes)
        self._table = table
        self.catalog = table.catalog
        self._lookups = {
            name: lookup for lookup in lookups for name in lookup.join.fields if lookup.join.on in table.lists
        }
        self.source = _with_lists_of_one(source, wanted, self._names)
        schema = pa.schema([(name, self._type(name)) for name in self._names])
        self.kinds = [bind_rows(self.source, wanted, schema, label)]
        contents = (_VERSION, table.name, events.form)
        name = f"events{blake2b(repr(contents).encode(), digest_size=16).hexdigest()}"
        self._shared = SharedArrays(
            name,
            _AnchorSelection(table, events).arrays,
            f"{label}, its rows",
            on_disk=table.join.bucketed is not None,
        )
        self.windows = self._shared[_WINDOWS]
        self.groups = EventGroups(index, self.windows)
        self._seconds = time.perf_counter() - begin

    @property
    def time_windows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """See `OpenSource`."""
        if self._events.time_window is None:
            return None
        return np.concatenate([[0], self.groups.ends]), self.windows

    @property
    def known(self) -> dict[str, Counted]:
        """Column of an event -> the unit of its integers."""
        units = {name: lookup.counted[name] for name, lookup in self._lookups.items() if name in lookup.counted}
        return {**units, **self._table.counted}

    @property
    def counted(self) -> dict[Field, Counted]:
        """Field -> the unit of its integers. Only fields that are columns of an event have one: the unit of the result
        of an expression is unknown."""
        units, (kind,) = self.known, self.kinds
        counted = dict[Field, Counted]()
        for binding in kind.bindings:
            expression = self.source.computed.get(binding.field.name)
            # A column as a list of one element, see `_with_lists_of_one`, is an expression without an operation.
            is_column = expression is not None and expression.listed and expression.form in expression.columns
            column = expression.columns[0] if expression is not None and is_column else binding.column
            if column in units:
                counted[binding.field] = units[column]
        return counted

    @property
    def _names(self) -> list[str]:
        return [self._table.join.on, POSITION, *self._table.lists, *self._lookups]

    def _type(self, name: str) -> pa.DataType:
        if name in self._lookups:
            return pa.float32() if self._lookups[name].is_float(name) else pa.int64()
        if name in self._table.lists:
            return pa.from_numpy_dtype(self._table.values(name).dtype)
        return pa.int64()

    def faults_of(self, group: RowGroup) -> Faults:
        return self.faults

    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """Columns of the anchors [start, stop); the numbers count the anchors of all groups."""
        table = self._table
        events = self._shared[_ROWS][start:stop]
        key = np.searchsorted(table.offsets, events, side="right") - 1
        columns = []
        for name in names:
            if name == POSITION:
                columns.append(events - table.offsets[key])
            elif name == table.join.on:
                columns.append(table.keys[key])
            elif name in self._lookups:
                lookup = self._lookups[name]
                # A lookup resolves rows of a column: here one row with the ids of all anchors.
                ids = Column.of(table.values(lookup.join.on)[events].astype(np.int64), width=len(events))
                dtype = np.float32 if lookup.is_float(name) else np.int64
                columns.append(lookup.over(ids, name).gathered(dtype, np.zeros(1, np.int64)))
            else:
                columns.append(table.values(name)[events])
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], list(names))

    def describe(self) -> dict[str, Any]:
        """Sizes and times; JSON-able. See `SourceFiles.describe`."""
        return {
            "files": len(self.catalog),
            "pruned_files": 0,
            "pruned_row_groups": 0,
            "row_groups": len(self.groups),
            "rows": int(self.windows[-1]),
            "events": self._table.events,
            "time_windows": len(self.windows) - 1 if self._events.time_window else 0,
            "bytes": int(self.catalog.size.sum()),
            "decoder": {"name": "events"},
            "schemas": 1,
            "skipped": 0,
            "seconds": {"finding rows": round(self._seconds, 4)},
        }


def _with_lists_of_one(source: ParquetSource, wanted: Sequence[Field], names: Sequence[str]) -> ParquetSource:
    """The source with lists of one element for fields of a sequence or of the candidates, because columns of an event
    have one value. names: of the columns of an event; a field without one is bound as a missing column."""
    columns = dict(source.columns)
    for name in (field.name for field in wanted if field.shape == "list"):
        column = columns.get(name, name)
        if not isinstance(column, str) or column in names:
            columns[name] = replace(source.expression_of(name), listed=True)
    return replace(source, columns=columns)


class _AnchorSelection:
    """Selects the anchors of a table."""

    def __init__(self, table: HistoryTable, events: Events) -> None:
        self._table = table
        self._events = events

    def arrays(self, scratch: Path | None) -> Arrays:
        """`rows`: int64 [A], the events that are anchors, in the order in which they are read, window after window;
        `windows`: int64 [T + 1], the first anchor of each window. scratch: a folder for temporary files, None to use
        memory."""
        anchors, first = SpillBuffer(np.dtype(np.int64), scratch and scratch / "anchors"), None
        kept_keys = self._kept_keys()
        for events, key in self._candidates():
            # The time of the first row is computed before the split, so that all splits have the same windows.
            if self._table.join.time is not None and len(events):
                earliest = int(self._table.times[events].min())
                first = earliest if first is None else min(first, earliest)
            anchors.add(events if kept_keys is None else events[kept_keys[key]])
        rows = anchors.whole()
        width, by_time = self._events.time_window, self._events.order == "time"
        if first is None or (width is None and not by_time):
            return {_ROWS: rows, _WINDOWS: np.array([0, len(rows)])}
        if width is None and len(rows) <= _SORTED:
            return {_ROWS: rows[np.argsort(self._table.times[rows], kind="stable")], _WINDOWS: np.array([0, len(rows)])}
        last = max((int(self._table.times[chunk].max()) for chunk in _chunks(rows)), default=first)
        # To sort more anchors by time than fit in memory, they are distributed to stretches of time, which are sorted
        # one after another.
        stretch = width or (last - first) // (len(rows) // _SORTED + 1) + 1
        number = (last - first) // stretch + 1
        if number > _MOST_WINDOWS:
            unit = "integers" if self._table.integer_times else "nanoseconds"
            raise SchemaError(
                f"{self._table.label}: anchors(time_window={width}) makes {number} windows of times from {first} to "
                f"{last}, and at most {_MOST_WINDOWS} are supported. {self._table.join.time} is in {unit}: give the "
                "window in the same unit"
            )
        by_window, windows = self._by_window(rows, first, stretch, number, scratch)
        if by_time:
            for begin, end in zip(windows[:-1].tolist(), windows[1:].tolist(), strict=True):
                window = np.array(by_window[begin:end])
                by_window[begin:end] = window[np.argsort(self._table.times[window], kind="stable")]
        return {_ROWS: by_window, _WINDOWS: windows if width else np.array([0, len(rows)])}

    def _kept_keys(self) -> np.ndarray | None:
        """bool [K]: keys whose events may be rows; None: all."""
        split = self._events.split
        return None if split is None else split.holds(pa.array(self._table.keys))

    def _candidates(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of (int64 [n], the anchors of all keys, ascending; int64 [n], the index of the key of each)."""
        table, condition = self._table, self._events.condition
        for begin in range(0, table.events, _CHUNK):
            end = min(begin + _CHUNK, table.events)
            events = np.arange(begin, end)
            key = np.searchsorted(table.offsets, events, side="right") - 1
            position = events - table.offsets[key]
            chosen = position >= self._events.min_history
            if condition is not None:
                columns: Mapping[str, np.ndarray] = {POSITION: position, table.join.on: table.keys[key]}
                lists = {name: table.values(name)[begin:end] for name in condition.columns if name not in columns}
                chosen &= where(condition, {**lists, **columns})
            yield events[chosen], key[chosen]

    def _by_window(
        self, rows: np.ndarray, first: int, stretch: int, windows: int, scratch: Path | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(the rows, window after window, in stable order; int64 [T + 1], the first row of each window)."""
        # A counting sort in two passes over chunks: the times of all rows need not fit in memory.
        counts = np.zeros(windows, np.int64)
        for chunk in _chunks(rows):
            counts += np.bincount(self._windows_of(chunk, first, stretch), minlength=windows)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        by_window = np.empty(len(rows), np.int64)
        if scratch is not None and len(rows):
            by_window = np.memmap(scratch / "by window", np.int64, "w+", shape=len(rows))
        next_of = bounds[:-1].copy()
        for chunk in _chunks(rows):
            window = self._windows_of(chunk, first, stretch)
            order = np.argsort(window, kind="stable")
            distinct, begins, sizes = np.unique(window[order], return_index=True, return_counts=True)
            by_window[np.repeat(next_of[distinct] - begins, sizes) + np.arange(len(order))] = chunk[order]
            next_of[distinct] += sizes
        return by_window, bounds

    def _windows_of(self, events: np.ndarray, first: int, stretch: int) -> np.ndarray:
        """int64 [n]: the number of the window of each event."""
        # Unsigned: the difference of two int64 may need all 64 bits.
        since = (self._table.times[events] - first).view(np.uint64)
        return (since // np.uint64(stretch)).astype(np.int64)


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(rows), _CHUNK):
        yield rows[begin : begin + _CHUNK]
