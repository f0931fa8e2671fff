"""Decodes several small row groups as one record batch. In short row groups, pyarrow spends most of its time on opening
column chunks, and the kernels and the block have a fixed cost per row group, too.

pyarrow reads a column across row groups and only compares the number of all rows. If damage gave one row group a row
too many in one column, that column would be shifted against the others in all later row groups, and its last row would
remain unread. Decoded one by one, no other row group would be affected. Therefore the footer's numbers of the chunks
are compared with the headers of all pages and with the values that were read, and no row may remain unread.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import is_text
from fsdata.catalog.binding.bind import FileKind
from fsdata.decode.arrow import widen
from fsdata.decode.decode import decode_batch
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.plan import DecodePlan
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.readers.row_reader import Plans
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.kernels import footer
from fsdata.pages import kernels as pages
from fsdata.pages.kernels import headers

_MOST_ROWS, _MOST_BYTES = 8192, 256 << 10  # of row groups that are decoded together


class SmallGroups:
    """Decodes the small row groups of one source. Thread-safe. Protocol: `fsdata.decode.readers.row_reader`."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._chunks = Counter[str]()  # field of lists -> number of chunks
        self._lock = threading.Lock()

    def shares(self, plans: Plans) -> tuple[np.ndarray, np.ndarray]:
        """See the protocol.

        The size of decoded rows is known if all columns are numbers. With lists it is estimated by the bytes in the
        file: long lists are decoded faster from their pages, by several threads, and must not count as small.
        """
        groups, catalog, kind_of = self._files.groups, self._files.catalog, self._files.kind_of
        rows, files = groups.row_counts, groups.files
        allowed = np.array([self._readable(*each) for each in zip(self._files.kinds, plans, strict=True)])
        width = np.array([8 * len(plan.read) if plan.flat else 0 for plan in plans])
        kind, stored = kind_of[files], catalog.size / np.maximum(np.diff(catalog.first), 1)
        size = np.where(width[kind] > 0, rows * width[kind], stored[files])
        share = np.maximum(rows / _MOST_ROWS, size / _MOST_BYTES)
        small = groups.whole & (share <= 0.5) & allowed[kind]
        return np.where(small, files, -1), np.where(small, share, 0.0)

    def _readable(self, kind: FileKind, plan: DecodePlan) -> bool:
        """Whether row groups of this kind of file may be decoded together."""
        if plan.map is not None or (self._files.source.only_pages and plan.stored):
            return False
        return all(readable(kind.schema.field(name).type) for name in plan.read)

    def decode(self, plans: Plans, groups: Sequence[RowGroup]) -> DecodedRows:
        """See the protocol."""
        number, rows = groups[0].file, sum(group.rows for group in groups)
        plan = plans[self._files.kind_of[number]]
        with self._files.open_files.using(self._files.expected_file(number)) as file:
            indices = [group.index for group in groups]
            self._files.count_read(file, indices, plan)
            batch = read(file.parquet, file.source, file.chunks, indices, plan.leaves, rows)
        # Faults are raised here, and noted when the row groups are then decoded one by one: only then the row is known.
        decoded = decode_batch(batch, 0, plan, replace(self._files.faults, notes=None))
        if self._files.pages is not None and plan.stored:
            with self._lock:
                self._chunks.update({each.field.name: len(groups) for each in plan.stored})
        return decoded

    def counted(self) -> dict[str, int]:
        """See the protocol."""
        return dict(self._chunks)


def readable(kind: pa.DataType) -> bool:
    """Whether the number of values in the pages of a column follows from its array: for numbers, texts, and lists of
    them."""
    item = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    return bool(pa.types.is_primitive(item)) or is_text(item)


def read(
    file: pq.ParquetFile, source: Any, chunks: np.ndarray, groups: Sequence[int], leaves: Sequence[int], rows: int
) -> pa.RecordBatch:
    """All `rows` rows of the row groups, whose columns are `readable`. Blocks; decoding runs without the GIL.

    Args:
        source: the object from which `file` reads.
        chunks: int64 [row groups, leaf columns, footer.CHUNK_COLUMNS], those of the file.
        leaves: the leaf columns to read, one per column.

    Raises:
        pa.ArrowException, OSError: a row group is damaged. The caller reads them one by one to find it.
    """
    selected = chunks[np.ix_(groups, leaves)]
    for begin, stored, values, unpacked in selected[:, :, _OF_CHUNK].reshape(-1, len(_OF_CHUNK)).tolist():
        source.seek(begin)
        _, code, page = headers.read_headers(np.frombuffer(source.read(stored), np.uint8), values, unpacked)
        if code != pages.OK:
            raise pa.ArrowInvalid(f"page {page} does not have the values that the footer states")
    # With the size of a batch above the number of rows, a row too many is in the same batch and is counted.
    batches = list(file.reader.iter_batches(_MORE_THAN_ALL, groups, leaves, use_threads=False))
    if len(batches) != 1 or batches[0].num_rows != rows:
        raise pa.ArrowInvalid(f"batches of {[batch.num_rows for batch in batches]} rows where one of {rows} should be")
    for column, values in zip(batches[0].columns, selected[:, :, footer.VALUES].sum(axis=0).tolist(), strict=True):
        if _values(column) != values:
            raise pa.ArrowInvalid(f"{_values(column)} values, but the footer states {values}")
    return batches[0]


_OF_CHUNK = [footer.BEGIN, footer.STORED, footer.VALUES, footer.UNPACKED]
_MORE_THAN_ALL = 1 << 20  # rows of a batch: small row groups together have some 8,192


def _values(column: pa.Array) -> int:
    """The number of values in the column's pages: a null or empty list counts as one."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return len(column)
    _, _, length = widen.lists_of(column)
    return int(np.maximum(length, 1).sum())
