"""An opened source: main table and joined tables together give the rows of a sample."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from pyarrow.fs import LocalFileSystem

from fsdata.catalog.binding.counted import mixed
from fsdata.catalog.binding.key_types import HashedTypes, between
from fsdata.catalog.fingerprint import arguments, file_descriptions, fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.listing.file_list import FileList
from fsdata.catalog.retry import Retrying
from fsdata.decode.align import align
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.block import Column, RowRefs, dropped_rows
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.plan import DecodePlan
from fsdata.decode.readers.open_files import RemoteGroup
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.readers.row_reader import RowReader
from fsdata.decode.row_layout import Layout
from fsdata.decode.source_checks import check_hashed_keys, hashed_types_of
from fsdata.errors import SchemaError
from fsdata.schema import Field, Schema
from fsdata.sources.source import ParquetSource


class OpenSource:
    """A source whose files are found, checked and bound. Made by `fsdata.compose.reading.open_source`; thread-safe.

    Args:
        files: reader of the main table.
        attached: its joined tables. stages: complete decoded rows by these tables.
        index: the source's position in the loader. label: its name in messages.

    Attributes:
        weight: see `ParquetSource`.
        groups: row groups in reading order, those without rows left out.
        list_labels: labels that are lists here; default_labels: labels made of defaults, which fit lists and numbers.
        texts: passthrough fields that are text here.
        masks: fields of side tables with `missing="mask"`.
        counted: field -> the unit of its integers, joined tables included. time: the unit of the time column.
        may_drop: whether filters or policies may drop rows, so that footers only give an upper bound.
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
                check_hashed_keys(files, each, label)
        self.groups = self._files.groups
        self._defaults = dict(source.defaults)
        for each in self.attached:
            self._defaults |= each.defaults
        self.masks = frozenset[str]().union(*(each.masks for each in self.attached))
        self._plans: dict[Layout, tuple[DecodePlan, ...]] = {}
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
        return hashed_types_of(self._files)

    def parts(self) -> dict[str, str]:
        """Details behind the items `files` and `footers` of the fingerprint; see `fsdata.catalog.fingerprint`."""
        return file_descriptions(self._files.catalog)

    def arguments_with(self, weight: float | None) -> str:
        """The item `arguments` of the fingerprint, if the source had this weight."""
        return arguments(self._files.source, self._files.catalog, weight)

    def _count(self) -> None:
        """Collect the units of integers. Raises SchemaError if compared keys or times have different units."""
        own = self._files.counted
        self.time = next((each for field, each in own.items() if field.kind == "time"), None)
        self.counted = {field.name: each for field, each in own.items() if field.number == "id" and not field.only_read}
        for each in self.attached:
            of_table = each.counted
            self.counted |= {name: of_table[name] for name in each.join.fields if name in of_table}
        for each in self.attached:
            each.check(own, {**self._files.known, **self.counted})

    @property
    def skipped(self) -> list[Skipped]:
        """Files and row groups left out so far, joined tables included."""
        return [*self._files.skipped, *(entry for each in self.attached for entry in each.skipped)]

    @property
    def retries(self) -> int:
        """Number of repeated reads of remote files."""
        return self._retry.count

    @property
    def opened(self) -> RowReader:
        """The reader of the main table."""
        return self._files

    @property
    def files(self) -> FileList:
        """The files that are read; `RowGroup.file` counts them."""
        return self._files.catalog.files

    def describe(self) -> dict[str, Any]:
        """See `RowReader.describe`; with the label, and with skipped parts of joined tables."""
        return {"source": self.label, **self._files.describe(), "skipped": len(self.skipped)}

    @contextmanager
    def changing(self, first: str) -> Iterator[None]:
        """Context in which files are added to the reader; `first` names the first one. Other threads cannot plan reads.

        Raises:
            SchemaError: a label is a list in the new files and was a number before, or the reverse.
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
        """(int64 [T + 1], bounds of the time windows in row groups; int64 [T + 1], in rows); None without windows."""
        return self._files.time_windows

    @property
    def remote(self) -> bool:
        """Whether some of the files are not local."""
        return any(not isinstance(folder.filesystem, LocalFileSystem) for folder in self.files.folders)

    @property
    def bytes_read(self) -> int:
        """Of the main table: bytes of the column chunks that were decoded, as they are stored."""
        return self._files.bytes_read

    @property
    def remote_reads(self) -> tuple[int, int]:
        """Of the main table: (bytes of row groups read from remote files, number of reads that were not planned)."""
        return self._files.remote_reads

    def fetch(self, group: RowGroup, layout: Layout) -> RemoteGroup | None:
        """The bytes that `read` needs, for read-ahead; None if the file is local."""
        return self._files.fetch(self._plans_for(layout), group)

    def read(
        self,
        group: RowGroup,
        layout: Layout,
        start: int,
        stop: int,
        fetched: RemoteGroup | None = None,
        *,
        epoch: int = 0,
    ) -> RowRefs:
        """References to rows [start, stop) of a row group, or of the part of it that `group` covers. Rows excluded by a
        filter or a policy are dropped ones. Blocks; mostly without the GIL.

        epoch: by which stages draw random numbers.

        Raises:
            CorruptFileError, OSError: see `RowReader.decode`.
            DataError: rows that contradict the schema and the null policies.
        """
        rows = group.range[start:stop]
        decoded = self._files.decode(self._plans_for(layout), group, rows, fetched)
        if decoded is None:
            return dropped_rows(len(rows), len(layout.fields))
        self._complete(decoded, (group,), epoch)
        return decoded.references(rows, self.index)

    def read_together(self, groups: Sequence[RowGroup], layout: Layout, *, epoch: int = 0) -> RowRefs | None:
        """References to all rows of small row groups, in order; None after any error. Blocks."""
        assert self._files.small_groups is not None
        try:
            decoded = self._files.small_groups.decode(self._plans_for(layout), groups)
            self._complete(decoded, groups, epoch)
        except Exception:  # `read` of each row group raises it again, with the place, or repeats the read
            return None
        return decoded.references(range(sum(group.rows for group in groups)), self.index)

    def small(self, layout: Layout) -> tuple[np.ndarray, np.ndarray] | None:
        """See `SmallGroups.shares`; None where row groups are decoded one by one, as read-ahead fetches them."""
        small_groups = None if self.remote else self._files.small_groups
        return None if small_groups is None else small_groups.shares(self._plans_for(layout))

    def _complete(self, decoded: DecodedRows, groups: Sequence[RowGroup], epoch: int) -> None:
        """Add fields of joined tables and align lists, in place. Each stage may drop rows. groups: of one file."""
        layout = decoded.layout
        decoded.groups, decoded.epoch = groups, epoch
        for slot in layout.masks.values():
            decoded.columns[slot] = Column.constant(np.ones(1, np.uint8))
        for stage in self.stages:
            stage.attach(decoded, groups[0].file)
        if layout.dense:
            # Not before: joined tables fill dense fields, too.
            (slot,) = (slot for slot, field in enumerate(layout.fields) if field.kind == "dense")
            decoded.columns[slot] = Column.of(decoded.dense.reshape(-1), width=len(layout.dense))
        align(decoded, self._defaults)
        for stage in self.stages:
            stage.finish(decoded)
        if layout.exploded is not None:
            # A row without candidates has no sample. Dropped here, it does not count in batch sizes.
            decoded.drop |= decoded.columns[layout.groups[layout.exploded]].lengths(len(decoded.rows)) == 0

    def read_times(self, group: RowGroup) -> np.ndarray:
        """int64 [rows]: the time of every row, nanoseconds if the column is a timestamp or date.

        Rows that are excluded by the filter, or are in a skipped row group, get a time near that of their neighbours.

        Raises:
            DataError: a null in a row that the filter keeps.
        """
        assert self._schema.time is not None
        decoded = self._files.decode(self._time_plans, group)
        if decoded is None:
            return np.zeros(group.rows, np.int64)
        times, null = decoded.keys[Field(self._schema.time, "time")]
        if not null.any():
            return times
        bad = null
        if self._files.source.condition is not None:
            kept = self._files.decode(self._filtered_time_plans, group)
            bad = np.zeros(group.rows, bool)
            if kept is not None:
                bad[kept.rows - group.first] = null[kept.rows - group.first]
        if bad.any():
            rows, time = group.first + np.flatnonzero(bad), self._schema.time
            what = f"{time} is null, and rows without a time cannot be merged"
            self._files.faults_of(group).found("null", time, rows, what, todo=". Leave them out with filter=...")
        last = np.maximum.accumulate(np.where(null, -1, np.arange(group.rows)))
        return np.where(last >= 0, times[last], 0)

    def end_retries(self) -> None:
        """Stop repeating failed reads."""
        self._retry.end()

    def close(self) -> None:
        """Close open files. Rows already read stay valid."""
        self._files.close()

    def _plans_for(self, layout: Layout) -> tuple[DecodePlan, ...]:
        with self._lock:
            if layout not in self._plans:
                self._plans[layout] = self._files.plans(layout, lambda field: field.kind != "time")
            return self._plans[layout]

    @cached_property
    def _time_plans(self) -> tuple[DecodePlan, ...]:
        return self._files.plans(Layout((), 0), lambda field: field.kind == "time", filtered=False)

    @cached_property
    def _filtered_time_plans(self) -> tuple[DecodePlan, ...]:
        return self._files.plans(Layout((), 0), lambda field: field.kind == "time")

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


def _may_drop(source: ParquetSource, schema: Schema) -> bool:
    drops = any(source.policy(name) == "drop" for name in schema.field_names)
    return drops or source.condition is not None or source.on_error == "skip" or schema.explode is not None
