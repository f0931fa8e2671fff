"""A table of histories in memory: read once per host, checked, and kept in the integers of the files.

Letters: K keys, E events of all of them, T fields.
"""

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.arrow_types import is_list, plain
from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import Counted, check_key, check_times
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.align import align
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.join_keys import check_unique, keyed_rows
from fsdata.decode.row_groups import RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import Fault, Faults, SchemaError
from fsdata.histories.as_of import AsOf
from fsdata.histories.kernels import histories
from fsdata.histories.spill_buffer import SpillBuffer
from fsdata.kernels.columns import STORED_AS
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources import expressions
from fsdata.sources.expressions import Expression
from fsdata.sources.source import ParquetSource
from fsranks.machine.cores import usable_cores

_NOTHING = np.frombuffer(b"", np.int64)  # read-only, as the arrays of tables are: kernels are compiled for those
_KEYS, _OFFSETS, _MASK, _PLACES, _BOUNDS = " keys", " offsets", " mask", " places ", " bounds "  # no field is called so
_DISJOINT = " disjoint"  # whether every event is in one pool at most
_SKIPPED = " skipped"  # JSON: what was left out of the files while they were read
_ALL = 1 << 62  # events
_AHEAD = 64 << 20  # bytes of events of row groups that are decoded ahead
_VERSION = 4  # of the arrays that processes share


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """The histories of one `AsOf`.

    Attributes:
        label: how messages call it.
        keys: int64 [K], ascending; offsets: int64 [K + 1], the events of each.
        times: int64 [E], ascending inside a key where rows are placed by time, or empty; known: int64 [E], or empty.
        counted: what the integers of its key and lists count.
        pools: see `fsdata.histories.kernels.histories`; None without pools.
        catalog: the files of the table. lists: those that are stored, with the mask of the pools. name: that of its
            arrays; tables with equal names have equal arrays.
    """

    join: AsOf
    label: str
    skipped: list[Skipped]
    fingerprint: dict[str, str]
    counted: Mapping[str, Counted]
    shared: SharedArrays
    pools: np.ndarray | None
    catalog: Catalog
    lists: tuple[str, ...]
    name: str

    kinds: ClassVar[tuple[FileKind, ...]] = ()
    defaults: ClassVar[Mapping[str, float | str]] = MappingProxyType({})
    masks: ClassVar[frozenset[str]] = frozenset()

    @property
    def may_drop(self) -> bool:
        return any(self.source.policy(name) == "drop" for name in self.join.fields)

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        join = self.join
        check_key(join.on, own.get(Field(join.on, "join_key")), self.counted.get(join.on))
        if not join.by_position and join.time is not None:
            check_times(join.at, own.get(Field(join.at, "row_time")), join.time, self.counted.get(join.time))

    @property
    def source(self) -> ParquetSource:
        return self.join.source

    @property
    def keys(self) -> np.ndarray:
        return self.shared[_KEYS]

    @property
    def offsets(self) -> np.ndarray:
        return self.shared[_OFFSETS]

    @property
    def events(self) -> int:
        """E."""
        return int(self.offsets[-1])

    @property
    def times(self) -> np.ndarray:
        return _NOTHING if self.join.time is None else self.shared[self.join.time]

    @property
    def known(self) -> np.ndarray:
        return _NOTHING if self.join.known_at is None else self.shared[self.join.known_at]

    @property
    def integer_times(self) -> bool:
        """Whether its times are integers, and not nanoseconds of timestamps."""
        time = self.counted.get(self.join.times[0]) if self.join.times else None
        return time is None or time.unit == "integers"

    @property
    def fields(self) -> Mapping[str, np.ndarray]:
        return {name: self.values(name) for name in self.join.fields}

    def values(self, name: str) -> np.ndarray:
        """[E], of the type that the files have, or float32; of the mask of the pools, uint8."""
        return self.shared[_MASK if name == self.join.mask else name]


