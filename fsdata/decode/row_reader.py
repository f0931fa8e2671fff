"""What a source reads its rows with, whatever they are stored as: Parquet files, events of a table, record batches.

A reader has units of rows, each with its number of rows, and decodes rows of a unit. What becomes of columns, nulls,
joins and lists afterwards is the same for all readers (`fsdata.decode.opened_source`).
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
from fsdata.decode.open_files import RemoteGroup
from fsdata.decode.plan import DecodePlan
from fsdata.decode.row_groups import Groups, RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.errors import CorruptFileError, DataError, Fault, Faults
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource

_LOG = logging.getLogger("fsdata")
Plans = Sequence[DecodePlan]
"""One for each kind of file of a reader."""


class SmallGroups(Protocol):
    """What decodes small row groups of a file together: `fsdata.pages.small_groups`."""

    def shares(self, plans: Plans) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [groups], the file of units that are decoded together with others of this file, -1 of others; float64
        [groups], their share in what is decoded at once)."""

    def decode(self, plans: Plans, groups: Sequence[RowGroup]) -> DecodedRows:
        """All rows of whole small units, numbered from the first of all.

        Raises: anything, also where `RowReader.decode` of each would note a fault; nothing is retried or noted.
        """

    def counted(self) -> dict[str, int]:
        """Field -> how many of its column chunks, of lists, were decoded so."""


class RowReader(ABC):
    """The rows of one source. Thread-safe after construction.

    Attributes:
        source: what the user says of it.
        catalog: its files, or what stands for them: names and digests that ranks and saved states compare.
        groups: its units. kinds: how fields are made of the columns of each kind of file.
        faults: what becomes of rows that contradict the schema. skipped: files and units that were left out.
        version: of a table, which version its files are.
        small_groups: decodes small units together, if something can.
    """

    catalog: Catalog
    groups: Groups
    kinds: list[FileKind]
    version: str | None = None
    small_groups: SmallGroups | None = None

    def __init__(self, source: ParquetSource, label: str, notes: list[Fault] | None) -> None:
        """notes: where faults are noted, see `fsdata.errors.Fault`; None raises the first."""
        self.source = source
        self.label = label
        self.skipped: list[Skipped] = []
        self.faults = Faults(label=label, notes=notes)
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def counted(self) -> Mapping[Field, Counted]:
        """What the integers of its fields count."""

    @property
    def known(self) -> Mapping[str, Counted]:
        """The same of columns that no field is made of."""
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
        """Some rows of a unit; None if it is damaged and skipped. Blocks; most of it without the GIL.

        Args:
            plans: see `plans`.
            rows: which rows of the row group, None: those that the unit has.
            fetched: what `fetch` gave, if it was read ahead.

        Raises:
            CorruptFileError: damaged, or another file than at the start, under `on_error="raise"`.
            OSError: the file cannot be reached, whatever `on_error` says.
            Exception: what `map` raised.
            DataError: see `fsdata.decode.decode`.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What was found, and what finding it took; JSON-able."""

    def plans(
        self, layout: Layout, serves: Callable[[Field], bool] = lambda _: True, *, filtered: bool = True
    ) -> tuple[DecodePlan, ...]:
        """How the fields that `serves` chooses are decoded, one plan for each kind of file."""
        kinds = (
            replace(kind, bindings=tuple(each for each in kind.bindings if serves(each.field))) for kind in self.kinds
        )
        return tuple(DecodePlan(kind, layout, self.source, filtered=filtered) for kind in kinds)

    def fetch(self, plans: Plans, group: RowGroup) -> RemoteGroup | None:
        """What `decode` needs of a unit, to be read ahead of it; None where nothing is read ahead."""
        return None

    def close(self) -> None:  # noqa: B027  # most readers have none open
        """Close open files. Rows already read stay valid."""

    def where(self, group: RowGroup) -> str:
        return self.faults_of(group).where

    def faults_of(self, group: RowGroup) -> Faults:
        """What becomes of the faults of a unit."""
        return replace(self.faults, file=self.catalog.files.name(group.file), row_group=group.index)

    def leave_out(self, file: str, reason: str, row_group: int | None = None, rows: int = 0) -> None:
        """Note a file that is not read, or one unit of it; that once."""
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
    """A context in which a unit is decoded. What it raises says where the damage is; under `on_error="skip"` it ends
    the block, and the unit is noted."""

    def __init__(self, reader: RowReader, group: RowGroup) -> None:
        self._reader, self._group = reader, group
        self._raised_by_map: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, MapFailed):  # may carry an OSError, which is no damage of the file
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
        """Raise what `map` raised, outside of the context; if it did not, the unit is skipped."""
        if self._raised_by_map is not None:
            raise self._raised_by_map


class BatchReader(RowReader):
    """Rows that come as record batches, all of one kind."""

    @abstractmethod
    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """Rows [start, stop) of a unit, and of them the columns `names`, in this order. From several threads."""

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
