"""Rows that are events of a table of histories: found once per host, and put into columns where they are read.

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
from fsdata.decode.row_groups import Groups, RowGroup
from fsdata.decode.row_reader import BatchReader
from fsdata.errors import Fault, Faults, SchemaError
from fsdata.histories.as_of import POSITION, Events
from fsdata.histories.history_table import HistoryTable, where
from fsdata.histories.lookup_table import LookupTable
from fsdata.histories.spill_buffer import SpillBuffer
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource

_FEWEST, _MOST = 256, 4096  # rows that are read at once, as a row group of a file is
_GROUPS = 64  # of a window of time with fewer rows: so finely can a share of it be shuffled
_CHUNK = 1 << 18  # events or anchors that are looked at together
_SORTED = 1 << 24  # anchors that are sorted in memory
_MOST_WINDOWS = 1 << 22  # of time
_ROWS, _WINDOWS = "rows", "windows"
_VERSION = 1  # of the arrays that processes share


class EventGroups(Groups):
    """Anchors as row groups; none lies in two windows of time.

    Attributes:
        row_counts: int64 [groups]. ends: int64 [T], the groups of each window end there.
    """

    def __init__(self, source: int, windows: np.ndarray) -> None:
        """windows: int64 [T + 1], the anchors of each."""
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
    """The anchors of a source, bound to the fields that are wanted. Thread-safe after construction.

    Making it finds them, or maps those that another process of this host has found.

    Attributes:
        catalog: of the files of the table.
        windows: int64 [T + 1], where the anchors of each window of time begin; all are one window without.

    Args:
        attached: the opened tables of the source, the histories first.
        others: see `SourceFiles`.

    Raises:
        SchemaError: fields cannot be served; see `open_source`.
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
        lookups = [each for each in attached if isinstance(each, LookupTable)]
        begin = time.perf_counter()
        super().__init__(source, label, notes)
        self._table = table
        self.catalog = table.catalog
        self._found = {name: each for each in lookups for name in each.join.fields if each.join.on in table.lists}
        self.source = _with_lists_of_one(source, wanted, self._names)
        schema = pa.schema([(name, self._type(name)) for name in self._names])
        self.kinds = [bind_rows(self.source, wanted, schema, label)]
        contents = (_VERSION, table.name, events.form)
        name = f"events{blake2b(repr(contents).encode(), digest_size=16).hexdigest()}"
        self._shared = SharedArrays(
            name,
            _Finding(table, events).arrays,
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
        """What the integers of the columns of an event count."""
        found = {name: each.counted[name] for name, each in self._found.items() if name in each.counted}
        return {**found, **self._table.counted}

    @property
    def counted(self) -> dict[Field, Counted]:
        """What the integers of fields count, of those that are columns of an event: results of expressions over events
        are integers whose unit is not known."""
        known, (kind,) = self.known, self.kinds
        found = dict[Field, Counted]()
        for binding in kind.bindings:
            made = self.source.computed.get(binding.field.name)
            column = (
                made.columns[0] if made is not None and made.listed and made.form in made.columns else binding.column
            )
            if column in known:
                found[binding.field] = known[column]
        return found

    @property
    def _names(self) -> list[str]:
        return [self._table.join.on, POSITION, *self._table.lists, *self._found]

    def _type(self, name: str) -> pa.DataType:
        if name in self._found:
            return pa.float32() if self._found[name].is_float(name) else pa.int64()
        if name in self._table.lists:
            return pa.from_numpy_dtype(self._table.values(name).dtype)
        return pa.int64()

    def faults_of(self, group: RowGroup) -> Faults:
        return self.faults

    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """Anchors [start, stop) of all."""
        return self._batch(self._shared[_ROWS][start:stop], names)

    def _batch(self, events: np.ndarray, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of events, int64 [n]."""
        table = self._table
        key = np.searchsorted(table.offsets, events, side="right") - 1
        found = []
        for name in names:
            if name == POSITION:
                found.append(events - table.offsets[key])
            elif name == table.join.on:
                found.append(table.keys[key])
            elif name in self._found:
                lookup = self._found[name]
                ids = Column.of(table.values(lookup.join.on)[events].astype(np.int64), width=len(events))
                dtype = np.float32 if lookup.is_float(name) else np.int64
                found.append(lookup.over(ids, name).gathered(dtype, np.zeros(1, np.int64)))  # one row has all
            else:
                found.append(table.values(name)[events])
        return pa.RecordBatch.from_arrays([pa.array(each) for each in found], list(names))

    def describe(self) -> dict[str, Any]:
        """What was found; JSON-able. See `SourceFiles.describe`."""
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
    """With lists of one element where a field of a sequence or of the candidates is made of one value. names: of the
    columns of an event; a field without one is bound as a missing column."""
    lists = [field.name for field in wanted if field.shape == "list"]
    if not lists:
        return source

    columns = dict(source.columns)
    for name in lists:
        given = columns.get(name, name)
        if isinstance(given, str) and given not in names:
            continue
        made = source.expression_of(name)
        columns[name] = replace(made, listed=True)
    return replace(source, columns=columns)


class _Finding:
    """Finds the anchors of a table."""

    def __init__(self, table: HistoryTable, events: Events) -> None:
        self._table = table
        self._events = events

    def arrays(self, scratch: Path | None) -> Arrays:
        """`rows`: int64 [A], the events that are anchors, in the order in which they are read, window after window;
        `windows`: int64 [T + 1], where those of each window begin. scratch: where they lie until then, if not in
        memory."""
        anchors, first = SpillBuffer(np.dtype(np.int64), scratch and scratch / "anchors"), None
        inside = self._kept_keys()
        for events, key in self._candidates():
            if self._table.join.time is not None and len(events):
                earliest = int(self._table.times[events].min())
                first = earliest if first is None else min(first, earliest)
            anchors.add(events if inside is None else events[inside[key]])
        rows = anchors.whole()
        width, by_time = self._events.time_window, self._events.order == "time"
        if first is None or (width is None and not by_time):
            return {_ROWS: rows, _WINDOWS: np.array([0, len(rows)])}
        if width is None and len(rows) <= _SORTED:
            return {_ROWS: rows[np.argsort(self._table.times[rows], kind="stable")], _WINDOWS: np.array([0, len(rows)])}
        last = max((int(self._table.times[some].max()) for some in _chunks(rows)), default=first)
        stretch = width or (last - first) // (len(rows) // _SORTED + 1) + 1
        number = (last - first) // stretch + 1
        if number > _MOST_WINDOWS:
            unit = "integers" if self._table.integer_times else "nanoseconds"
            raise SchemaError(
                f"{self._table.label}: anchors(time_window={width}) makes {number} windows of times from {first} to "
                f"{last}, and at most {_MOST_WINDOWS} can be kept. {self._table.join.time} counts {unit}: give the "
                "window in the same unit"
            )
        found, windows = self._by_window(rows, first, stretch, number, scratch)
        if by_time:
            for begin, end in zip(windows[:-1].tolist(), windows[1:].tolist(), strict=True):
                some = np.array(found[begin:end])
                found[begin:end] = some[np.argsort(self._table.times[some], kind="stable")]
        return {_ROWS: found, _WINDOWS: windows if width else np.array([0, len(rows)])}

    def _kept_keys(self) -> np.ndarray | None:
        """bool [K]: whose events may be rows; None: all."""
        split = self._events.split
        return None if split is None else split.holds(pa.array(self._table.keys))

    def _candidates(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(int64 [n], anchors of all keys in order, some at a time; int64 [n], the place of the key of each)."""
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
        """(the rows, window after window and in their order inside each; int64 [T + 1], where each begins)."""
        counts = np.zeros(windows, np.int64)
        for some in _chunks(rows):
            counts += np.bincount(self._windows_of(some, first, stretch), minlength=windows)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        found = np.empty(len(rows), np.int64)
        if scratch is not None and len(rows):
            found = np.memmap(scratch / "by window", np.int64, "w+", shape=len(rows))
        at = bounds[:-1].copy()
        for some in _chunks(rows):
            window = self._windows_of(some, first, stretch)
            order = np.argsort(window, kind="stable")
            here, begins, sizes = np.unique(window[order], return_index=True, return_counts=True)
            found[np.repeat(at[here] - begins, sizes) + np.arange(len(order))] = some[order]
            at[here] += sizes
        return found, bounds

    def _windows_of(self, events: np.ndarray, first: int, stretch: int) -> np.ndarray:
        """int64 [n]: the number of the window of each. Times may lie so far apart that it takes all 64 bits."""
        since = (self._table.times[events] - first).view(np.uint64)
        return (since // np.uint64(stretch)).astype(np.int64)


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(rows), _CHUNK):
        yield rows[begin : begin + _CHUNK]