def load_histories(
    join: AsOf,
    schema: Schema,
    open_files: Callable[..., SourceFiles],
    *,
    label: str,
    also: Mapping[str, bool],
) -> HistoryTable:
    """Read a table of histories, or map the one that another process of this host has read.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`. label: how messages call it.
    also: further lists that are kept, of numbers, and whether the table must have them.

    Raises:
        SchemaError: the files cannot be read as these fields.
        DataError: a null key, a key that two rows share, lists of one row that differ in length, or that are not in
            ascending time. With `notes` such rows are noted there, as are times in the future.
    """
    files = open_files(lambda catalog: _wanted(join, schema, label, _there(also, catalog), catalog), lists=True)
    notes = files.faults.notes
    try:
        identity = fingerprint(join.source, files.catalog, (), files.version)
        more = _there(also, files.catalog)
        # What a row sees of its events is found where it is read.
        form = replace(join, inclusive=False, scan=None, cap=None, bucketed=join.bucketed and 1).form
        described = (form, sorted(more), [(field.name, field.kind) for field in files.wanted])
        contents = (_VERSION, identity, described, versions(files), *own_copy(notes))
        name = blake2b(repr(contents).encode(), digest_size=16).hexdigest()
        reading = _Reading(files, join, more)
        shared = SharedArrays(name, reading.arrays, label, on_disk=join.bucketed is not None)
        for left_out in json.loads(shared[_SKIPPED].tobytes()):
            files.leave_out(**left_out)
    finally:
        files.close()
    found = {field.name: each for field, each in files.counted.items()}
    for name in join.times[1:]:
        check_times(join.times[0], found.get(join.times[0]), name, found.get(name))
    table = _pool_table(join, shared) if join.pools else None
    lists = tuple(dict.fromkeys((*join.fields, *join.times, *more)))
    return HistoryTable(join, label, files.skipped, identity, found, shared, table, files.catalog, lists, name)


def _there(also: Mapping[str, bool], catalog: Catalog) -> tuple[str, ...]:
    """Those of further lists that the table must have, or has."""
    return tuple(name for name, must in also.items() if must or any(name in each.names for each in catalog.schemas))


def _pool_table(join: AsOf, shared: SharedArrays) -> np.ndarray:
    """See `fsdata.histories.kernels.histories`."""
    of: list[int] = []
    for number, cap in enumerate(join.caps):
        places, bounds = shared[_PLACES + str(number)], shared[_BOUNDS + str(number)]
        of += [places.ctypes.data, bounds.ctypes.data, _ALL if cap is None else cap]
    at, disjoint = shared[_MASK].ctypes.data, int(shared[_DISJOINT][0])
    head = [len(shared[_KEYS]), shared[_OFFSETS].ctypes.data, len(join.pools), disjoint, at]
    return np.array([*head, *of], np.int64)


def own_copy(notes: list[Fault] | None) -> tuple[str, ...]:
    """What tells the arrays of a check from all others: they hold rows that a loader refuses, so nobody shares them."""
    return () if notes is None else (secrets.token_hex(),)


def _wanted(join: AsOf, schema: Schema, label: str, also: Sequence[str], catalog: Catalog) -> list[Field]:
    """What is read of a table. Times that are fields, too, are read once, as times."""
    unknown = sorted(set(join.source.defaults) - {*join.fields, *join.only_read, *also})
    if unknown:
        raise SchemaError(
            f"{label}: defaults names {', '.join(unknown)}, which nothing is made of; lists that are read: "
            f"{', '.join((*join.fields, *join.only_read, *also))}"
        )
    fields = {field.name: field for field in fields_of(schema) if field.name in join.fields and field.name != join.mask}
    for name in join.times:
        if name in fields and fields[name].number != "id":
            raise SchemaError(
                f"{label}: {name!r} is a time of events, in int64, and one of the floats: give the floats another name "
                f"with columns={{...: {name!r}}} of the histories"
            )
    return [
        *(field for name, field in fields.items() if name not in join.times),
        *(Field(name, "event_times") for name in join.times),
        *(
            Field(name, "floats" if _holds_floats(catalog, join.source.columns.get(name, name)) else "event_ids")
            for name in dict.fromkeys((*join.only_read, *also))
            if name not in fields and name not in join.times
        ),
        Field(join.on, "join_key"),
    ]


