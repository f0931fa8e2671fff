"""How many rows of a row group to decode at a time, from the footer alone."""

from collections.abc import Sequence

import pyarrow.parquet as pq

_BATCH_BYTES = 3 << 20
_MIN_ROWS = 512
_MAX_ROWS = 8192


def wide_columns(metadata: pq.FileMetaData, read: Sequence[str]) -> tuple[int, ...]:
    """Leaf columns of those in `read` that may hold more than one number per row."""
    leaves = [(leaf, metadata.schema.column(leaf)) for leaf in range(metadata.num_columns)]
    return tuple(
        leaf
        for leaf, column in leaves
        if column.path.split(".")[0] in read
        and (column.max_repetition_level > 0 or column.physical_type.endswith("BYTE_ARRAY"))
    )


def batch_rows(row_group: pq.RowGroupMetaData, wide: Sequence[int]) -> int:
    """Rows whose widest column has about 3 MiB, a power of two.

    Larger batches touch fresh memory where smaller ones reuse what Arrow has just given back; smaller ones pay too
    often for every column. Both cost a tenth or more of the decoding.
    """
    widest = 8 * row_group.num_rows
    for leaf in wide:
        chunk = row_group.column(leaf)
        widest = max(widest, 8 * chunk.num_values, chunk.total_uncompressed_size)
    rows = min(max(_BATCH_BYTES * row_group.num_rows // widest, _MIN_ROWS), _MAX_ROWS)
    return 1 << (rows.bit_length() - 1)
