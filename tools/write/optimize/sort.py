"""Sorts the rows of one file by one of its columns."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.scan.reading import Reading, reading_source
from fsdata.catalog.footers import Footer


def sorting(footer: Footer, column: str) -> np.ndarray | None:
    """int64 [rows]: row numbers in order of `column`; None if the file is already in order.

    Equal values keep their order, nulls come last. Reads only this column.
    """
    with reading_source(footer) as reading:
        key = pa.Table.from_batches(list(reading.batches([column])), pa.schema([reading.schema.field(column)]))[column]
    order = np.asarray(pc.sort_indices(key)).astype(np.int64)
    return None if (np.diff(order) > 0).all() else order


def ordered(reading: Reading, order: np.ndarray | None, rows: int) -> Iterator[pa.RecordBatch]:
    """All rows in `order`, `rows` at a time; in file order if it is None.

    Sorting holds the file in memory.
    """
    if order is None:
        yield from reading.batches()
        return
    table = reading.table()
    for start in range(0, len(order), rows):
        yield from table.take(pa.array(order[start : start + rows])).combine_chunks().to_batches()
