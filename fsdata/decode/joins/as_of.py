"""Histories of rows: found by search as they are read, gathered where they are needed.

A row's history is a window of the events of its key. The search gives its place and length; values are copied when the
batch is made, by the rank that computes the sample. So a sample that moves to another rank takes with it only a
*reference*, four numbers: which source read it, the first event of the window, the one after its last, and the time as
of which it is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.catalog.roles import wanted_key, wanted_row_time
from fsdata.decode.joins.history_table import HistoryTable
from fsdata.decode.row_layout import REFERENCE, Field, Layout
from fsdata.decode.row_table import RowTable
from fsdata.decode.slices import Slice
from fsdata.errors import DataError
from fsdata.kernels import histories
from fsdata.kernels.copy import STORED, STORED_SHIFT, gather_fields
from fsdata.schema import Schema

_FACTOR = 100  # between medians of times of different units, a thousand; no data set spans as many epochs
_EVENT_BITS = 48  # of the number of an event; the rest says of which source
_LEAST = 1_000_000  # times below are counted from no common epoch


@dataclass(frozen=True, slots=True)
class _Windows:
    """What rows see of a table: int64 [N] each; `length` of the events in [first, stop) count."""

    first: np.ndarray
    stop: np.ndarray
    before: np.ndarray
    length: np.ndarray


class Histories:
    """The histories of one source; thread-safe.

    Attributes:
        groups: sequence -> the table that brings its fields.
    """

    def __init__(self, tables: Sequence[HistoryTable], schema: Schema, source: int) -> None:
        self.groups: dict[str, HistoryTable] = {
            group.name: table
            for table in tables
            for group in schema.groups
            if set(group.all_fields) & set(table.fields)
        }
        self._tables = tables
        self._source = source
        self._compared: set[int] = set()

    def bucketed(self, group: str) -> int:
        """How many buckets the histories of a sequence have; 0 if they are not bucketed."""
        return self.groups[group].join.bucketed or 0

    def attach(self, rows: Slice, layout: Layout, where: str) -> None:
        """Give the rows of `rows`, whose layout is `layout`, their histories, in place.

        Raises:
            DataError: a null time, a key without a history where a field's policy is `error`, or times of another unit.
        """
        for table in self._tables:
            self._attach(table, rows, layout, where)

    def resolve(self, rows: RowTable, layout: Layout, some: np.ndarray) -> tuple[object, ...]:
        """Point the rows `some`, int64 [n], which came from other ranks, at the events that their references name.

        Changes the addresses of `rows` in place; returns what has to stay alive for them.
        """
        owners: list[object] = []
        for name, slot in layout.references.items():
            numbers = _references(rows, slot, some)
            mine = numbers[:, 0] == self._source
            _, first, stop, before = np.ascontiguousarray(numbers[mine].T)
            fields = _fields(layout, name)
            here = some[mine]
            seen = _Windows(first, stop, before, rows.length[fields[0][0], here])
            for row, address in _addresses(self.groups[name], fields, seen, owners):
                rows.address[row, here] = address
        return tuple(owners)

    def _attach(self, table: HistoryTable, rows: Slice, layout: Layout, where: str) -> None:
        join = table.join
        keys, no_key = rows.arrays[wanted_key(join.on)]
        before, no_time = rows.arrays[wanted_row_time(join.at)]
        if (no_time & (rows.drop == 0)).any():
            row = rows.row(int(np.flatnonzero(no_time & (rows.drop == 0))[0]))
            raise DataError(f"{where}, row {row}: {join.at} is null, and nothing is known as of no time; filter it out")
        self._compare_units(table, before[rows.drop == 0], where)
        found = np.empty(len(keys), np.int64)
        histories.find_keys(table.keys, keys, no_key, found)
        _apply_policies(table, rows, keys, found, where)
        before = before + 1 if join.inclusive else before.copy()
        first, stop = np.empty_like(found), np.empty_like(found)
        histories.find_windows(found, table.offsets, table.times, before, first, stop)
        for name in (name for name, of in self.groups.items() if of is table):
            fields = _fields(layout, name)
            if not fields:
                continue
            seen = _cut(table, fields[0][1], _Windows(first.copy(), stop.copy(), before, np.empty_like(first)))
            for row, address in _addresses(table, fields, seen, rows.owners):
                rows.address[row], rows.length[row] = address, seen.length
            if name in layout.references:
                self._refer(rows, layout.references[name], seen)
        rows.owners.append(table.shared)

    def _refer(self, rows: Slice, slot: int, seen: _Windows) -> None:
        numbers = np.stack([np.full_like(seen.first, self._source), seen.first, seen.stop, seen.before], axis=1)
        rows.address[slot] = numbers.ctypes.data + numbers.strides[0] * np.arange(len(numbers))
        rows.length[slot] = REFERENCE
        rows.owners.append(numbers)

    def _compare_units(self, table: HistoryTable, before: np.ndarray, where: str) -> None:
        """Once per table: seconds beside milliseconds differ by a factor that no two real times differ by."""
        if id(table) in self._compared or not len(before) or not len(table.times):
            return
        self._compared.add(id(table))
        events, rows = float(np.median(table.times[:: len(table.times) // 100_000 + 1])), float(np.median(before))
        if min(events, rows) > _LEAST and not 1 / _FACTOR < events / rows < _FACTOR:
            join = table.join
            raise DataError(
                f"{where}: {join.at} is about {rows:.0f} and {join.time} of the {table.label} about {events:.0f}. They "
                "seem to count different units, such as seconds and milliseconds: bring one of them to the other's "
                "with an expression in columns={...}"
            )


def places(rows: RowTable, layout: Layout) -> dict[str, np.ndarray]:
    """Sequence that samples share -> int64 [N], the number of the first event that each sees among all histories; on
    all ranks in the order of the schema."""
    found = {}
    for name in layout.shared:
        if name in layout.references:
            source, first, _, _ = _references(rows, layout.references[name], np.arange(rows.num_rows)).T
            found[name] = source << _EVENT_BITS | first
    return found


def buckets_of(sources: Sequence[Histories], layout: Layout) -> Callable[[RowTable], np.ndarray] | None:
    """What tells the bucket of the history of each row, int64 [N]; None where no history is bucketed.

    A bucket is a stretch of the events of all histories. Where a row has several, the first that is bucketed counts.
    """
    name = next((each for each in layout.references if any(of.bucketed(each) for of in sources)), None)
    if name is None:
        return None
    buckets = np.array([of.bucketed(name) for of in sources])
    events = np.array([max(len(of.groups[name].times), 1) for of in sources])

    def bucket(rows: RowTable) -> np.ndarray:
        source, first, _, _ = _references(rows, layout.references[name], np.arange(rows.num_rows)).T
        found: np.ndarray = first * buckets[source] // events[source]
        return found

    return bucket


def _references(rows: RowTable, slot: int, some: np.ndarray) -> np.ndarray:
    """int64 [n, REFERENCE]: those of the rows `some`."""
    numbers = np.empty((len(some), REFERENCE), np.int64)
    gather_fields(
        rows.address[slot : slot + 1, some],
        np.full((1, len(some)), REFERENCE),
        np.array([8]),
        np.array([numbers.ctypes.data]),
    )
    return numbers


def _fields(layout: Layout, group: str) -> list[tuple[int, Field]]:
    """The rows of the layout that hold the fields of a sequence."""
    return [(row, field) for row, field in enumerate(layout.fields) if field.group == group]


def _cut(table: HistoryTable, field: Field, seen: _Windows) -> _Windows:
    most = -1 if field.max_length is None else field.max_length
    histories.cut_windows(table.known, seen.before, most, field.keep_last, seen.first, seen.stop, seen.length)
    return seen


def _addresses(
    table: HistoryTable, fields: Sequence[tuple[int, Field]], seen: _Windows, owners: list[object]
) -> list[tuple[int, np.ndarray]]:
    """(row of the layout, int64 [N] addresses) for each field. Windows with events that do not count are copied
    without those."""
    holes = np.flatnonzero(seen.length < seen.stop - seen.first)
    events = np.empty(int(seen.length[holes].sum()), np.int64)
    if len(holes):
        histories.events_that_count(table.known, holes, seen.before, seen.first, seen.stop, events)
    starts = np.cumsum(seen.length[holes]) - seen.length[holes]
    found = []
    for row, field in fields:
        values = table.fields[field.name]
        address = _address(values, seen.first)
        if len(holes):
            apart = values[events]
            owners.append(apart)
            address[holes] = _address(apart, starts)
        found.append((row, address))
    return found


def _address(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """int64: of the elements `at`, with the type in which they are stored."""
    stored = STORED.get(values.dtype, 0) << STORED_SHIFT
    return values.ctypes.data + at * values.itemsize | stored


def _apply_policies(table: HistoryTable, rows: Slice, keys: np.ndarray, found: np.ndarray, where: str) -> None:
    """Of keys without a history."""
    policies: Mapping[str, str] = table.source.nulls
    lost = np.flatnonzero((found < 0) & (rows.drop == 0))
    if not len(lost) or not policies:
        return
    for name, policy in policies.items():
        if policy == "error":
            raise DataError(
                f"{where}, row {rows.row(int(lost[0]))}: {table.join.on} {keys[lost[0]]} is "
                f"not in the {table.label}, and nulls={{{name!r}: 'error'}} asks for a history"
            )
    if "drop" in policies.values():
        rows.drop[lost] = 1
