"""The row groups of a source, and which files need not be opened for them (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group, or `rows` rows of it that begin with its row `first`.

    `source` and `file` are positions, `index` is its place in the file.
    """

    source: int
    file: int
    index: int
    rows: int
    first: int = 0

    @property
    def range(self) -> range:
        """Its rows, as the row group numbers them."""
        return range(self.first, self.first + self.rows)


class Groups(Sequence[RowGroup]):
    """Row groups in order, or parts of them. row_counts: int64 [groups]."""

    row_counts: np.ndarray


class RowGroups(Groups):
    """The row groups of a source that have rows, in order; a `RowGroup` is made when it is asked for.

    Attributes:
        row_counts: int64 [groups]. whole: bool [groups], whether all rows of the row group are read.
        files: int32 [groups].
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
        """keep: bool, one for each row group of the catalog. before: int64, rows of the source that come before each,
        those of files that are left out included; None: those of the catalog. skip, limit: see `ParquetSource`."""
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
        """The places of those of one file."""
        begin, end = np.searchsorted(self.files, [file, file + 1])
        return range(int(begin), int(end))

    def rows_of(self, file: int) -> tuple[int, ...]:
        """Rows of every row group of a file, 0 of those left out; without those left out at its end."""
        here = self.of_file(file)
        rows = np.zeros(int(self._index[here[-1]]) + 1 if here else 0, np.int64)
        rows[self._index[here.start : here.stop]] = self.row_counts[here.start : here.stop]
        return tuple(rows.tolist())

    def __getitem__(self, index: int) -> RowGroup:  # type: ignore[override]  # no slices
        columns = (self.files, self._index, self.row_counts, self._begin)
        return RowGroup(self._source, *(int(of[index]) for of in columns))


def left_out(catalog: Catalog, keep: np.ndarray, before: np.ndarray, skip: int, limit: int | None) -> np.ndarray:
    """Numbers of the files that have no rows, or some that `keep`, bool [G], or `skip` leave out. Those behind `limit`
    are not among them: whatever they have, it is not read. before: int64 [G], see `RowGroups`."""
    ends = np.concatenate([[0], np.cumsum(catalog.rows)])
    read = np.concatenate([[0], np.cumsum(np.where(keep & (before >= skip), catalog.rows, 0))])
    begin, end = catalog.first[:-1], catalog.first[1:]
    rows = ends[end] - ends[begin]
    starts = np.append(before, (before + catalog.rows).max(initial=0))[begin]
    reached = True if limit is None else starts < skip + limit
    return np.flatnonzero(((read[end] - read[begin] < rows) | (rows == 0)) & reached)
