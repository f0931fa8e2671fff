"""The interface of joined tables: `Attached` is the opened table, a `Stage` completes decoded rows, mostly by such
tables."""

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted, check_key
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.decode.block import Column, RowRefs
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.decode.row_layout import Layout
from fsdata.schema import Field
from fsdata.sources.source import Joined, ParquetSource


class Stage:
    """Completes the decoded rows of a source, by joined tables of one kind or by draws. Thread-safe.

    Attributes:
        turn: stages run in ascending order; rows that one drops are not faults in later ones.
        references: sequences whose events stay in the table: rows refer to them, also when they move to other ranks.
    """

    __slots__ = ()
    turn = 0
    references: Collection[str] = ()

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Add fields to decoded rows, in place, before their lists are aligned. file: number of their file.

        Raises:
            DataError: under the policy `error` of a field.
        """

    def finish(self, decoded: DecodedRows) -> None:
        """Add or change fields that depend on aligned lists."""

    def bucket(self, sources: Sequence[Sequence["Stage"]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
        """A function: rows -> int64 [n], the bucket of a table on disk that each needs. None without a table on disk.

        Rows of one shuffle window are ordered by bucket, so that each is read once. sources: stages of every source.
        """
        return None

    def first_events(self, rows: RowRefs, layout: Layout) -> dict[str, np.ndarray]:
        """Shared sequence -> int64 [N], number of the first event of each row, unique over all tables of this kind.
        On all ranks in the order of the schema."""
        return {}

    def received(
        self, columns: list[Column], rows: int, layout: Layout, sources: Sequence[Sequence["Stage"]]
    ) -> RowRefs:
        """References to rows received from other ranks, whose sequences in `references` are resolved from the table.

        columns: by slot. sources: stages of every source.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attached(ABC):
    """A joined table that was opened and read.

    Attributes:
        join: the user's arguments.
        files: its files, closed after the table is read. Only a table that is followed opens further ones.
    """

    join: Joined
    files: SourceFiles

    @property
    def source(self) -> ParquetSource:
        """The source of the table."""
        return self.join.source

    @property
    def label(self) -> str:
        """Name of the table in messages."""
        return self.files.label

    @property
    def catalog(self) -> Catalog:
        """Catalog of its files."""
        return self.files.catalog

    @property
    def skipped(self) -> list[Skipped]:
        """Files and row groups left out."""
        return self.files.skipped

    @property
    def fingerprint(self) -> dict[str, str]:
        """See `fsdata.catalog.fingerprint`."""
        return fingerprint(self.source, self.files.catalog, (), self.files.version)

    @property
    def counted(self) -> Mapping[str, Counted]:
        """Name of its key and fields -> unit of their integers."""
        return {field.name: unit for field, unit in self.files.counted.items()}

    @property
    def kinds(self) -> Sequence[FileKind]:
        """Kinds of its files, if labels of candidates may be bound to them."""
        return ()

    @property
    def defaults(self) -> Mapping[str, float | str]:
        """Field -> default in rows without a match."""
        return {}

    @property
    def masks(self) -> frozenset[str]:
        """Fields for which a batch has a mask of matches."""
        return frozenset()

    @property
    def may_drop(self) -> bool:
        """Whether it may drop rows."""
        return any(self.source.policy(name) == "drop" for name in self.join.fields)

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        """Raise SchemaError if compared keys or times have different units.

        own: field of the rows -> unit. ids: the same by name, all joined tables included.
        """
        check_key(self.join.on, own.get(Field(self.join.on, "join_key")), self.counted.get(self.join.on))
