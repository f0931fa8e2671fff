"""Histories of rows: found by search when rows are read, copied when a batch is made.

The history of a row is a window of the events of its key. The search finds where the window begins and how long it is.
The rank that computes the sample copies the values, so a sample that moves to another rank takes only a *reference*
along, four integers: the number of the source that read it, the first event of the window, the event after its last
one, and the cut-off, the first time or position whose events the row does not see.

Letters: N rows, E events of all keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.decode.attached import Stage
from fsdata.decode.block import Block, Blocks, Column, RowRefs, run
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.row_layout import REFERENCE, Layout
from fsdata.errors import DataError
from fsdata.histories.history_table import HistoryTable
from fsdata.histories.kernels import histories
from fsdata.histories.lookup_table import LookupTable
from fsdata.histories.resolver import TableResolver
from fsdata.kernels import runs
from fsdata.kernels.columns import SAME, STORED_AS
from fsdata.schema import Field, Schema

_OTHER_UNIT = 100  # units differ by 1000; times of one unit in events and rows differ by less
_EVENT_BITS = 48  # of the number of an event; the higher bits have the source
_LATEST = np.iinfo(np.int64).max  # "now" in many tables: adding 1 for `inclusive` would overflow
_LEAST = 1_000_000  # smaller times do not count from a common epoch


@dataclass(frozen=True, slots=True)
class _EventWindows:
    """Windows of N rows, int64 [N] each: events [first, stop), of which `length` count, and the cut-off of the row.

    With pools, `length` is the number of events after merging, and the window only bounds where they are.
    """

    first: np.ndarray
    stop: np.ndarray
    cutoff: np.ndarray
    length: np.ndarray


class Histories(Stage):
    """The histories of one source. Thread-safe.

    Attributes:
        groups: sequence -> the table that has its fields.
    """

    turn = 2

    def __init__(
        self, tables: Sequence[HistoryTable], lookups: Sequence[LookupTable], schema: Schema, source: int
    ) -> None:
        """lookups: tables of the same source, which look up ids in events. source: its number in the loader."""
        self.groups: dict[str, HistoryTable] = {
            group.name: table
            for table in tables
            for group in schema.groups
            if set(group.all_fields) & set(table.join.fields)
        }
        # Sampled events are copied when they are drawn: their rows have no window that a reference could describe.
        sampled = {group.name for group in schema.groups if group.sample is not None}
        self.references = tuple(name for name in self.groups if name not in sampled)
        self._tables = tables
        self._lookups = {name: table for table in lookups for name in table.join.fields}
        self._source = source
        self._compared: set[int] = set()

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Add the histories.

        Raises:
            DataError: a null time, a key without a history where a field's policy is `error`, or times of another unit.
        """
        for table in self._tables:
            self._attach(table, decoded)

    def bucket(self, sources: Sequence[Sequence[Stage]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
        """See `Stage`. A bucket is a range of the events of all keys. If rows have several histories on disk, the rows
        can be ordered by only one of them: the first."""
        if not layout.references:
            return None
        groups = [histories_of(stages).groups for stages in sources]
        names = (name for name in layout.references if any(tables[name].join.bucketed for tables in groups))
        name = next(names, None)
        if name is None:
            return None
        buckets = np.array([tables[name].join.bucketed or 0 for tables in groups])
        events = np.array([max(tables[name].events, 1) for tables in groups])

        def bucket_of(rows: RowRefs) -> np.ndarray:
            source, first, _, _ = rows.numbers(layout.references[name], REFERENCE).T
            numbers: np.ndarray = first * buckets[source] // events[source]
            return numbers

        return bucket_of

    def first_events(self, rows: RowRefs, layout: Layout) -> dict[str, np.ndarray]:
        numbers = {}
        for name in layout.shared:
            if name in layout.references:
                source, first, _, _ = rows.numbers(layout.references[name], REFERENCE).T
                numbers[name] = source << _EVENT_BITS | first
        return numbers

    def received(self, columns: list[Column], rows: int, layout: Layout, sources: Sequence[Sequence[Stage]]) -> RowRefs:
        """See `Stage`. Every source has its own tables, so its rows become a block of their own."""
        reference = columns[next(iter(layout.references.values()))]
        source_of = reference.gathered(np.int64, np.arange(rows)).reshape(rows, REFERENCE)[:, 0]
        block, row, blocks = np.empty(rows, np.int32), np.empty(rows, np.int32), list[Block]()
        for source, stages in enumerate(sources):
            selected = np.flatnonzero(source_of == source)
            if len(selected):
                own = [column.take(selected) for column in columns]
                histories_of(stages)._resolve(own, layout, len(selected))
                block[selected], row[selected] = len(blocks), np.arange(len(selected))
                blocks.append(Block.of(own, len(selected), source))
        return RowRefs(Blocks(blocks, len(columns)), block, row)

    def _resolve(self, columns: list[Column], layout: Layout, rows: int) -> None:
        """Point the columns of received rows, by slot, to the events that their references name, in place."""
        for name, slot in layout.references.items():
            numbers = columns[slot].gathered(np.int64, np.arange(rows)).reshape(rows, REFERENCE)
            _, first, stop, cutoff = np.ascontiguousarray(numbers.T)
            fields = _fields(layout, name)
            windows = _EventWindows(first, stop, cutoff, columns[fields[0][0]].lengths(rows))
            for field_slot, column in self._columns(self.groups[name], fields, windows).items():
                columns[field_slot] = column

    def _attach(self, table: HistoryTable, decoded: DecodedRows) -> None:
        join, layout = table.join, decoded.layout
        keys, no_key = decoded.keys[Field(join.on, "join_key")]
        at, no_time = decoded.keys[Field(join.at, "row_time")]
        if (no_time & ~decoded.drop).any():
            rows = decoded.rows[no_time & ~decoded.drop]
            what = f"{join.at} is null, so the history has no cut-off"
            decoded.faults.found("null", join.at, rows, what, todo="; filter it out")
        if not join.by_position:
            self._compare_units(table, at[~decoded.drop & (at < _LATEST)], decoded.faults.where)
        key = np.empty(len(keys), np.int64)
        histories.find_keys(table.keys, keys, no_key, key)
        _apply_policies(table, decoded, keys, key)
        cutoff = at + (at < _LATEST) if join.inclusive else at.copy()
        if join.by_position:
            first, stop = _at_positions(table, decoded, key, cutoff, own=int(join.inclusive))
        else:
            first, stop = np.empty_like(key), np.empty_like(key)
            histories.find_windows(key, table.offsets, table.times, cutoff, first, stop)
        if join.scan is not None:  # before truncation: events that do not count are scanned, too
            first = np.maximum(first, stop - join.scan)
        for name in (name for name, other in self.groups.items() if other is table):
            fields = _fields(layout, name)
            if not fields:
                continue
            # Sequences of one table differ in the number of events that they keep, so each cuts its own copy.
            windows = _EventWindows(first.copy(), stop.copy(), cutoff, np.empty_like(first))
            _cut(table, fields[0][1], key, windows)
            decoded.columns |= self._columns(table, fields, windows)
            if name in layout.references:
                source = np.full_like(key, self._source)
                numbers = np.stack([source, windows.first, windows.stop, windows.cutoff], axis=1)
                decoded.columns[layout.references[name]] = Column.of(numbers.reshape(-1), width=REFERENCE)

    def _columns(
        self, table: HistoryTable, fields: Sequence[tuple[int, Field]], windows: _EventWindows
    ) -> dict[int, Column]:
        """Slot -> the events of a field, in the shared arrays of the table.

        A window may have events that do not count: they were not known at the cut-off. Of such windows the other events
        are copied, behind those of the table. With pools, the kernel that copies a window also finds its events.
        """
        start, resolver, gaps = windows.first, None, np.flatnonzero(windows.length < windows.stop - windows.first)
        if table.pools is not None:
            start, resolver, gaps = windows.stop, TableResolver(pools=table.pools), gaps[:0]
        length = windows.length[gaps]
        copied = np.empty(int(length.sum()), np.int64)
        if len(gaps):
            histories.events_that_count(table.known_at, gaps, windows.cutoff, windows.first, windows.stop, copied)
            start = windows.first.copy()
            start[gaps] = table.events + np.cumsum(length) - length
        columns, by_list = {}, dict[str, Column]()  # fields that are looked up share the column of their ids
        for slot, field in fields:
            lookup = self._lookups.get(field.name)
            name = field.name if lookup is None else lookup.join.on
            if name not in by_list:
                values = table.values(name)
                stored = STORED_AS[values.dtype]
                events = run(values.ctypes.data, len(values), runs.FINAL if stored == SAME else runs.PLAIN)
                column = Column(events, start, windows.length, stored=stored, resolver=resolver, owners=(table.shared,))
                if len(gaps):
                    column = column.plus(values[copied].astype(np.float32 if values.dtype.kind == "f" else np.int64))
                by_list[name] = column
            columns[slot] = by_list[name] if lookup is None else lookup.over(by_list[name], field.name)
        return columns

    def _compare_units(self, table: HistoryTable, at: np.ndarray, where: str) -> None:
        """Compare the times of events with those of rows, once per table. Integers have no unit that could be compared
        when files are opened, and seconds beside milliseconds would give rows no events or all of them."""
        if id(table) in self._compared or not len(at) or not len(table.times):
            return
        self._compared.add(id(table))
        events, rows = float(np.median(table.times[:: len(table.times) // 100_000 + 1])), float(np.median(at))
        if min(events, rows) > _LEAST and not 1 / _OTHER_UNIT < events / rows < _OTHER_UNIT:
            join = table.join
            raise DataError(
                f"{where}: {join.at} is about {rows:.0f} and {join.time} of the {table.label} about {events:.0f}. They "
                "seem to count different units, such as seconds and milliseconds: convert one of them with an "
                "expression in columns={...}"
            )


def histories_of(stages: Sequence[Stage]) -> Histories:
    """The histories of a source that has some."""
    (stage,) = (each for each in stages if isinstance(each, Histories))
    return stage


def _fields(layout: Layout, group: str) -> list[tuple[int, Field]]:
    """(slot, field) of the fields of a sequence."""
    return [(slot, field) for slot, field in enumerate(layout.fields) if field.group == group]


def _at_positions(
    table: HistoryTable, decoded: DecodedRows, key: np.ndarray, cutoff: np.ndarray, *, own: int
) -> tuple[np.ndarray, np.ndarray]:
    """(first, stop), int64 [N], of the events before a position.

    Args:
        key: int64 [N], index of the key of each row, -1 without one.
        own: 1 if the event at the position counts, else 0: `cutoff` is then the position plus 1. A row behind the last
            event has no such event.
    """
    has_key, position = key >= 0, cutoff - own
    first = np.where(has_key, table.offsets[key], 0)
    size = np.where(has_key, table.offsets[key + 1] - first, 0)
    wrong = np.flatnonzero(has_key & ~decoded.drop & ((position < 0) | (position > size)))
    if len(wrong):
        row, join = wrong[0], table.join
        what = (
            f"{join.at} is {position[row]}, and the {table.label} has {size[row]} events of {join.on} "
            f"{table.keys[key[row]]}"
        )
        decoded.faults.found("range", join.at, decoded.rows[wrong], what, todo=": both must be of one log")
    return first, first + np.clip(cutoff, 0, size)


def _cut(table: HistoryTable, field: Field, key: np.ndarray, windows: _EventWindows) -> None:
    """Truncate windows to the `max_length` of their sequence, and write their lengths, in place."""
    first, stop, length = windows.first, windows.stop, windows.length
    most = -1 if field.max_length is None else field.max_length
    if table.pools is not None:
        histories.merged_lengths(table.pools, key, most, first, stop, length)
    else:
        histories.cut_windows(table.known_at, windows.cutoff, most, field.keep_last, first, stop, length)


def _apply_policies(table: HistoryTable, decoded: DecodedRows, keys: np.ndarray, key: np.ndarray) -> None:
    """Apply the null policies to rows whose key has no history. keys: int64 [N], their values."""
    unmatched = np.flatnonzero((key < 0) & ~decoded.drop)

    def describe(strict: list[str]) -> tuple[str, str]:
        what = f"{table.join.on} {keys[unmatched[0]]} is not in the {table.label}"
        return what, f", and nulls={{{strict[0]!r}: 'error'}} requires a history"

    decoded.nulls.without_match(table.join.on, unmatched, table.source.nulls, describe)
