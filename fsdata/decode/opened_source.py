"""An opened source: main table and side tables together give the rows of a sample."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
from pyarrow.fs import LocalFileSystem

from fsdata.catalog.binding.bind import column_type
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import mixed
from fsdata.catalog.binding.key_types import HashedTypes, between, folder_columns, hashed_types
from fsdata.catalog.fingerprint import file_descriptions, fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.listing.file_list import FileList
from fsdata.catalog.retry import Retrying
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.block import Column, RowRefs, SurvivingRows, no_rows
from fsdata.decode.open_files import RemoteGroup
from fsdata.decode.piece import DecodedPiece, align
from fsdata.decode.piece_plan import PiecePlan
from fsdata.decode.row_groups import RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.decode.row_reader import RowReader
from fsdata.errors import SchemaError
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import ParquetSource


class OpenSource:
    """A source whose files are found, checked and bound. Made by `fsdata.compose.reading.open_source`; thread-safe.

    Args:
        files: of the main table, or the events that are its rows.
        attached: its joined tables. stages: what they do to pieces.
        index: the source's position in the loader. label: how messages call it.

    Attributes:
        weight: see `ParquetSource`.
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
        files: RowReader,
        attached: Sequence[Attached],
        stages: Sequence[Stage],
        *,
        index: int,
        label: str,
        retry: Retrying,
    ) -> None:
        self.index = index
        self.label = label
        self.weight = source.weight
        self.attached = attached
        self.stages = sorted(stages, key=lambda stage: stage.turn)
        self._schema = schema
        self._files = files
        self._retry = retry
        if source.events is None:
            for each in attached:
                _check_hashed_keys(files, each, label)
        self.groups = self._files.groups
        self._defaults = dict(source.defaults)
        for each in self.attached:
            self._defaults |= each.defaults
        self.masks = frozenset[str]().union(*(each.masks for each in self.attached))
        self._plans: dict[Layout, tuple[PiecePlan, ...]] = {}
        self._lock = threading.Lock()
        self.list_labels, self.default_labels = self._label_forms(schema)
        self.texts = frozenset(each.field.name for kind in self._files.kinds for each in kind.bindings if each.is_text)
        self._count()
        self.may_drop = _may_drop(source, schema) or any(each.may_drop for each in self.attached)
        self.fingerprint = fingerprint(
            source, self._files.catalog, [each.fingerprint for each in self.attached], self._files.version
        )

    @property
    def hashed_types(self) -> HashedTypes:
        """See `fsdata.catalog.binding.key_types`; all files agree."""
        return _hashed_types(self._files)

    def parts(self) -> dict[str, str]:
        """What the items `files` and `footers` of the fingerprint are made of; see `fsdata.catalog.fingerprint`."""
        return file_descriptions(self._files.catalog)

    def _count(self) -> None:
        """Find what integers count. Raises SchemaError if keys or times that are compared count something else."""
        own = self._files.counted
        self.time = next((each for field, each in own.items() if field.kind == "time"), None)
        self.counted = {field.name: each for field, each in own.items() if field.number == "id" and not field.only_read}
        for each in self.attached:
            of = each.counted
            self.counted |= {name: of[name] for name in each.join.fields if name in of}
        for each in self.attached:
            each.check(own, {**self._files.known, **self.counted})

    @property
    def skipped(self) -> list[Skipped]:
        """Files and row groups left out so far, those of side tables included."""
        return [*self._files.skipped, *(entry for each in self.attached for entry in each.skipped)]

    @property
    def retries(self) -> int:
        """How many reads of remote files were repeated."""
        return self._retry.count

    @property
    def opened(self) -> RowReader:
        """The files of the main table, or the events that are its rows."""
        return self._files

    @property
    def files(self) -> FileList:
        """The files that are read; `RowGroup.file` counts them."""
        return self._files.catalog.files

    def describe(self) -> dict[str, Any]:
        """See `RowReader.describe`; with the label, and what is skipped of side tables, too."""
        return {"source": self.label, **self._files.describe(), "skipped": len(self.skipped)}

    @contextmanager
    def changing(self, first: str) -> Iterator[None]:
        """Further files come inside of the block, the first one is called `first`. No piece is planned meanwhile.

        Raises: SchemaError: rows have another form than those before.
        """
        with self._lock:
            yield
            self.groups = self._files.groups
            self._plans.clear()
            self._count()
            lists, _ = self._label_forms(self._schema)
        changed = sorted(lists ^ self.list_labels)
        if changed:
            raise SchemaError(
                f"{self.label}: the label {', '.join(changed)} is a list in {first} or one after it, and was not before"
            )

    @property
    def time_windows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(int64 [T + 1], the row groups of each window of time; int64 [T + 1], its rows); None without windows."""
        return self._files.time_windows

    @property
    def remote(self) -> bool:
        """Whether some of the files are not local."""
        return any(not isinstance(folder.filesystem, LocalFileSystem) for folder in self.files.folders)

    @property
    def remote_reads(self) -> tuple[int, int]:
        """Bytes of row groups of the main table that were read from remote files, and reads that were not planned."""
        return self._files.remote_reads

    def fetch(self, group: RowGroup, layout: Layout) -> RemoteGroup | None:
        """The bytes that `read` needs, for read-ahead; None if the file is local."""
        return self._files.fetch(self._plan(layout), group)

    def read(
        self, group: RowGroup, layout: Layout, start: int, stop: int, fetched: RemoteGroup | None = None
    ) -> SurvivingRows:
        """Decode rows [start, stop) of what `group` is of a row group. Blocks; most of it without the GIL.

        Raises:
            CorruptFileError, OSError: see `RowReader.decode`.
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
        try:
            piece = self._files.decode_at_once(self._plan(layout), groups)
            return self._finished(piece, layout, groups[0].file, 0, sum(group.rows for group in groups))
        except Exception:  # of any kind: `read` meets it again, retries it where that helps, and names the row group
            return None

    def small(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """See `RowReader.small`. None are where read-ahead fetches row groups one by one, nor of rows of events."""
        if self.remote:
            return np.full(len(self.groups), -1), np.zeros(len(self.groups))
        return self._files.small(self._plan(layout))

    def _finished(self, piece: DecodedPiece, layout: Layout, file: int, start: int, stop: int) -> SurvivingRows:
        """Decoded rows of [start, stop), with what other tables add to them."""
        for slot in layout.masks.values():
            piece.columns[slot] = Column.constant(np.ones(1, np.uint8))
        for stage in self.stages:
            stage.attach(piece, file)
        if layout.dense:
            (slot,) = (slot for slot, field in enumerate(layout.fields) if field.kind == "dense")
            piece.columns[slot] = Column.of(piece.dense.reshape(-1), width=len(layout.dense))
        align(piece, self._defaults)
        for stage in self.stages:
            stage.finish(piece)
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
        for kind in (*self._files.kinds, *(kind for each in self.attached for kind in each.kinds)):
            for binding in kind.bindings:
                if binding.field.kind == "label":
                    forms[binding.field.name].add(binding.is_list)
        lists = frozenset(name for name, found in forms.items() if True in found)
        return lists, frozenset(name for name, found in forms.items() if found == {None})


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


def _hashed_types(files: RowReader) -> HashedTypes:
    return hashed_types(files.source, partial(column_type, files.kinds[0]))


def _check_hashed_keys(files: RowReader, side: Attached, label: str) -> None:
    """Keys that both tables hash are hashes of one type."""
    catalog = side.catalog
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


def _may_drop(source: ParquetSource, schema: Schema) -> bool:
    drops = any(source.policy(name) == "drop" for name in schema.field_names)
    return drops or source.condition is not None or source.on_error == "skip" or schema.explode is not None


def wanted_fields(source: ParquetSource, schema: Schema, label: str) -> list[Field]:
    """What the rows of the main table have to have: fields that no table is joined for, keys, and times.

    Raises:
        SchemaError: joins that contradict the schema.
    """
    joined = _check_joins(source, schema, label)
    wanted = [field for field in fields_of(schema) if field.name not in joined]
    keys = (join.on for join in source.join if not join.finds_values)
    wanted += [Field(key, "join_key") for key in dict.fromkeys(keys)]
    wanted += [] if schema.time is None else [Field(schema.time, "time")]
    times = (join.row_time for join in source.join if join.row_time is not None)
    return wanted + [Field(name, "row_time") for name in dict.fromkeys(times)]


def _check_joins(source: ParquetSource, schema: Schema, label: str) -> set[str]:
    """The fields that side tables bring, checked against the schema."""
    known = set(schema.field_names)
    joined: set[str] = set()
    shared: set[str] = set()
    for join in source.join:
        of_events = source.events is not None and join.finds_values  # rows may be made of what it finds
        unknown = [name for name in join.fields if name not in known and not of_events]
        kind = type(join).__name__
        if unknown:
            raise SchemaError(f"{label}: {kind} brings fields that the schema does not have: {', '.join(unknown)}")
        passed = [name for name in join.fields if name in schema.passthrough]
        if passed:
            raise SchemaError(
                f"{label}: {kind} brings {', '.join(passed)}, and passthrough fields are columns of the rows themselves"
            )
        join.check(source, schema, label)
        shared |= {group.name for group in schema.groups if join.stores(group)}
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
    keys = {name for join in source.join for name in (join.on, join.row_time)}
    for option in ("columns", "defaults", "nulls"):
        allowed = known | keys | {schema.time} if option == "columns" else known
        unknown = sorted(set(getattr(source, option)) - allowed)
        if unknown:
            raise SchemaError(
                f"{label}: {option} names {', '.join(unknown)}, not a field of the schema that can have them; fields: "
                f"{', '.join(schema.field_names)}"
            )
    return joined
