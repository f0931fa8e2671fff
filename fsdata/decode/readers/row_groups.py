"""The row groups of a source, and the files that need not be opened for them (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group, or `rows` rows of it from row `first` on.

    `source` is a position in the loader, `file` in the source, `index` in the file.
    """

    source: int
    file: int
    index: int
    rows: int
    first: int = 0

    @property
    def range(self) -> range:
        """Their numbers in the row group."""
        return range(self.first, self.first + self.rows)


class Groups(Sequence[RowGroup]):
    """Row groups in reading order. row_counts: int64 [groups]."""

    row_counts: np.ndarray


class RowGroups(Groups):
    """The row groups of a source that have rows to read, in order. Stored as arrays; indexing makes a `RowGroup`.

    Attributes:
        row_counts: int64 [groups]. whole: bool [groups], whether all rows of the row group are read.
        files: int32 [groups], file numbers.
    """

    def __init__(
        self,
        source: int,
        catalog: Catalog,
        keep: np.ndarray,
        before: np.ndarray | None = None,
        skip: int = 0,
        limit: int | None = None,
    ) -> None:
        """Select row groups of a catalog of G.

        Args:
            keep: bool [G], false for those that are not read.
            before: int64 [G], rows of the source before each, those of pruned files included; None: those of the
                catalog.
            skip, limit: see `ParquetSource`.
        """
        before = np.cumsum(catalog.rows) - catalog.rows if before is None else before
        begin = np.clip(skip - before, 0, catalog.rows)
        rows = (catalog.rows if limit is None else np.clip(skip + limit - before, 0, catalog.rows)) - begin
        filled = np.flatnonzero((rows > 0) & keep)
        self._source = source
        self._begin = begin[filled]
        self.files = np.searchsorted(catalog.first, filled, side="right").astype(np.int32) - 1
        self._index = (filled - catalog.first[self.files]).astype(np.int32)
        self.row_counts = rows[filled]
        self.whole = rows[filled] == catalog.rows[filled]

    def __len__(self) -> int:
        return len(self.row_counts)

    def of_file(self, file: int) -> range:
        """Positions of the row groups of a file."""
        begin, end = np.searchsorted(self.files, [file, file + 1])
        return range(int(begin), int(end))

    def rows_of(self, file: int) -> tuple[int, ...]:
        """Row counts of a file's row groups by index, 0 for those not read, up to the last one that is read."""
        here = self.of_file(file)
        rows = np.zeros(int(self._index[here[-1]]) + 1 if here else 0, np.int64)
        rows[self._index[here.start : here.stop]] = self.row_counts[here.start : here.stop]
        return tuple(rows.tolist())

    def __getitem__(self, index: int) -> RowGroup:  # type: ignore[override]  # no slices
        columns = (self.files, self._index, self.row_counts, self._begin)
        return RowGroup(self._source, *(int(of[index]) for of in columns))


def left_out(catalog: Catalog, keep: np.ndarray, before: np.ndarray, skip: int, limit: int | None) -> np.ndarray:
    """Numbers of files that have no rows, or rows that `keep`, bool [G], or `skip` exclude. Files behind `limit` do not
    count: nothing of them is read. before: int64 [G], see `RowGroups`."""
    ends = np.concatenate([[0], np.cumsum(catalog.rows)])
    read = np.concatenate([[0], np.cumsum(np.where(keep & (before >= skip), catalog.rows, 0))])
    begin, end = catalog.first[:-1], catalog.first[1:]
    rows = ends[end] - ends[begin]
    starts = np.append(before, (before + catalog.rows).max(initial=0))[begin]
    reached = True if limit is None else starts < skip + limit
    return np.flatnonzero(((read[end] - read[begin] < rows) | (rows == 0)) & reached)
