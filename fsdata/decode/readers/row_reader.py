"""The interface through which a source reads rows: Parquet files, events of a joined table, or record batches.

A reader lists row groups with their row counts, and decodes rows of one. Joins, alignment and everything else behind it
is the same for all readers (`fsdata.decode.opened_source`).
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.footers import Skipped
from fsdata.catalog.retry import unreachable
from fsdata.decode.arrow.record_batches import MapFailed
from fsdata.decode.decode import decode_batch
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.plan import DecodePlan
from fsdata.decode.readers.open_files import RemoteGroup
from fsdata.decode.readers.row_groups import Groups, RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.errors import CorruptFileError, DataError, Fault, Faults
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource

_LOG = logging.getLogger("fsdata")
Plans = Sequence[DecodePlan]
"""One for each kind of file of a reader."""


class SmallGroups(Protocol):
    """Decodes small row groups of a file together: `fsdata.pages.small_groups`."""

    def shares(self, plans: Plans) -> tuple[np.ndarray, np.ndarray]:
        """Which row groups are small.

        Returns:
            int64 [groups], the file number of small row groups, -1 of others: row groups are decoded together with
            neighbours of the same file. float64 [groups], the size of each as a share of what is decoded together.
        """

    def decode(self, plans: Plans, groups: Sequence[RowGroup]) -> DecodedRows:
        """All rows of whole small row groups of one file, numbered through from the first row group on.

        Raises: any error, without retries and without noting faults. The caller decodes them one by one instead.
        """

    def counted(self) -> dict[str, int]:
        """Field -> number of its column chunks that were decoded this way; list fields only."""


class RowReader(ABC):
    """The rows of one source. Thread-safe after construction.

    Attributes:
        source: the user's arguments.
        catalog: the files, with the names and digests that ranks and saved states compare. Readers without files have
            one entry that identifies their rows.
        groups: the row groups. kinds: per kind of file, how fields are bound to columns.
        faults: policy for rows that contradict the schema. skipped: files and row groups that were left out.
        version: of a Delta or Iceberg table.
        bytes_read: bytes of the column chunks that were decoded, as they are stored; 0 for readers without files.
        small_groups: decodes small row groups together; None where this is not possible.
    """

    catalog: Catalog
    groups: Groups
    kinds: list[FileKind]
    version: str | None = None
    bytes_read = 0
    small_groups: SmallGroups | None = None

    def __init__(self, source: ParquetSource, label: str, notes: list[Fault] | None) -> None:
        """notes: list to which faults are added, see `fsdata.errors.Fault`; None raises the first fault."""
        self.source = source
        self.label = label
        self.skipped: list[Skipped] = []
        self.faults = Faults(label=label, notes=notes)
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def counted(self) -> Mapping[Field, Counted]:
        """Field -> the unit of its integers, see `Counted`."""

    @property
    def known(self) -> Mapping[str, Counted]:
        """Column -> the unit of its integers, for columns that no field is bound to."""
        return {}

    @property
    def time_windows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """See `OpenSource`."""
        return None

    @property
    def remote_reads(self) -> tuple[int, int]:
        """Bytes of row groups that were read from remote files, and reads that were not planned."""
        return 0, 0

    @abstractmethod
    def decode(
        self, plans: Plans, group: RowGroup, rows: range | None = None, fetched: RemoteGroup | None = None
    ) -> DecodedRows | None:
        """Rows of a row group; None if it is damaged and skipped. Blocks; mostly without the GIL.

        Args:
            plans: see `plans`.
            rows: row numbers in the row group; None: all that `group` covers.
            fetched: the result of `fetch`, if the bytes were read ahead.

        Raises:
            CorruptFileError: the row group is damaged or its file was replaced, under `on_error="raise"`.
            OSError: the file cannot be reached, under any `on_error`.
            Exception: raised by `map`.
            DataError: see `fsdata.decode.decode`.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Numbers of files, row groups and rows, and the seconds that opening took; JSON-able."""

    def plans(
        self, layout: Layout, serves: Callable[[Field], bool] = lambda _: True, *, filtered: bool = True
    ) -> tuple[DecodePlan, ...]:
        """One plan for each kind of file, of the fields that `serves` selects."""
        kinds = (
            replace(kind, bindings=tuple(each for each in kind.bindings if serves(each.field))) for kind in self.kinds
        )
        return tuple(DecodePlan(kind, layout, self.source, filtered=filtered) for kind in kinds)

    def fetch(self, plans: Plans, group: RowGroup) -> RemoteGroup | None:
        """A handle to read the bytes that `decode` needs ahead of it; None for readers without read-ahead."""
        return None

    def close(self) -> None:  # noqa: B027  # a default: most readers keep no file open
        """Close open files. Rows already read stay valid."""

    def where(self, group: RowGroup) -> str:
        return self.faults_of(group).where

    def faults_of(self, group: RowGroup) -> Faults:
        """The policy for faults, with the place of a row group."""
        return replace(self.faults, file=self.catalog.files.name(group.file), row_group=group.index)

    def leave_out(self, file: str, reason: str, row_group: int | None = None, rows: int = 0) -> None:
        """Add a file, or one of its row groups, to `skipped`; a row group once."""
        with self._lock:
            if row_group is None or (file, row_group) not in self._seen:
                self._seen |= set() if row_group is None else {(file, row_group)}
                self._note(Skipped(file=file, row_group=row_group, rows=rows, reason=reason))

    def _note(self, left_out: Skipped) -> None:
        place = left_out.file if left_out.row_group is None else f"{left_out.file}, row group {left_out.row_group}"
        _LOG.warning("%s: left out: %s: %s", self.label, place, left_out.reason)
        self.skipped.append(left_out)
        if self.faults.notes is not None:
            where = replace(self.faults, file=left_out.file, row_group=left_out.row_group)
            where.found("corrupt", None, None, left_out.reason)


class DamagePolicy:
    """Context for decoding a row group. Errors of damage are raised with the place of the row group; under
    `on_error="skip"` they are suppressed, and the row group is added to `skipped`.

    Used as a context manager so that decoding threads have no further frame.
    """

    def __init__(self, reader: RowReader, group: RowGroup) -> None:
        self._reader, self._group = reader, group
        self._raised_by_map: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, MapFailed):  # may carry an OSError of user code, which is not damage
            self._raised_by_map = error.error
            return True
        if isinstance(error, DataError) or not isinstance(error, pa.ArrowException | OSError):
            return False
        if unreachable(error):
            return False
        reader, group = self._reader, self._group
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reader.source.on_error == "skip":
            reader.leave_out(reader.catalog.files.name(group.file), reason, group.index, group.rows)
            return True
        if isinstance(error, CorruptFileError):
            raise CorruptFileError(f"{reader.label}: {error}") from error
        raise CorruptFileError(
            f"{reader.where(group)}: cannot be decoded: {reason}. Repair or remove the file, or give on_error='skip' "
            "to leave such row groups out"
        ) from error

    def raise_of_map(self) -> None:
        """Raise the error of `map`, if there is one. Called behind the context: raised inside, the error would have the
        carrier as its context in tracebacks."""
        if self._raised_by_map is not None:
            raise self._raised_by_map


class BatchReader(RowReader):
    """A reader whose rows arrive as record batches, all of one kind."""

    @abstractmethod
    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """Columns `names`, in this order, of rows [start, stop) of a row group. Called by several threads."""

    def decode(
        self, plans: Plans, group: RowGroup, rows: range | None = None, fetched: RemoteGroup | None = None
    ) -> DecodedRows | None:
        """See `RowReader`."""
        (plan,) = plans
        rows = group.range if rows is None else rows
        with DamagePolicy(self, group) as damage:
            batch = self.batch(group, rows.start, rows.stop, plan.read)
            return decode_batch(batch, rows.start, plan, self.faults_of(group))
        damage.raise_of_map()
        return None
