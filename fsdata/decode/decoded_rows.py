"""Rows of a row group on their way to a block: a table that is filled column by column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fsdata.decode.block import Block, Column, RowRefs, Scalars, dropped_rows
from fsdata.decode.nulls import Nulls
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.row_layout import Layout
from fsdata.errors import Faults
from fsdata.schema import Field


@dataclass(slots=True, kw_only=True)
class DecodedRows:
    """N rows of a row group, column by column. Stages complete them in place: joined tables add columns, policies drop
    rows.

    Attributes:
        layout: their fields.
        rows: int64 [N], row numbers in the row group. drop: bool [N], rows that a policy dropped.
        columns: slot of the layout -> values. scalars: values of slots that are not in `columns`, if any. dense:
            float32 [N, D], which becomes the column of the dense slot.
        keys: join key or time -> (int64 [N], bool [N] where it is null).
        faults: policy for rows that contradict the schema.
        groups: the row groups of one file that they are from, one after another; `rows` counts from the first row of
            the first of several. epoch: for which they are read.
    """

    layout: Layout
    rows: np.ndarray
    drop: np.ndarray
    dense: np.ndarray
    faults: Faults
    columns: dict[int, Column] = field(default_factory=dict)
    scalars: Scalars | None = None
    keys: Mapping[Field, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    groups: Sequence[RowGroup] = ()
    epoch: int = 0

    @property
    def alive(self) -> np.ndarray:
        """int64 [n]: positions of the rows that are not dropped."""
        return np.flatnonzero(~self.drop)

    @property
    def nulls(self) -> Nulls:
        """The null policies, applied to these rows."""
        return Nulls(self.rows, self.drop, self.faults)

    def column(self, slot: int) -> Column:
        """The values of a slot."""
        if slot not in self.columns and self.scalars is not None:
            return self.scalars.column(slot)
        return self.columns[slot]

    def references(self, planned: range, source: int) -> RowRefs:
        """A reference for each of the rows `planned` of the row group. Every slot of the layout must have a column.

        source: the number of the source in its loader.
        """
        fields = [self.columns.get(slot) for slot in range(len(self.layout.fields))]
        rows = RowRefs.of(Block.of(fields, len(self.rows), source, self.scalars))
        if len(self.rows) == len(planned) and not self.drop.any():
            return rows
        alive = self.alive
        found = dropped_rows(len(planned), len(fields))
        found.row[self.rows[alive] - planned.start] = alive
        return RowRefs(rows.blocks, found.block, found.row)
