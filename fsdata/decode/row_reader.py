"""What a source reads its rows with, whatever they are stored as: Parquet files, events of a table, record batches.

A reader has units of rows, each with its number of rows, and decodes some rows of a unit into a piece. What becomes of
columns, nulls, joins and lists follows from the piece and is the same for all of them (`fsdata.decode.opened_source`).
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.footers import Skipped
from fsdata.catalog.retry import unreachable
from fsdata.decode.arrow.record_batches import GroupRows, MapFailed
from fsdata.decode.decode_piece import decode_batch
from fsdata.decode.open_files import RemoteGroup
from fsdata.decode.piece import DecodedPiece
from fsdata.decode.piece_plan import PiecePlan, plan_pieces
from fsdata.decode.row_groups import Groups, RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.errors import CorruptFileError, DataError, Fault, Faults
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource

_LOG = logging.getLogger("fsdata")


class RowReader(ABC):
    """The rows of one source. Thread-safe after construction.

    Attributes:
        source: what the user says of it.
        catalog: its files, or what stands for them: names and digests that ranks and saved states compare.
        groups: its units. kinds: how fields are made of the columns of each kind of file.
        faults: what becomes of rows that contradict the schema. skipped: files and units that were left out.
        version: of a table, which version its files are.
    """

    catalog: Catalog
    groups: Groups
    kinds: list[FileKind]
    version: str | None = None

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
        self,
        plans: Sequence[PiecePlan],
        group: RowGroup,
        start: int,
        stop: int,
        fetched: RemoteGroup | None = None,
    ) -> DecodedPiece | None:
        """Rows [start, stop) of a unit; None if it is damaged and skipped. Blocks.

        plans: one for each kind of file, see `plans`. fetched: what `fetch` gave, if it was read ahead.

        Raises:
            CorruptFileError: damaged, or another file than at the start, under `on_error="raise"`.
            OSError: the file cannot be reached, whatever `on_error` says.
            Exception: what `map` raised.
            DataError: see `fsdata.decode.decode_piece`.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What was found, and what finding it took; JSON-able."""

    def plans(self, serves: Callable[[Field], bool], layout: Layout, *, filtered: bool) -> tuple[PiecePlan, ...]:
        """How the fields that `serves` chooses are decoded, one plan per kind of file."""
        condition = self.source.condition if filtered else None
        plans = []
        for kind in self.kinds:
            bindings = tuple(each for each in kind.bindings if serves(each.field))
            order_only = all(each.field.kind == "time" for each in bindings)  # the order is that of the files
            plans.append(
                plan_pieces(
                    replace(kind, bindings=bindings),
                    layout,
                    condition=condition,
                    expressions={
                        each.field.name: self.source.expression_of(each.field.name)
                        for each in bindings
                        if each.origin == "expression"
                    },
                    map=None if order_only else self.source.map,
                )
            )
        return tuple(plans)

    def fetch(self, plans: Sequence[PiecePlan], group: RowGroup) -> RemoteGroup | None:
        """What `decode` needs of a unit, to be read ahead of it; None where nothing is read ahead."""
        return None

    def small(self, plans: Sequence[PiecePlan]) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [groups], the file of units that are decoded together with others of this file, -1 of others; float64
        [groups], their share in what is decoded at once). None are, unless a reader can."""
        return np.full(len(self.groups), -1), np.zeros(len(self.groups))

    def decode_at_once(self, plans: Sequence[PiecePlan], groups: Sequence[RowGroup]) -> DecodedPiece:
        """All rows of whole small units, see `small`; they are numbered from the first of all.

        Raises: anything, also where `decode` of each would note a fault; nothing is retried or noted.
        """
        raise NotImplementedError

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

    def _damaged(self, group: RowGroup, error: Exception) -> None:
        """Raise what is wrong with a unit, or note that it is skipped."""
        if unreachable(error):
            raise error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if self.source.on_error == "skip":
            return self.leave_out(self.catalog.files.name(group.file), reason, group.index, group.rows)
        if isinstance(error, CorruptFileError):
            raise CorruptFileError(f"{self.label}: {error}") from error
        raise CorruptFileError(
            f"{self.where(group)}: cannot be decoded: {reason}. Repair or remove the file, or give "
            "on_error='skip' to leave such row groups out"
        ) from error


class BatchReader(RowReader):
    """Rows that come as record batches, all of one kind."""

    @abstractmethod
    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """Rows [start, stop) of a unit, and of them the columns `names`, in this order. From several threads."""

    def decode(
        self,
        plans: Sequence[PiecePlan],
        group: RowGroup,
        start: int,
        stop: int,
        fetched: RemoteGroup | None = None,
    ) -> DecodedPiece | None:
        """See `RowReader`."""
        (plan,) = plans
        wanted = GroupRows(
            group=group.index,
            start=start,
            stop=stop,
            to_end=False,
            schema=0,
            faults=self.faults_of(group),
            leaves=lambda _: (),  # there is no file whose columns they would be
        )
        try:
            return decode_batch(self.batch(group, start, stop, plan.batches.read), wanted, plan)
        except MapFailed as carrier:
            failed = carrier.error
        except DataError:
            raise
        except (pa.ArrowException, OSError) as error:
            self._damaged(group, error)
            return None
        raise failed
