"""Rows whose candidates become samples: `Schema(explode="candidates")` (pure planning; no value is copied or read).

Rows are read, planned and moved whole. They become samples when the batch is made, on the rank that computes them.
Letters: N rows, C candidates of all of them.
"""

from collections.abc import Mapping

import numpy as np

from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import RowTable
from fsdata.kernels.copy import step_of


def explode(table: RowTable, layout: Layout) -> tuple[RowTable, np.ndarray]:
    """(a sample for each candidate, in order, with all other fields of its row; int64 [C], the row of each)."""
    assert layout.exploded is not None
    count = table.length[layout.groups[layout.exploded]]
    row = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    found = table.take(row)
    for slot, field in enumerate(layout.fields):
        if field.group == layout.exploded:
            found.address[slot] += within * step_of(found.address[slot], field.itemsize)
            found.length[slot] = 1
    return found, row


def items_of(lengths: Mapping[str, np.ndarray], exploded: str | None) -> dict[str, int]:
    """Group name -> elements of the group in all samples. lengths: group name -> int64 [N] of the rows."""
    if exploded is None:
        return {name: int(length.sum()) for name, length in lengths.items()}
    count = lengths[exploded]
    return {name: int((count if name == exploded else length * count).sum()) for name, length in lengths.items()}
