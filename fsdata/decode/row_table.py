"""Rows by reference: where every field of every sample lies in memory.

The loader never copies a sample until its batch is known. Decoding leaves the values in Arrow's buffers and fills a
`RowTable` of (address, length); shuffling, batching and balancing move table columns; one kernel then copies
each value to its final place.

Letters: F fields, N samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class RowTable:
    """References to N samples of F fields.

    Attributes:
        address: int64 [F, N], byte address of the first element; meaningless where length is 0.
        length: int64 [F, N], elements.
        itemsize: int64 [F], bytes per element.
        owners: whatever must stay alive for the addresses to stay valid.
    """

    address: np.ndarray
    length: np.ndarray
    itemsize: np.ndarray
    owners: tuple[Any, ...]

    @property
    def num_rows(self) -> int:
        return self.address.shape[1]

    def take(self, index: np.ndarray | slice) -> "RowTable":
        """The samples at `index`, numbers or a stretch, in that order; the values stay where they are."""
        if isinstance(index, slice):
            return RowTable(self.address[:, index], self.length[:, index], self.itemsize, self.owners)
        address, length = self.address.take(index, axis=1), self.length.take(index, axis=1)
        return RowTable(address, length, self.itemsize, self.owners)

    def counts(self) -> np.ndarray:
        """int64 [F]: elements of every field in all samples."""
        counts: np.ndarray = np.add.reduce(self.length, axis=1)
        return counts


@dataclass(frozen=True, slots=True)
class SurvivingRows:
    """Rows that filters and null policies left of a slice or a piece.

    Attributes:
        table: [F, n].
        kept: int64 [n], increasing: their positions in the slice or piece; None if all rows survived.
    """

    table: RowTable
    kept: np.ndarray | None


def concat(tables: Sequence[RowTable]) -> RowTable:
    """One table of all samples, in order; the tables have the same fields."""
    if len(tables) == 1:
        return tables[0]
    return RowTable(
        np.concatenate([table.address for table in tables], axis=1),
        np.concatenate([table.length for table in tables], axis=1),
        tables[0].itemsize,
        tuple(owner for table in tables for owner in table.owners),
    )


def empty(itemsize: np.ndarray) -> RowTable:
    """A table of no samples."""
    shape = (len(itemsize), 0)
    return RowTable(np.zeros(shape, np.int64), np.zeros(shape, np.int64), itemsize, ())
