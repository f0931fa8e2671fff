"""An opened source: main table and side tables together give the rows of a sample."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from pyarrow.fs import LocalFileSystem

from fsdata.catalog.binding.bind import column_type
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import check_key, check_times, mixed
from fsdata.catalog.binding.key_types import HashedTypes, between, folder_columns, hashed_types
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint, parts
from fsdata.catalog.footers import Skipped
from fsdata.catalog.listing.file_list import FileList
from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.retry import Retrying
from fsdata.decode.block import Column, RowRefs, SurvivingRows, no_rows
from fsdata.decode.piece import DecodedPiece, align
from fsdata.decode.piece_plan import PiecePlan
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_groups import RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import Fault, SchemaError
from fsdata.histories.as_of import POSITION, AsOf
from fsdata.histories.event_rows import EventRows
from fsdata.histories.histories import Histories
from fsdata.histories.history_table import HistoryTable, load_histories
from fsdata.histories.lookup import Lookup
from fsdata.histories.lookup_table import LookupTable, load_lookup
from fsdata.remote.row_group import RowGroupBytes
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import Joined, ParquetSource
from fsdata.tables.join import Join
from fsdata.tables.side_table import LateSide, SideTable, attach, load_side_table, open_side


class OpenSource:
    """A source whose files are found, checked and bound. Made by `open_source`; thread-safe.

    Attributes:
        label: how messages call it; index: its position in the loader; weight: see `ParquetSource`.
        groups: row groups in reading order, those without rows left out.
        list_labels: labels that are lists here; default_labels: labels made of defaults, which can be either.
        texts: passthrough fields that are text here.
        masks: fields of side tables with `missing="mask"`.
        counted: what the integers of its fields count, those of joined tables included. time: the same of the time.
        may_drop: fewer rows may come out than the footers promise.
        fingerprint: see `fsdata.catalog.fingerprint`.
    """

    def __init__(
        self,
        source: ParquetSource,
        schema: Schema,
        *,
        index: int,
        threads: int | None = None,
        retry: Retrying | None = None,
        pool: Pool | None = None,
        show: bool = False,
        hosts: Hosts | None = None,
        notes: list[Fault] | None = None,
    ) -> None:
        self.index = index
        self.label = f"source {index} ({source.label})"
        self.weight = source.weight
        self._schema = schema
        self._retry = retry or Retrying(source.retry)
        self._files, joined = self._open(source, schema, threads, pool, show, hosts, notes)
        self._side_files = joined
        joins = [(number, each) for number, each in enumerate(joined) if isinstance(each, SideTable)]
        sides = [each for _, each in joins]
        self._sides = [each for each in sides if each.source.follow is None]
        self._late = {number: LateSide(each) for number, each in joins if each.source.follow is not None}
        tables = [each for each in joined if isinstance(each, HistoryTable)]
        self._lookups = [each for each in joined if isinstance(each, LookupTable)]
        self.histories = Histories(tables, self._lookups, schema, index)
        self.groups = self._files.groups
        defaults = dict(source.defaults)
        for side in sides:
            missing = dict.fromkeys(side.fields, 0) if side.join.missing == "mask" else {}
            defaults.update({**missing, **side.source.defaults})
        self._defaults = defaults
        self.masks = frozenset(name for side in sides if side.join.missing == "mask" for name in side.fields)
        self._plans: dict[Layout, tuple[PiecePlan, ...]] = {}
        self._lock = threading.Lock()
        self.list_labels, self.default_labels = self._label_forms(schema)
        self.texts = frozenset(each.field.name for kind in self._files.kinds for each in kind.bindings if each.is_text)
        self._count()
        self.may_drop = _may_drop(source, schema) or any(
            side.source.policy(name) == "drop"
            for side in joined
            if not isinstance(side, LookupTable)  # its own rows are left out: ids without one have a default
            for name in side.join.fields
        )
        self.may_drop |= any(side.join.missing == "drop" for side in sides)
        self.fingerprint = fingerprint(
            source, self._files.catalog, [side.fingerprint for side in joined], self._files.version
        )

    @property
    def hashed_types(self) -> HashedTypes:
        """See `fsdata.catalog.binding.key_types`; all files agree."""
        return _hashed_types(self._files)

    def parts(self) -> dict[str, str]:
        """What the items `files` and `footers` of the fingerprint are made of; see `fsdata.catalog.fingerprint`."""
        return parts(self._files.catalog)

    def _open(
        self,
        source: ParquetSource,
        schema: Schema,
        threads: int | None,
        pool: Pool | None,
        show: bool,
        hosts: Hosts | None,
        notes: list[Fault] | None,
    ) -> tuple[SourceFiles | EventRows, list[SideTable | HistoryTable | LookupTable]]:
        joined = _check_joins(source, schema, self.label)
        wanted = [field for field in fields_of(schema) if field.name not in joined]
        keys = (join.on for join in source.join if not isinstance(join, Lookup))
        wanted += [Field(key, "join_key") for key in dict.fromkeys(keys)]
        wanted += [] if schema.time is None else [Field(schema.time, "time")]
        histories = [join for join in source.join if isinstance(join, AsOf)]
        wanted += [Field(name, "row_time") for name in dict.fromkeys(join.at for join in histories)]
        options: dict[str, Any] = {"label": self.label, "threads": threads, "retry": self._retry, "notes": notes}
        main: dict[str, Any] = {"pool": pool, "show": show, "hosts": hosts, "pages": True}
        loads = [partial(_load, join, schema, **options) for join in source.join]
        if source.events is not None:
            loads[0] = partial(loads[0], also=_lists_read(source, wanted))
            sides = _all_or_errors(loads)
            lookups = [each for each in sides if isinstance(each, LookupTable)]
            files = EventRows(source, wanted, sides[0], lookups, index=self.index, label=self.label, notes=notes)
        else:
            files, *sides = _all_or_errors(
                [partial(SourceFiles, source, wanted, index=self.index, **main, **options), *loads]
            )
        if source.events is None:
            for side in sides:
                _check_hashed_keys(files, side, self.label)
        return files, sides

    def _count(self) -> None:
        """Find what integers count. Raises SchemaError if keys or times that are compared count something else."""
        own = self._files.counted
        self.time = next((each for field, each in own.items() if field.kind == "time"), None)
        self.counted = {field.name: each for field, each in own.items() if field.number == "id" and not field.only_read}
        for side in self._side_files:
            of = (
                {each.name: found for each, found in side.files.counted.items()}
                if isinstance(side, SideTable)
                else side.counted
            )
            self.counted |= {name: of[name] for name in side.join.fields if name in of}
        of_events = {} if isinstance(self._files, SourceFiles) else self._files.known
        for side in self._side_files:
            on = side.join.on
            key = Field(on, "join_key")
            if isinstance(side, SideTable):
                check_key(on, own.get(key), side.files.counted.get(key))
            elif isinstance(side, LookupTable):
                check_key(on, self.counted.get(on) or of_events.get(on), side.counted.get(on))
            else:
                check_key(on, own.get(key), side.counted.get(on))
                if not side.join.by_position and side.join.time is not None:
                    at, time = side.join.at, side.join.time
                    check_times(at, own.get(Field(at, "row_time")), time, side.counted.get(time))

    @property
    def skipped(self) -> list[Skipped]:
        """Files and row groups left out so far, those of side tables included."""
        return [*self._files.skipped, *(entry for side in self._side_files for entry in side.skipped)]

    @property
    def retries(self) -> int:
        """How many reads of remote files were repeated."""
        return self._retry.count

    @property
    def opened(self) -> SourceFiles | EventRows:
        """The files of the main table, or the events that are its rows."""
        return self._files

    @property
    def files(self) -> FileList:
        """The files that are read; `RowGroup.file` counts them."""
        return self._files.catalog.files

    def describe(self) -> dict[str, Any]:
        """See `SourceFiles.describe`; with the label, and what is skipped of side tables, too."""
        return {"source": self.label, **self._files.describe(), "skipped": len(self.skipped)}

    def extend(self, names: Sequence[str], digests: Sequence[str]) -> None:
        """Open further files of a folder that is followed; they get the next file numbers, in this order. Blocks.

        Raises: as `SourceFiles.extend`.
        """
        assert isinstance(self._files, SourceFiles)  # no others are followed
        with self._lock:
            self._files.extend(names, digests)
            self.groups = self._files.groups
            self._plans.clear()
            self._count()
            lists, _ = self._label_forms(self._schema)
        changed = sorted(lists ^ self.list_labels)
        if changed:
            raise SchemaError(
                f"{self.label}: the label {', '.join(changed)} is a list in {names[0]} or one after it, and was "
                "not before"
            )

    @property
    def sides(self) -> Sequence[SideTable]:
        """The side tables that are read once."""
        return self._sides

    @property
    def late(self) -> dict[int, SideTable]:
        """Number of the join -> its side table, of those that are followed; without rows."""
        return {number: table.empty for number, table in self._late.items()}

    def match(self, sides: Mapping[int, Sequence[tuple[int, str, str]]]) -> None:
        """Bring the rows of late side tables: file -> the files that hold the matches of its rows, as number of the
        join, name and digest. All others go.

        Raises: as `SourceFiles.extend`; DataError: two rows with one key.
        """
        for number, table in self._late.items():
            table.enter({file: [side[1:] for side in of if side[0] == number] for file, of in sides.items()})

    @property
    def time_windows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(int64 [T + 1], the row groups of each window of time; int64 [T + 1], its rows); None without windows."""
        files = self._files
        if not isinstance(files, EventRows) or files.source.events is None or files.source.events.time_window is None:
            return None
        return np.concatenate([[0], files.groups.ends]), files.windows

    @property
    def remote(self) -> bool:
        """Whether some of the files are not local."""
        return any(not isinstance(folder.filesystem, LocalFileSystem) for folder in self.files.folders)

    @property
    def remote_reads(self) -> tuple[int, int]:
        """Bytes of row groups of the main table that were read from remote files, and reads that were not planned."""
        return self._files.remote.bytes_read, self._files.remote.unplanned_reads

    def fetch(self, group: RowGroup, layout: Layout) -> RowGroupBytes | None:
        """The bytes that `read` needs, for read-ahead; None if the file is local."""
        return self._files.fetch(self._plan(layout), group)

    def read(
        self, group: RowGroup, layout: Layout, start: int, stop: int, fetched: RowGroupBytes | None = None
    ) -> SurvivingRows:
        """Decode rows [start, stop) of what `group` is of a row group. Blocks; most of it without the GIL.

        Raises:
            CorruptFileError, OSError: see `SourceFiles.decode`.
            DataError: rows that contradict the schema and the null policies.
        """
        start, stop = start + group.first, stop + group.first
        piece = self._files.decode(self._plan(layout), group, start, stop, fetched)
        if piece is None:
            return SurvivingRows(no_rows(len(layout.fields)), np.empty(0, np.int64))
        return self._finished(piece, layout, group.file, start, stop)

    def read_at_once(self, groups: Sequence[RowGroup], layout: Layout) -> SurvivingRows | None:
        """Decode all rows of small row groups, see `small`; None if anything is wrong with them, which `read` of each
        says. Blocks; most of it without the GIL."""
        assert isinstance(self._files, SourceFiles)
        try:
            piece = self._files.decode_at_once(self._plan(layout), groups)
            return self._finished(piece, layout, groups[0].file, 0, sum(group.rows for group in groups))
        except Exception:  # of any kind: `read` meets it again, retries it where that helps, and names the row group
            return None

    def small(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """See `SourceFiles.small`. None are where read-ahead fetches row groups one by one, nor of rows of events."""
        if self.remote or not isinstance(self._files, SourceFiles):
            return np.full(len(self.groups), -1), np.zeros(len(self.groups))
        return self._files.small(self._plan(layout))

    def _finished(self, piece: DecodedPiece, layout: Layout, file: int, start: int, stop: int) -> SurvivingRows:
        """Decoded rows of [start, stop), with what other tables add to them."""
        for slot in layout.masks.values():
            piece.columns[slot] = Column.constant(np.ones(1, np.uint8))
        for side in (*self._sides, *(late.of(file) for late in self._late.values())):
            attach(piece, side)
        self.histories.attach(piece)
        if layout.dense:
            (slot,) = (slot for slot, field in enumerate(layout.fields) if field.kind == "dense")
            piece.columns[slot] = Column.of(piece.dense.reshape(-1), width=len(layout.dense))
        looked_up = [(each, name) for each in self._lookups for name in each.join.fields if name in layout.slots]
        for lookup, name in looked_up:  # they are as long as their ids
            piece.columns.setdefault(layout.slots[name], piece.column(layout.slots[lookup.join.on]))
        align(piece, self._defaults)
        for lookup, name in looked_up:
            piece.columns[layout.slots[name]] = lookup.over(piece.column(layout.slots[lookup.join.on]), name)
        if layout.exploded is not None:
            piece.drop |= piece.columns[layout.groups[layout.exploded]].lengths(len(piece.rows)) == 0
        rows = RowRefs.of(piece.block(self.index))
        if piece.drop.any():
            return SurvivingRows(rows.take(piece.alive), piece.rows[piece.alive] - start)
        return SurvivingRows(rows, None if rows.num_rows == stop - start else piece.rows - start)

    def read_times(self, group: RowGroup) -> np.ndarray:
        """int64 [rows]: the time of every row, nanoseconds if the column is a timestamp or date.

        Rows that the filter leaves out, or that a skipped row group takes with it, get a time near their neighbours'.

        Raises:
            DataError: a null in a row that the filter keeps.
        """
        assert self._schema.time is not None
        here = group.first, group.first + group.rows
        piece = self._files.decode(self._time_plans, group, *here)
        if piece is None:
            return np.zeros(group.rows, np.int64)
        times, null = piece.arrays[Field(self._schema.time, "time")]
        if not null.any():
            return times
        bad = null.copy()
        if self._files.source.condition is not None:
            kept = self._files.decode(self._filtered_time_plans, group, *here)
            if kept is not None:
                bad = np.zeros(group.rows, bool)
                bad[kept.rows - group.first] = null[kept.rows - group.first]
        if bad.any():
            rows, time = group.first + np.flatnonzero(bad), self._schema.time
            what = f"{time} is null, and rows without a time cannot be merged"
            self._files.faults_of(group).found("null", time, rows, what, todo=". Leave them out with filter=...")
        last = np.maximum.accumulate(np.where(null, -1, np.arange(group.rows)))
        return np.where(last >= 0, times[last], 0)

    def end_retries(self) -> None:
        """Let reads that fail from now on fail at once."""
        self._retry.end()

    def close(self) -> None:
        """Close open files. Rows already read stay valid."""
        self._files.close()

    def _plan(self, layout: Layout) -> tuple[PiecePlan, ...]:
        with self._lock:
            if layout not in self._plans:
                self._plans[layout] = self._files.plans(lambda field: field.kind != "time", layout, filtered=True)
            return self._plans[layout]

    @cached_property
    def _time_plans(self) -> tuple[PiecePlan, ...]:
        return self._files.plans(lambda field: field.kind == "time", Layout((), 0), filtered=False)

    @cached_property
    def _filtered_time_plans(self) -> tuple[PiecePlan, ...]:
        return self._files.plans(lambda field: field.kind == "time", Layout((), 0), filtered=True)

    def _label_forms(self, schema: Schema) -> tuple[frozenset[str], frozenset[str]]:
        forms: dict[str, set[bool | None]] = {name: set() for name in schema.labels}
        for files in [self._files, *(side.files for side in self._side_files if isinstance(side, SideTable))]:
            for kind in files.kinds:
                for binding in kind.bindings:
                    if binding.field.kind == "label":
                        forms[binding.field.name].add(binding.is_list)
        lists = frozenset(name for name, found in forms.items() if True in found)
        return lists, frozenset(name for name, found in forms.items() if found == {None})


def open_source(
    source: ParquetSource,
    schema: Schema,
    *,
    index: int = 0,
    threads: int | None = None,
    pool: Pool | None = None,
    show: bool = False,
    hosts: Hosts | None = None,
    notes: list[Fault] | None = None,
) -> OpenSource:
    """Find the files, read their footers, check them against the schema and load side tables.

    Args:
        index: the source's position in the loader, for messages.
        threads: how many footers are read at a time.
        pool: where the values of all rows are copied to, for rows that stay long.
        show: a progress bar, if reading footers takes long. hosts: that share this work.
        notes: where the faults of files and rows are noted; None to raise the first. What is read then is of no use.

    Raises:
        FileNotFoundError, PermissionError: a path that cannot be opened.
        CorruptFileError: a file that is not Parquet, under `on_error="raise"`.
        SchemaError: everything in which the files differ from the schema, in one message.
        DataError: a side table with duplicate keys.
    """
    return OpenSource(source, schema, index=index, threads=threads, pool=pool, show=show, hosts=hosts, notes=notes)


def other_forms(sources: Sequence[OpenSource], schema: Schema) -> Iterator[tuple[str, OpenSource, str]]:
    """(field, a source, what is wrong) of fields that have another form in this source than in one before it: labels
    that are a list in one and a number in the other, passthrough fields that are text in one only, ids that count
    something else, and hashes of two types."""
    for number, source in enumerate(sources):
        for name in sorted(source.texts ^ sources[0].texts):
            text, integer = (source, sources[0]) if name in source.texts else (sources[0], source)
            what = f"text in {text.label}, and an integer or null in all files in {integer.label}"
            todo = "bring one of them to the other's type with a polars expression, such as cast(pl.String)"
            yield name, source, f"passthrough {name!r} is {what}: {todo}"
        for name in (each for each in schema.labels if each not in source.default_labels):
            first = next(of for of in sources[: number + 1] if name not in of.default_labels)
            if (name in source.list_labels) != (name in first.list_labels):
                what = f"is a list in one of {first.label} and {source.label} and a scalar in the other"
                yield name, source, f"label {name!r} {what}: map one of them with a polars expression"
        for name, here, there in between(source.hashed_types, sources[0].hashed_types):
            what = f"its column {here} in {source.label} and {there} in {sources[0].label}"
            todo = "a hash tells types apart. Declare one type with types={...} in both sources"
            yield name, source, f"{name} is a hash, and {what}: {todo}"
    for name, number, what in mixed([source.counted for source in sources]):
        yield name, sources[number], what


def _hashed_types(files: SourceFiles | EventRows) -> HashedTypes:
    return hashed_types(files.source, partial(column_type, files.kinds[0]))


def _check_hashed_keys(
    files: SourceFiles | EventRows, side: SideTable | HistoryTable | LookupTable, label: str
) -> None:
    """Keys that both tables hash are hashes of one type."""
    catalog = side.files if isinstance(side.files, Catalog) else side.files.catalog
    schema = catalog.schemas[int(catalog.schema_of[0])]
    folders = folder_columns(side.source, [folder.partitions for folder in catalog.files.folders])
    types = hashed_types(side.source, lambda name: folders.get(name) or type_at(schema, name))
    for use, here, there in between(_hashed_types(files), types):
        if use == side.join.on:
            raise SchemaError(
                f"{label}: the key {use!r} is a hash, and its column {here} in the rows and {there} in "
                f"{side.source.label}: a hash tells types apart, so that no key would match. Declare one type with "
                "types={...} in both sources"
            )


def _all_or_errors(opens: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result of every call, or one SchemaError with the messages of all that raised it."""
    results, errors = [], []
    for attempt in opens:
        try:
            results.append(attempt())
        except SchemaError as error:
            errors.append(error)
    if errors:
        raise SchemaError("\n".join(str(error) for error in errors)) from errors[0]
    return results


def _may_drop(source: ParquetSource, schema: Schema) -> bool:
    drops = any(source.policy(name) == "drop" for name in schema.field_names)
    return drops or source.condition is not None or source.on_error == "skip" or schema.explode is not None


def _check_joins(source: ParquetSource, schema: Schema, label: str) -> set[str]:
    """The fields that side tables bring, checked against the schema."""
    known = set(schema.field_names)
    joined: set[str] = set()
    shared: set[str] = set()
    looked_up = {name for each in source.join if isinstance(each, Lookup) for name in each.fields}
    for join in source.join:
        of_events = source.events is not None and isinstance(join, Lookup)  # rows may be made of what it finds
        unknown = [name for name in join.fields if name not in known and not of_events]
        kind = type(join).__name__
        if unknown:
            raise SchemaError(f"{label}: {kind} brings fields that the schema does not have: {', '.join(unknown)}")
        passed = [name for name in join.fields if name in schema.passthrough]
        if passed:
            raise SchemaError(
                f"{label}: {kind} brings {', '.join(passed)}, and passthrough fields are columns of the rows themselves"
            )
        if isinstance(join, Lookup):
            _check_lookup(join, schema, label, looked_up)
        if isinstance(join, AsOf):
            _check_as_of(join, schema, label, looked_up)
            shared |= {
                group.name for group in schema.groups if group.share == join.on and group.all_fields[0] in join.fields
            }
        joined |= known.intersection(join.fields)
    for group in schema.groups:
        if group.share is not None and group.name not in shared and schema.explode is None:
            raise SchemaError(
                f"{label}: Sequence({group.name!r}, share={group.share!r}) needs histories that are stored once: bring "
                f"its fields by AsOf(on={group.share!r})"
            )
    both = sorted(joined & (set(source.columns) | set(source.defaults) | set(source.nulls)))
    if both:
        raise SchemaError(
            f"{label}: {', '.join(both)} come from a side table: their columns, defaults and nulls belong to the "
            "ParquetSource inside the Join or AsOf"
        )
    keys = {name for join in source.join for name in ((join.on, join.at) if isinstance(join, AsOf) else (join.on,))}
    for option in ("columns", "defaults", "nulls"):
        allowed = known | keys | {schema.time} if option == "columns" else known
        unknown = sorted(set(getattr(source, option)) - allowed)
        if unknown:
            raise SchemaError(
                f"{label}: {option} names {', '.join(unknown)}, not a field of the schema that can have them; fields: "
                f"{', '.join(schema.field_names)}"
            )
    return joined


def _load(join: Joined, schema: Schema, **options: Any) -> SideTable | HistoryTable | LookupTable:
    if isinstance(join, AsOf):
        return load_histories(join, schema, **options)
    if isinstance(join, Lookup):
        return load_lookup(join, schema, **options)
    assert isinstance(join, Join)
    opened = open_side(join, schema, **options)
    return load_side_table(join, opened, schema)


def _lists_read(source: ParquetSource, wanted: Sequence[Field]) -> dict[str, bool]:
    """The lists of the table that a source of events makes its rows of, and whether it must have them: where the field
    has a default it need not."""
    events = source.events
    assert events is not None
    read = dict[str, bool]()
    for field in wanted:
        column = source.columns.get(field.name, field.name)
        if isinstance(column, str):
            read[column] = read.get(column, False) or field.name not in source.defaults
    made = [*source.computed.values(), *([] if events.condition is None else [events.condition])]
    read |= {name: True for each in made for name in each.columns}
    looked_up = {name: join.on for join in source.join if isinstance(join, Lookup) for name in join.fields}
    read |= {looked_up[name]: True for name in read if name in looked_up}
    return {name: read[name] for name in sorted(read) if name not in {events.of.on, POSITION, *looked_up}}


def _check_lookup(join: Lookup, schema: Schema, label: str, looked_up: Collection[str]) -> None:
    """What is found stands beside the ids that are looked up. looked_up: what all lookups of the source bring."""
    if join.on in looked_up:
        raise SchemaError(
            f"{label}: Lookup(on={join.on!r}) looks up what another Lookup finds, and only ids that rows hold can be "
            "looked up: join both dimension tables into one"
        )
    of = {field.name: field for field in fields_of(schema)}
    found = [of[name] for name in join.fields if name in of]
    if not found:
        return
    ids = of.get(join.on)
    if ids is None or ids.kind not in ("context", "ids"):
        raise SchemaError(
            f"{label}: Lookup(on={join.on!r}) looks up ids of the schema: one of its context, or a field of a sequence "
            "or of the candidates"
        )
    for field in found:
        if field.group != ids.group or field.kind not in ("context", "ids", "floats", "id_label", "event_label"):
            where = "context" if ids.group is None else f"fields, floats or labels of the sequence {ids.group!r}"
            raise SchemaError(
                f"{label}: Lookup brings {field.name!r}, which has to stand beside {join.on!r}, in {where}"
            )


def _check_as_of(join: AsOf, schema: Schema, label: str, looked_up: Collection[str]) -> None:
    """A history brings whole sequences: fields of one sequence have the same events. looked_up: what lookups bring."""
    for group in schema.groups:
        missing = [name for name in group.all_fields if name not in join.fields and name not in looked_up]
        if missing and any(name in join.fields for name in group.all_fields):
            raise SchemaError(
                f"{label}: AsOf brings some fields of the sequence {group.name!r} and not {', '.join(missing)}: its "
                "fields have the same events, so all of them come from one table"
            )
        brought = [name for name in group.all_fields if name in join.fields]
        if brought and join.pools and group.share is not None:
            raise SchemaError(
                f"{label}: Sequence({group.name!r}, share=...) shares stretches of a history, and those of "
                "AsOf(pools=...) have gaps: leave one of both out"
            )
        if brought and join.pools and group.keep == "first" and group.max_length is not None:
            raise SchemaError(
                f"{label}: Sequence({group.name!r}, keep='first') and AsOf(pools=...) do not go together: of pools, "
                "the last events are kept"
            )
        nested = [name for name in group.nested if name in join.fields]
        if nested:
            raise SchemaError(f"{label}: {', '.join(nested)} are nested: AsOf brings lists of numbers")
    lists = {name for group in schema.groups for name in group.all_fields}
    others = [name for name in join.fields if name not in lists]
    if others:
        raise SchemaError(
            f"{label}: AsOf brings fields of sequences, and {', '.join(others)} are not: use a Join for values per key"
        )
