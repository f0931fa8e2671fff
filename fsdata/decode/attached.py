"""What a table that is joined to a source has to be: opened, checked, and a stage that completes decoded rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.footers import Skipped
from fsdata.decode.block import Column, RowRefs
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.row_layout import Layout
from fsdata.schema import Field
from fsdata.sources.source import Joined, ParquetSource


class Stage:
    """What joined tables of one kind do to the rows of a source. Thread-safe.

    Attributes:
        turn: stages with a lower one come first: rows that a stage drops are no fault in later ones.
        references: sequences whose events stay in the table, so that rows only say where they are.
    """

    __slots__ = ()
    turn = 0
    references: Collection[str] = ()

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Add fields to decoded rows, in place, before their lists are aligned. file: that the rows are of.

        Raises: DataError, as the policies of the fields say.
        """

    def finish(self, decoded: DecodedRows) -> None:
        """Add what depends on lists as they are in the end."""

    def bucket(self, sources: Sequence[Sequence["Stage"]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
        """Rows -> int64 [n], which stretch of a table on disk each needs; None where no table is on disk.

        sources: the stages of every source.
        """
        return None

    def first_events(self, rows: RowRefs, layout: Layout) -> dict[str, np.ndarray]:
        """Sequence that samples share -> int64 [N], the number of the first event that each sees, in all tables of the
        kind; on all ranks in the order of the schema."""
        return {}

    def received(
        self, columns: list[Column], rows: int, layout: Layout, sources: Sequence[Sequence["Stage"]]
    ) -> RowRefs:
        """Rows that came from other ranks with references, see `references`, in place of events.

        columns: by slot. sources: the stages of every source.
        """
        raise NotImplementedError


class Attached(Protocol):
    """A joined table whose files are open or read."""

    @property
    def join(self) -> Joined:
        """What the user said."""

    @property
    def source(self) -> ParquetSource:
        """Of the table."""

    @property
    def catalog(self) -> Catalog:
        """Its files."""

    @property
    def kinds(self) -> Sequence[FileKind]:
        """Of its files, where labels of the candidates may come from them."""

    @property
    def skipped(self) -> list[Skipped]:
        """Files and row groups that were left out."""

    @property
    def fingerprint(self) -> dict[str, str]:
        """See `fsdata.catalog.fingerprint`."""

    @property
    def counted(self) -> Mapping[str, Counted]:
        """What the integers of its key and fields count, by name."""

    @property
    def defaults(self) -> Mapping[str, float | str]:
        """Of its fields, in rows that have none."""

    @property
    def masks(self) -> frozenset[str]:
        """Fields of which a batch says whether there was a match."""

    @property
    def may_drop(self) -> bool:
        """Whether rows may be left out because of what it has or lacks."""

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        """Raise SchemaError if keys or times that are compared count something else.

        own: what the fields of the rows count. ids: the same by name, with those of all joined tables.
        """
