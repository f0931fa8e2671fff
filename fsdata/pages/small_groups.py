"""One record batch of all rows of several small row groups: where row groups are short, opening their column chunks is
most of what pyarrow does, and kernels and blocks are paid for each of them, too.

pyarrow reads a column across row groups, and looks at the number of all rows alone: damage by which one row group has
a row too many in a column would move the rows of all row groups behind it against the other columns, and the last row
would be left unread. Read alone, the row group would hide it or show it, and no other would change. So what the footer
says of the chunks is compared with the headers of all pages and with what was read, and nothing is left unread.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import is_text
from fsdata.decode.arrow import widen
from fsdata.kernels import footer
from fsdata.pages import kernels as pages
from fsdata.pages.kernels import headers


def readable(kind: pa.DataType) -> bool:
    """Whether what was read of a column of this type says how many values its pages have: numbers, texts, and lists of
    them."""
    item = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    return bool(pa.types.is_primitive(item)) or is_text(item)


def read(
    file: pq.ParquetFile, source: Any, chunks: np.ndarray, groups: Sequence[int], leaves: Sequence[int], rows: int
) -> pa.RecordBatch:
    """All `rows` rows of the row groups, whose columns are `readable`. Blocks; decoding runs without the GIL.

    Args:
        source: what `file` reads from.
        chunks: int64 [row groups, leaf columns, footer.CHUNK_COLUMNS], of the file.
        leaves: the leaf columns that are read, one of each column.

    Raises:
        pa.ArrowException, OSError: something is wrong with some of the row groups.
    """
    some = chunks[np.ix_(groups, leaves)]
    for begin, stored, values, unpacked in some[:, :, _OF_CHUNK].reshape(-1, len(_OF_CHUNK)).tolist():
        source.seek(begin)
        _, code, page = headers.read_headers(np.frombuffer(source.read(stored), np.uint8), values, unpacked)
        if code != pages.OK:
            raise pa.ArrowInvalid(f"page {page} does not have the values that the footer says")
    batches = list(file.reader.iter_batches(_MORE_THAN_ALL, groups, leaves, use_threads=False))
    if len(batches) != 1 or batches[0].num_rows != rows:
        raise pa.ArrowInvalid(f"batches of {[batch.num_rows for batch in batches]} rows where one of {rows} should be")
    for column, values in zip(batches[0].columns, some[:, :, footer.VALUES].sum(axis=0).tolist(), strict=True):
        if _values(column) != values:
            raise pa.ArrowInvalid(f"{_values(column)} values where the footer says {values}")
    return batches[0]


_OF_CHUNK = [footer.BEGIN, footer.STORED, footer.VALUES, footer.UNPACKED]
_MORE_THAN_ALL = 1 << 20  # rows


def _values(column: pa.Array) -> int:
    """How many its pages have: of a list that is null or empty they have one."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return len(column)
    _, _, length = widen.lists_of(column)
    return int(np.maximum(length, 1).sum())