def _holds_floats(catalog: Catalog, column: object) -> bool:
    """Whether a column is a list of floats in some of the files."""
    if not isinstance(column, str):
        return False
    found = [kind for schema in catalog.schemas if (kind := type_at(schema, column)) is not None]
    return any(is_list(plain(each)) and pa.types.is_floating(plain(plain(each).value_type)) for each in found)


def item_types(files: SourceFiles, field: Field) -> set[pa.DataType | None]:
    """The types that a field has in the files, those of the elements of lists; None for a default."""
    found = set()
    for kind in files.kinds:
        for binding in kind.bindings:
            if binding.field == field:
                outer = None if binding.type is None else plain(binding.type)
                found.add(plain(outer.value_type) if outer is not None and is_list(outer) else outer)
    return found


def versions(files: SourceFiles) -> list[tuple[object, ...]]:
    """What tells files apart whose footers are equal: footers without statistics say nothing of the values."""
    found = zip(files.catalog.files, files.versions(), strict=True)
    return [
        (file.filesystem.type_name, file.path, size, modified or None, inode if file.local else None)
        for file, (size, modified, inode) in found
    ]


class _Reading:
    """Row groups, one after another, to arrays."""

    def __init__(self, files: SourceFiles, join: AsOf, also: Sequence[str]) -> None:
        lists = [field for field in files.wanted if field.shape == "list"]
        self._files = files
        self._join = join
        self._also = also
        self._layout = Layout(
            tuple(Field(each.name, "floats" if each.number == "value" else "ids", "histories") for each in lists), 0
        )
        self._stored = {each.name: _stored(files, each) for each in lists} | {_MASK: np.dtype(np.uint8)}
        self._plans = files.plans(self._layout)
        # Other ranks of the host wait meanwhile. Faults that are noted stand in the order of the files.
        self._threads = usable_cores() if files.faults.notes is None else 1

    def arrays(self, scratch: Path | None) -> Arrays:
        """Everything by name, the events in the order of their keys. scratch: where events lie until then, if not in
        memory."""
        kept = dict.fromkeys(
            (*self._join.fields, *self._join.times, *self._also, *([_MASK] if self._join.pools else []))
        )
        kept.pop(self._join.mask or "", None)
        buffers = {name: SpillBuffer(self._stored[name], scratch and scratch / str(n)) for n, name in enumerate(kept)}
        heads, disjoint = [], True
        for part in self._parts():
            heads.append((part.keys, part.lengths))
            for name, buffer in buffers.items():
                buffer.add(part.events[name])
            if self._join.pools:
                mask = part.events[_MASK]
                disjoint &= not (mask & (mask - 1)).any()
        empty = np.empty(0, np.int64)
        keys = np.concatenate([empty, *(keys for keys, _ in heads)])
        lengths = np.concatenate([empty, *(lengths for _, lengths in heads)])
        order = np.argsort(keys, kind="stable")
        one_row = f"a table of histories has one row per key. {_MAKE_ONE}"
        check_unique(keys[order], self._files.faults, self._join.on, one_row)
        starts = np.cumsum(lengths) - lengths
        found = {_KEYS: keys[order], _OFFSETS: np.concatenate([[0], np.cumsum(lengths[order])])}
        found[_DISJOINT] = np.array([disjoint])
        found[_SKIPPED] = np.frombuffer(json.dumps(self._left_out()).encode(), np.uint8)
        in_order = bool((order == np.arange(len(order))).all())
        for name, buffer in buffers.items():
            found[name] = buffer.whole() if in_order else buffer.gathered(starts[order], lengths[order])
        for number in range(len(self._join.pools)):
            found[_PLACES + str(number)], found[_BOUNDS + str(number)] = self._pool(number, found, scratch)
        return found

    def _pool(self, number: int, found: Arrays, scratch: Path | None) -> tuple[np.ndarray, np.ndarray]:
        """Where the events of a pool are, see `fsdata.histories.kernels.histories`."""
        mask, offsets, bit = read_only(found[_MASK]), read_only(found[_OFFSETS]), np.uint8(1 << number)
        bounds = np.empty(len(offsets), np.int64)
        histories.count_pool(mask, bit, offsets, bounds)
        size = int(bounds[-1])
        if scratch is None or not size:
            places = np.empty(size, np.uint32)
        else:
            places = np.memmap(scratch / f"pool {number}", np.uint32, "w+", shape=size)
        histories.find_pool(mask, bit, offsets, places)
        return places, bounds

    def _parts(self) -> Iterator["_Part"]:
        """Decoded by several threads, in the order of the files; so is the first fault. Memory holds a few of them."""
        groups, at_once, largest = iter(self._files.groups), 1, 1
        ahead: deque[Future[_Part | None]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="fsdata-histories") as pool:
            try:
                while True:
                    some = islice(groups, max(at_once - len(ahead), 0))
                    ahead.extend(pool.submit(self._part, group) for group in some)
                    if not ahead:
                        return
                    part = ahead.popleft().result()
                    if part is not None:
                        largest = max(largest, sum(values.nbytes for values in part.events.values()))
                        at_once = min(_AHEAD // largest + 1, self._threads + 1)
                        yield part
            finally:
                for each in ahead:
                    each.cancel()

    def _left_out(self) -> list[dict[str, Any]]:
        """Row groups that are damaged and skipped: who maps the arrays has to know of them."""
        place = {name: number for number, name in enumerate(self._files.catalog.files.names())}
        found = self._files.skipped  # by several threads; whole files come first
        found.sort(key=lambda each: (-1, 0) if each.row_group is None else (place[each.file], each.row_group))
        return [asdict(each) for each in found if each.row_group is not None]

    def _part(self, group: RowGroup) -> "_Part | None":
        decoded = self._files.decode(self._plans, group)
        if decoded is None:
            return None
        on = self._join.on
        align(decoded, self._join.source.defaults)
        alive, keys = keyed_rows(decoded, on)
        lengths = decoded.columns[0].lengths(len(decoded.rows))[alive]
        part = _Part(keys, lengths, self._events(decoded, alive))
        if self._join.time is not None and not self._join.by_position:
            _check_order(part, self._join.time, on, decoded.faults, decoded.rows[alive])
        if decoded.faults.notes is not None:
            for name in self._join.times:
                _note_future(part, name, decoded.faults, decoded.rows[alive])
        if self._join.condition is not None:
            part = self._chosen(part, self._join.condition)
        return self._with_mask(part) if self._join.pools else part

    def _events(self, decoded: DecodedRows, alive: np.ndarray) -> dict[str, np.ndarray]:
        """Of every field the values of the rows `alive`, one after another, as they are stored."""
        return {
            field.name: decoded.columns[slot].gathered(field.dtype, alive).astype(self._stored[field.name], copy=False)
            for slot, field in enumerate(self._layout.fields)
        }

    def _with_mask(self, part: "_Part") -> "_Part":
        """With the mask of the pools among the events."""
        mask = np.zeros(len(next(iter(part.events.values()))), np.uint8)
        for number, pool in enumerate(self._join.pool_conditions):
            mask |= where(pool, part.events).astype(np.uint8) << np.uint8(number)
        return replace(part, events={**part.events, _MASK: mask})

    def _chosen(self, part: "_Part", condition: Expression) -> "_Part":
        """The events for which the condition is true."""
        mask = where(condition, part.events)
        before = np.concatenate([[0], np.cumsum(mask)])
        ends = np.cumsum(part.lengths)
        return replace(
            part,
            lengths=before[ends] - before[ends - part.lengths],
            events={name: values[mask] for name, values in part.events.items()},
        )


def where(condition: Expression, events: Mapping[str, np.ndarray]) -> np.ndarray:
    """bool [e]: for which events a condition is true; null is not. events: name -> [e].

    Raises:
        SchemaError: it is not true or false.
    """
    names = condition.columns
    rows = pa.RecordBatch.from_arrays([pa.array(events[name]) for name in names], list(names))
    kind = expressions.output_type(condition, rows.schema)
    if not pa.types.is_boolean(kind):
        raise SchemaError(
            f"the condition over {', '.join(names)} gives {kind} where true or false is needed. Lists of booleans hold "
            f"0 and 1 here: compare them, as in pl.col({names[0]!r}) == 1"
        )
    (found,) = expressions.evaluate([condition], [pa.bool_()], rows)
    mask: np.ndarray = found.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def read_only(values: np.ndarray) -> np.ndarray:
    """The same memory, as kernels take arrays that they only read."""
    found = np.asarray(values).view()
    found.flags.writeable = False
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """Histories of a row group. keys, lengths: int64 [k]; events: name -> [e]."""

    keys: np.ndarray
    lengths: np.ndarray
    events: dict[str, np.ndarray]


def _stored(files: SourceFiles, field: Field) -> np.dtype[Any]:
    """The type in which a field is kept: that of the files where it has 32 bits or fewer."""
    if field.number != "id":
        return np.dtype(np.int64 if field.number == "time" else np.float32)
    types = item_types(files, field)
    kinds = [_integer(kind) for kind in types if kind is not None]
    default = files.source.defaults.get(field.name)
    if default is not None:
        kinds.append(np.min_scalar_type(int(default)))
    found: np.dtype[Any] = np.result_type(*(kinds or [np.dtype(np.int64)]))
    return found if found in STORED_AS else np.dtype(np.int64)


def _integer(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_boolean(kind):
        return np.dtype(np.uint8)
    return np.dtype(str(kind)) if pa.types.is_integer(kind) else np.dtype(np.int64)


_MAKE_ONE = "`freescale histories` makes one of events"


def _check_order(part: "_Part", time: str, on: str, faults: Faults, rows: np.ndarray) -> None:
    """rows: numbers of the histories in the row group."""
    offsets = np.concatenate([[0], np.cumsum(part.lengths)])
    event = histories.find_unsorted(part.events[time], offsets)
    if event < 0:
        return
    row = int(np.searchsorted(offsets, event, side="right")) - 1
    earlier, later = part.events[time][event - 1 : event + 1].tolist()
    times = part.events[time]
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1  # differences may have more than 64 bits
    falls = falls[~np.isin(falls, offsets)]
    faults.found(
        "unsorted",
        time,
        rows[np.searchsorted(offsets, falls, side="right") - 1],
        f"the history of {on} {part.keys[row]} is not ascending: {time} is {later} at position {event - offsets[row]} "
        f"and {earlier} before it",
        todo=f". Sort the lists: {_MAKE_ONE}",
    )


_UNITS = [10**places for places in (0, 3, 6, 9)]  # seconds to nanoseconds
_EARLIEST_S = 100_000_000  # since 1970: smaller numbers count from no common epoch
_AHEAD_S = 86_400  # clocks of other time zones are not in the future


def _note_future(part: _Part, name: str, faults: Faults, rows: np.ndarray) -> None:
    """Note histories with a time in the future; a loader takes them, as it cannot know what its clock is worth."""
    times = part.events[name]
    units = [unit for unit in _UNITS if len(times) and np.median(times) > unit * _EARLIEST_S]
    late = np.flatnonzero(times > (time.time() + _AHEAD_S) * max(units)) if units else times[:0]
    if len(late):
        some = np.searchsorted(np.cumsum(part.lengths), late, side="right")
        faults.found("future", name, rows[some], f"{name} holds a time in the future")
