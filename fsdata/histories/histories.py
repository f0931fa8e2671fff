"""Histories of rows: found by search as they are read, gathered where they are needed.

A row's history is a window of the events of its key. The search gives its place and length; values are copied when the
batch is made, by the rank that computes the sample. So a sample that moves to another rank takes with it only a
*reference*, four numbers: which source read it, the first event of the window, the one after its last, and the time as
of which it is taken.
"""

from collections.abc import Callable, Mapping, Sequence
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

_FACTOR = 100  # between medians of times of different units, a thousand; no data set spans as many epochs
_EVENT_BITS = 48  # of the number of an event; the rest says of which source
_LATEST = np.iinfo(np.int64).max  # "now" in many tables: nothing is later, so one more would wrap around
_LEAST = 1_000_000  # times below are counted from no common epoch


@dataclass(frozen=True, slots=True)
class _Windows:
    """What rows see of a table: int64 [N] each; `length` of the events in [first, stop) count."""

    first: np.ndarray
    stop: np.ndarray
    before: np.ndarray
    length: np.ndarray


class Histories(Stage):
    """The histories of one source; thread-safe.

    Attributes:
        groups: sequence -> the table that brings its fields.
    """

    turn = 2

    def __init__(
        self, tables: Sequence[HistoryTable], lookups: Sequence[LookupTable], schema: Schema, source: int
    ) -> None:
        """lookups: of the same source, of what the tables hold. source: its number in the loader."""
        self.groups: dict[str, HistoryTable] = {
            group.name: table
            for table in tables
            for group in schema.groups
            if set(group.all_fields) & set(table.join.fields)
        }
        self.references = self.groups.keys()
        self._tables = tables
        self._lookups = {name: each for each in lookups for name in each.join.fields}
        self._source = source
        self._compared: set[int] = set()

    def bucketed(self, group: str) -> int:
        """How many buckets the histories of a sequence have; 0 if they are not bucketed."""
        return self.groups[group].join.bucketed or 0

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Give decoded rows their histories, in place.

        Raises:
            DataError: a null time, a key without a history where a field's policy is `error`, or times of another unit.
        """
        for table in self._tables:
            self._attach(table, decoded)

    def bucket(self, sources: Sequence[Sequence[Stage]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
        return buckets_of(_of_each(sources), layout) if layout.references else None

    def first_events(self, rows: RowRefs, layout: Layout) -> dict[str, np.ndarray]:
        return first_events(rows, layout)

    def received(self, columns: list[Column], rows: int, layout: Layout, sources: Sequence[Sequence[Stage]]) -> RowRefs:
        return received(columns, rows, layout, _of_each(sources))

    def complete(self, columns: list[Column], layout: Layout, rows: int) -> None:
        """Point the fields of rows that came from other ranks, by slot, at the events that their references name, in
        place."""
        for name, slot in layout.references.items():
            numbers = columns[slot].gathered(np.int64, np.arange(rows)).reshape(rows, REFERENCE)
            _, first, stop, before = np.ascontiguousarray(numbers.T)
            fields = _fields(layout, name)
            seen = _Windows(first, stop, before, columns[fields[0][0]].lengths(rows))
            for to, column in self._columns(self.groups[name], fields, seen).items():
                columns[to] = column

    def _attach(self, table: HistoryTable, decoded: DecodedRows) -> None:
        join, layout = table.join, decoded.layout
        keys, no_key = decoded.keys[Field(join.on, "join_key")]
        before, no_time = decoded.keys[Field(join.at, "row_time")]
        if (no_time & ~decoded.drop).any():
            rows = decoded.rows[no_time & ~decoded.drop]
            what = f"{join.at} is null, and nothing is known as of no {'position' if join.by_position else 'time'}"
            decoded.faults.found("null", join.at, rows, what, todo="; filter it out")
        if not join.by_position:
            self._compare_units(table, before[~decoded.drop & (before < _LATEST)], decoded.faults.where)
        found = np.empty(len(keys), np.int64)
        histories.find_keys(table.keys, keys, no_key, found)
        _apply_policies(table, decoded, keys, found)
        before = before + (before < _LATEST) if join.inclusive else before.copy()
        if join.by_position:
            first, stop = _at_positions(table, decoded, found, before, own=int(join.inclusive))
        else:
            first, stop = np.empty_like(found), np.empty_like(found)
            histories.find_windows(found, table.offsets, table.times, before, first, stop)
        if join.scan is not None:
            first = np.maximum(first, stop - join.scan)
        for name in (name for name, of in self.groups.items() if of is table):
            fields = _fields(layout, name)
            if not fields:
                continue
            seen = _cut(table, fields[0][1], found, _Windows(first.copy(), stop.copy(), before, np.empty_like(first)))
            decoded.columns |= self._columns(table, fields, seen)
            if name in layout.references:
                numbers = np.stack([np.full_like(found, self._source), seen.first, seen.stop, seen.before], axis=1)
                decoded.columns[layout.references[name]] = Column.of(numbers.reshape(-1), width=REFERENCE)

    def _columns(self, table: HistoryTable, fields: Sequence[tuple[int, Field]], seen: _Windows) -> dict[int, Column]:
        """Slot -> the events of a field. Windows with events that do not count are copied without those; what rows see
        of pools is found when it is copied."""
        merged = table.pools is not None
        resolver = TableResolver(pools=table.pools) if merged else None
        holes = np.flatnonzero(seen.length < (seen.length if merged else seen.stop - seen.first))
        events = np.empty(int(seen.length[holes].sum()), np.int64)
        start = seen.stop if merged else seen.first
        if len(holes):
            histories.events_that_count(table.known, holes, seen.before, seen.first, seen.stop, events)
            start = seen.first.copy()
            start[holes] = table.events + np.cumsum(seen.length[holes]) - seen.length[holes]
        found, made = {}, dict[str, Column]()  # what is looked up shares the column of its ids
        for slot, field in fields:
            lookup = self._lookups.get(field.name)
            name = field.name if lookup is None else lookup.join.on
            if name not in made:
                values = table.values(name)
                stored = STORED_AS[values.dtype]
                where = run(values.ctypes.data, len(values), runs.FINAL if stored == SAME else runs.PLAIN)
                made[name] = Column(where, start, seen.length, stored=stored, resolver=resolver, owners=(table.shared,))
                if len(holes):
                    kind = np.float32 if values.dtype.kind == "f" else np.int64
                    made[name] = made[name].plus(values[events].astype(kind))
            found[slot] = made[name] if lookup is None else lookup.over(made[name], field.name)
        return found

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


def _of_each(sources: Sequence[Sequence[Stage]]) -> list[Histories]:
    return [each for stages in sources for each in stages if isinstance(each, Histories)]


def histories_of(stages: Sequence[Stage]) -> Histories:
    """Those of a source, which has some."""
    (found,) = _of_each([stages])
    return found


def received(columns: list[Column], rows: int, layout: Layout, sources: Sequence[Histories]) -> RowRefs:
    """Rows that came from other ranks, with their histories. columns: by slot, with references in place of events."""
    reference = columns[next(iter(layout.references.values()))]
    source_of = reference.gathered(np.int64, np.arange(rows)).reshape(rows, REFERENCE)[:, 0]
    block, row, blocks = np.empty(rows, np.int32), np.empty(rows, np.int32), list[Block]()
    for source, histories_of in enumerate(sources):
        here = np.flatnonzero(source_of == source)
        if len(here):
            mine = [column.take(here) for column in columns]
            histories_of.complete(mine, layout, len(here))
            block[here], row[here] = len(blocks), np.arange(len(here))
            blocks.append(Block.of(mine, len(here), source))
    return RowRefs(Blocks(blocks, len(columns)), block, row)


def first_events(rows: RowRefs, layout: Layout) -> dict[str, np.ndarray]:
    """Sequence that samples share -> int64 [N], the number of the first event that each sees among all histories; on
    all ranks in the order of the schema."""
    found = {}
    for name in layout.shared:
        if name in layout.references:
            source, first, _, _ = rows.numbers(layout.references[name], REFERENCE).T
            found[name] = source << _EVENT_BITS | first
    return found


def buckets_of(sources: Sequence[Histories], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
    """What tells the bucket of the history of each row, int64 [N]; None where no history is bucketed.

    A bucket is a stretch of the events of all histories. Where a row has several, the first that is bucketed counts.
    """
    name = next((each for each in layout.references if any(of.bucketed(each) for of in sources)), None)
    if name is None:
        return None
    buckets = np.array([of.bucketed(name) for of in sources])
    events = np.array([max(of.groups[name].events, 1) for of in sources])

    def bucket(rows: RowRefs) -> np.ndarray:
        source, first, _, _ = rows.numbers(layout.references[name], REFERENCE).T
        found: np.ndarray = first * buckets[source] // events[source]
        return found

    return bucket


def _fields(layout: Layout, group: str) -> list[tuple[int, Field]]:
    """The rows of the layout that hold the fields of a sequence."""
    return [(row, field) for row, field in enumerate(layout.fields) if field.group == group]


def _at_positions(
    table: HistoryTable, decoded: DecodedRows, found: np.ndarray, before: np.ndarray, *, own: int
) -> tuple[np.ndarray, np.ndarray]:
    """(first, stop), int64 [N], of the events before a position. found: int64 [N], the places of the keys, or -1.

    own: of the events that a row sees, so many are not before it; a row behind all events has none of its own.
    """
    there = found >= 0
    first = np.where(there, table.offsets[found], 0)
    size = np.where(there, table.offsets[found + 1] - first, 0)
    wrong = np.flatnonzero(there & ~decoded.drop & ((before - own < 0) | (before - own > size)))
    if len(wrong):
        at, join = wrong[0], table.join
        what = (
            f"the row stands behind {before[at] - own} events, and the {table.label} has {size[at]} of {join.on} "
            f"{table.keys[found[at]]}"
        )
        decoded.faults.found("range", join.at, decoded.rows[wrong], what, todo=": both must be of one log")
    return first, first + np.clip(before, 0, size)


def _cut(table: HistoryTable, field: Field, found: np.ndarray, seen: _Windows) -> _Windows:
    most = -1 if field.max_length is None else field.max_length
    if table.pools is not None:
        histories.merged_lengths(table.pools, found, most, seen.first, seen.stop, seen.length)
        return seen
    histories.cut_windows(table.known, seen.before, most, field.keep_last, seen.first, seen.stop, seen.length)
    return seen


def _apply_policies(table: HistoryTable, decoded: DecodedRows, keys: np.ndarray, found: np.ndarray) -> None:
    """Of keys without a history."""
    policies: Mapping[str, str] = table.source.nulls
    lost = np.flatnonzero((found < 0) & ~decoded.drop)

    def say(strict: list[str]) -> tuple[str, str]:
        what = f"{table.join.on} {keys[lost[0]]} is not in the {table.label}"
        return what, f", and nulls={{{strict[0]!r}: 'error'}} asks for a history"

    decoded.nulls.without_match(table.join.on, lost, policies, say)
