"""A table of histories in memory: read once per host, checked, and stored in the integer types of the files.

Letters: K keys, E events of all keys.
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
from typing import Any

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.arrow_types import is_list, plain
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import Counted, check_times
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.align import align
from fsdata.decode.attached import Attached
from fsdata.decode.keyed_rows import keyed_rows, order_of_keys
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.decode.row_layout import Layout
from fsdata.errors import Faults, SchemaError
from fsdata.histories.as_of import AsOf
from fsdata.histories.kernels import histories
from fsdata.histories.spill_buffer import SpillBuffer
from fsdata.kernels.columns import STORED_AS
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources import expressions
from fsdata.sources.expressions import Expression
from fsranks.machine.cores import usable_cores

_NO_TIMES = np.frombuffer(b"", np.int64)  # read-only, like shared arrays: numba compiles the kernels for one type
# Names of shared arrays that are not lists. Names of fields have no leading space.
_KEYS, _OFFSETS, _MASK, _POSITIONS, _BOUNDS = " keys", " offsets", " mask", " positions ", " bounds "
_DISJOINT = " disjoint"  # whether every event is in one pool at most
_SKIPPED = " skipped"  # JSON: row groups that were left out while the table was read
_NO_CAP = 1 << 62  # events
_AHEAD = 64 << 20  # bytes of events in row groups that are decoded ahead
_VERSION = 5  # of the arrays that processes share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistoryTable(Attached):
    """The histories of one `AsOf`.

    Attributes:
        shared: its arrays.
        pools: input of the kernels, see `fsdata.histories.kernels.histories`; None without pools.
        lists: names of the lists that are stored, the mask of the pools included.
        name: name of the arrays; tables with equal names have equal arrays.
    """

    join: AsOf
    shared: SharedArrays
    pools: np.ndarray | None
    lists: tuple[str, ...]
    name: str

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        join, units = self.join, self.counted
        Attached.check(self, own, ids)  # not by super(), which does not work in dataclasses with slots
        if not join.by_position and join.time is not None:
            check_times(join.at, own.get(Field(join.at, "row_time")), join.time, units.get(join.time))

    @property
    def keys(self) -> np.ndarray:
        """int64 [K], ascending."""
        return self.shared[_KEYS]

    @property
    def offsets(self) -> np.ndarray:
        """int64 [K + 1], the first event of each key."""
        return self.shared[_OFFSETS]

    @property
    def events(self) -> int:
        """E."""
        return int(self.offsets[-1])

    @property
    def times(self) -> np.ndarray:
        """int64 [E], ascending within a key unless rows are placed by position; empty without times."""
        return _NO_TIMES if self.join.time is None else self.shared[self.join.time]

    @property
    def known_at(self) -> np.ndarray:
        """int64 [E]; empty if all events are known at their time."""
        return _NO_TIMES if self.join.known_at is None else self.shared[self.join.known_at]

    @property
    def integer_times(self) -> bool:
        """Whether its times are integers, and not nanoseconds of timestamps."""
        time = self.counted.get(self.join.times[0]) if self.join.times else None
        return time is None or time.unit == "integers"

    @property
    def fields(self) -> Mapping[str, np.ndarray]:
        """Field -> its values."""
        return {name: self.values(name) for name in self.join.fields}

    def values(self, name: str) -> np.ndarray:
        """[E], a list in the integer type of the files, or float32; uint8 for the mask of the pools."""
        return self.shared[_MASK if name == self.join.mask else name]


def load_histories(
    join: AsOf,
    schema: Schema,
    open_files: Callable[..., SourceFiles],
    *,
    label: str,
    extra: Mapping[str, bool],
) -> HistoryTable:
    """Read a table of histories, or map the arrays of another process of this host.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`. label: name of the table in messages.
    extra: further lists of numbers to store -> whether the table must have them.

    Raises:
        SchemaError: the files cannot be read as these fields.
        DataError: a null key, a key of two rows, lists of one row that differ in length, or times that do not ascend.
            Where faults are noted, these are, and times in the future are noted, too.
    """

    def present(catalog: Catalog) -> tuple[str, ...]:
        return tuple(
            name for name, must in extra.items() if must or any(name in each.names for each in catalog.schemas)
        )

    files = open_files(lambda catalog: _wanted(join, schema, label, present(catalog), catalog), lists=True)
    try:
        more = present(files.catalog)
        # These options select from the arrays when rows are read, so that tables which differ in them share arrays.
        form = replace(join, inclusive=False, scan=None, cap=None, bucketed=join.bucketed and 1).form
        fields = [(field.name, field.kind) for field in files.wanted]
        name = shared_name("histories", files, _VERSION, form, sorted(more), fields)
        reader = _TableReader(files, join, more)
        shared = SharedArrays(name, reader.arrays, label, on_disk=join.bucketed is not None)
        for left_out in json.loads(shared[_SKIPPED].tobytes()):
            files.leave_out(**left_out)
    finally:
        files.close()
    pools = _pool_table(join, shared) if join.pools else None
    lists = tuple(dict.fromkeys((*join.fields, *join.times, *more)))
    table = HistoryTable(join=join, files=files, shared=shared, pools=pools, lists=lists, name=name)
    for other in join.times[1:]:
        check_times(join.times[0], table.counted.get(join.times[0]), other, table.counted.get(other))
    return table


def shared_name(kind: str, files: SourceFiles, *description: object) -> str:
    """Name of the shared arrays of a joined table, a digest of everything that they depend on.

    Arrays of a check have a name of their own: they have rows that a loader rejects, so no loader may map them.
    """
    own = () if files.faults.notes is None else (secrets.token_hex(),)
    identity = fingerprint(files.source, files.catalog, (), files.version)
    # Footers without statistics do not depend on the values: a file that was written again may have an equal one.
    versions = [
        (file.filesystem.type_name, file.path, size, modified or None, inode if file.local else None)
        for file, (size, modified, inode) in zip(files.catalog.files, files.versions(), strict=True)
    ]
    contents = (*description, identity, versions, *own)
    return kind + blake2b(repr(contents).encode(), digest_size=16).hexdigest()


def _pool_table(join: AsOf, shared: SharedArrays) -> np.ndarray:
    """See `fsdata.histories.kernels.histories`."""
    pools: list[int] = []
    for number, cap in enumerate(join.caps):
        positions, bounds = shared[_POSITIONS + str(number)], shared[_BOUNDS + str(number)]
        pools += [positions.ctypes.data, bounds.ctypes.data, _NO_CAP if cap is None else cap]
    mask, disjoint = shared[_MASK].ctypes.data, int(shared[_DISJOINT][0])
    head = [len(shared[_KEYS]), shared[_OFFSETS].ctypes.data, len(join.pools), disjoint, mask]
    return np.array([*head, *pools], np.int64)


def _wanted(join: AsOf, schema: Schema, label: str, extra: Sequence[str], catalog: Catalog) -> list[Field]:
    """The fields to read. Times that are also fields of the schema are read once, as times."""
    unknown = sorted(set(join.source.defaults) - {*join.fields, *join.only_read, *extra})
    if unknown:
        raise SchemaError(
            f"{label}: defaults names {', '.join(unknown)}, which is not read; lists that are read: "
            f"{', '.join((*join.fields, *join.only_read, *extra))}"
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
            Field(name, "floats" if _has_floats(catalog, join.source.columns.get(name, name)) else "event_ids")
            for name in dict.fromkeys((*join.only_read, *extra))
            if name not in fields and name not in join.times
        ),
        Field(join.on, "join_key"),
    ]


def _has_floats(catalog: Catalog, column: object) -> bool:
    """Whether a column is a list of floats in some of the files."""
    if not isinstance(column, str):
        return False
    types = [plain(kind) for schema in catalog.schemas if (kind := type_at(schema, column)) is not None]
    return any(is_list(each) and pa.types.is_floating(plain(each.value_type)) for each in types)


@dataclass(frozen=True, slots=True)
class _Histories:
    """Histories of a row group. keys, rows (numbers in the row group), lengths: int64 [k]; events: name -> [e]."""

    keys: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray
    events: dict[str, np.ndarray]

    @property
    def offsets(self) -> np.ndarray:
        """int64 [k + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def history_of(self, events: np.ndarray) -> np.ndarray:
        """Index of the history that each event is in."""
        return np.searchsorted(self.offsets, events, side="right") - 1


class _TableReader:
    """Reads all row groups of a table of histories, in one process of the host. The others wait for the arrays."""

    def __init__(self, files: SourceFiles, join: AsOf, extra: Sequence[str]) -> None:
        lists = [field for field in files.wanted if field.shape == "list"]
        self._files = files
        self._join = join
        self._extra = extra
        self._layout = Layout(
            tuple(Field(each.name, "floats" if each.number == "value" else "ids", "histories") for each in lists), 0
        )
        self._dtypes = {each.name: _stored_dtype(files, each) for each in lists} | {_MASK: np.dtype(np.uint8)}
        self._plans = files.plans(self._layout)
        # The other ranks of the host wait, so all cores are free. Noted faults must be in the order of the files.
        self._threads = usable_cores() if files.faults.notes is None else 1

    def arrays(self, scratch: Path | None) -> Arrays:
        """All arrays by name, the events in the order of their keys.

        scratch: folder for arrays that may not fit in memory; None to make all in memory.
        """
        names = dict.fromkeys(
            (*self._join.fields, *self._join.times, *self._extra, *([_MASK] if self._join.pools else []))
        )
        names.pop(self._join.mask or "", None)  # stored as _MASK
        # The order of the keys is known only after the last row group. Until then events are in that of the files.
        buffers = {name: SpillBuffer(self._dtypes[name], scratch and scratch / str(n)) for n, name in enumerate(names)}
        empty = np.empty(0, np.int64)
        all_keys, all_lengths, disjoint = [empty], [empty], True
        for part in self._parts():
            all_keys.append(part.keys)
            all_lengths.append(part.lengths)
            for name, buffer in buffers.items():
                buffer.add(part.events[name])
            if self._join.pools:
                mask = part.events[_MASK]
                disjoint &= not (mask & (mask - 1)).any()
        keys, lengths = np.concatenate(all_keys), np.concatenate(all_lengths)
        one_row = f"a table of histories has one row per key. {_MAKE_ONE}"
        order = order_of_keys(keys, self._files.faults, self._join.on, one_row)
        starts = np.cumsum(lengths) - lengths
        arrays = {_KEYS: keys[order], _OFFSETS: np.concatenate([[0], np.cumsum(lengths[order])])}
        arrays[_DISJOINT] = np.array([disjoint])
        arrays[_SKIPPED] = np.frombuffer(json.dumps(self._left_out()).encode(), np.uint8)
        in_order = bool((order == np.arange(len(order))).all())
        for name, buffer in buffers.items():
            arrays[name] = buffer.whole() if in_order else buffer.gathered(starts[order], lengths[order])
        for number in range(len(self._join.pools)):
            positions, bounds = self._pool(number, arrays, scratch)
            arrays[_POSITIONS + str(number)], arrays[_BOUNDS + str(number)] = positions, bounds
        return arrays

    def _pool(self, number: int, arrays: Arrays, scratch: Path | None) -> tuple[np.ndarray, np.ndarray]:
        """(positions, bounds) of the events of a pool, see `fsdata.histories.kernels.histories`."""
        mask, offsets, bit = _read_only(arrays[_MASK]), _read_only(arrays[_OFFSETS]), np.uint8(1 << number)
        bounds = np.empty(len(offsets), np.int64)
        histories.count_pool(mask, bit, offsets, bounds)
        size = int(bounds[-1])
        if scratch is None or not size:  # an empty file cannot be mapped
            positions = np.empty(size, np.uint32)
        else:
            positions = np.memmap(scratch / f"pool {number}", np.uint32, "w+", shape=size)
        histories.find_pool(mask, bit, offsets, positions)
        return positions, bounds

    def _parts(self) -> Iterator[_Histories]:
        """The row groups in the order of the files, decoded by several threads. The first fault is that of the first
        row group that has one.

        Row groups that are decoded and not consumed yet take memory, so their number is bounded. Their size is not
        known in advance and is taken to be that of the largest so far: the first one is decoded alone.
        """
        groups, at_once, largest = iter(self._files.groups), 1, 1
        ahead: deque[Future[_Histories | None]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="fsdata-histories") as pool:
            try:
                while True:
                    following = islice(groups, max(at_once - len(ahead), 0))
                    ahead.extend(pool.submit(self._decode, group) for group in following)
                    if not ahead:
                        return
                    part = ahead.popleft().result()
                    if part is not None:
                        largest = max(largest, sum(values.nbytes for values in part.events.values()))
                        at_once = min(_AHEAD // largest + 1, self._threads + 1)
                        yield part
            finally:
                for future in ahead:
                    future.cancel()

    def _left_out(self) -> list[dict[str, Any]]:
        """Damaged row groups that are skipped, in the order of the files. Other processes map the arrays without
        reading the files, and have to report them, too."""
        position = {name: number for number, name in enumerate(self._files.catalog.files.names())}
        skipped = self._files.skipped  # appended to by several threads; whole files come first
        skipped.sort(key=lambda each: (-1, 0) if each.row_group is None else (position[each.file], each.row_group))
        return [asdict(each) for each in skipped if each.row_group is not None]

    def _decode(self, group: RowGroup) -> _Histories | None:
        """The histories of a row group, checked, with the events that `where` selects; None if it is skipped."""
        join, decoded = self._join, self._files.decode(self._plans, group)
        if decoded is None:
            return None
        align(decoded, join.source.defaults)
        rows = keyed_rows(decoded, join.on)
        lengths = rows.lengths[self._layout.fields[0].name]  # lists are aligned
        events = {name: values.astype(self._dtypes[name], copy=False) for name, values in rows.values.items()}
        part = _Histories(rows.keys, rows.rows, lengths, events)
        if join.time is not None and not join.by_position:
            _check_order(part, join.time, join.on, decoded.faults)
        if decoded.faults.notes is not None:
            for name in join.times:
                _note_future(part, name, decoded.faults)
        if join.condition is not None:
            part = _selected(part, where(join.condition, part.events))
        if join.pools:
            part.events[_MASK] = self._pool_mask(part.events)
        return part

    def _pool_mask(self, events: Mapping[str, np.ndarray]) -> np.ndarray:
        """uint8 [e], bit p set for events of pool p."""
        mask = np.zeros(len(next(iter(events.values()))), np.uint8)
        for number, pool in enumerate(self._join.pool_conditions):
            mask |= where(pool, events).astype(np.uint8) << np.uint8(number)
        return mask


def _selected(part: _Histories, mask: np.ndarray) -> _Histories:
    """The histories with the events of a mask, bool [e], only."""
    before = np.concatenate([[0], np.cumsum(mask)])
    offsets = part.offsets
    return replace(
        part,
        lengths=before[offsets[1:]] - before[offsets[:-1]],
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
    (result,) = expressions.evaluate([condition], [pa.bool_()], rows)
    mask: np.ndarray = result.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _read_only(values: np.ndarray) -> np.ndarray:
    """The same memory, read-only: numba compiles the kernels for arrays of this type."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


def _stored_dtype(files: SourceFiles, field: Field) -> np.dtype[Any]:
    """The type in which a list is stored: that of the files if it has 32 bits or fewer."""
    if field.number != "id":
        return np.dtype(np.int64 if field.number == "time" else np.float32)
    dtypes = []
    for kind in files.kinds:
        for binding in kind.bindings:
            if binding.field == field and binding.type is not None:
                outer = plain(binding.type)
                dtypes.append(_integer_dtype(plain(outer.value_type) if is_list(outer) else outer))
    default = files.source.defaults.get(field.name)
    if default is not None:
        dtypes.append(np.min_scalar_type(int(default)))
    common: np.dtype[Any] = np.result_type(*(dtypes or [np.dtype(np.int64)]))
    return common if common in STORED_AS else np.dtype(np.int64)


def _integer_dtype(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_boolean(kind):
        return np.dtype(np.uint8)
    return np.dtype(str(kind)) if pa.types.is_integer(kind) else np.dtype(np.int64)


_MAKE_ONE = "`freescale histories` makes one of events"


def _check_order(part: _Histories, time: str, on: str, faults: Faults) -> None:
    """Check that times ascend in every history."""
    times, offsets = part.events[time], part.offsets
    event = histories.find_unsorted(times, offsets)
    if event < 0:
        return
    (history,) = part.history_of(np.array([event])).tolist()
    earlier, later = times[event - 1 : event + 1].tolist()
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1  # not by differences, which may need more than 64 bits
    falls = falls[~np.isin(falls, offsets)]
    faults.found(
        "unsorted",
        time,
        part.rows[part.history_of(falls)],
        f"the history of {on} {part.keys[history]} is not ascending: {time} is {later} at position "
        f"{event - offsets[history]} and {earlier} before it",
        todo=f". Sort the lists: {_MAKE_ONE}",
    )


_UNITS = [10**digits for digits in (0, 3, 6, 9)]  # seconds to nanoseconds
_EARLIEST_S = 100_000_000  # since 1970: smaller numbers do not count from a common epoch
_AHEAD_S = 86_400  # clocks of other time zones are not in the future


def _note_future(part: _Histories, name: str, faults: Faults) -> None:
    """Note histories with a time in the future. A loader accepts them: its own clock may be the one that is wrong."""
    times = part.events[name]
    units = [unit for unit in _UNITS if len(times) and np.median(times) > unit * _EARLIEST_S]
    late = np.flatnonzero(times > (time.time() + _AHEAD_S) * max(units)) if units else times[:0]
    if len(late):
        faults.found("future", name, part.rows[part.history_of(late)], f"{name} holds a time in the future")
