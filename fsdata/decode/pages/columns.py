"""The columns of a row group that FreeScale decodes itself, and why others are left to pyarrow."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fsdata.catalog.bind import FieldBinding
from fsdata.decode.files.byte_ranges import column_ranges
from fsdata.decode.pages.chunk import Damaged, LeftToArrow, unpacked_pages
from fsdata.decode.pages.column import Column, read_column
from fsdata.decode.pages.forms import Form, form_of, why_left
from fsdata.decode.reused_buffers import Pool


class PageDecoder:
    """Decodes column chunks, and counts those that are left to pyarrow. Thread-safe.

    Attributes:
        chunks: how many were decoded. left: (field, reason) -> how many were not.
    """

    def __init__(self, pool: Pool) -> None:
        self.chunks = 0
        self.left: Counter[tuple[str, str]] = Counter()
        self._pool = pool
        self._forms: dict[int, dict[str, tuple[Form | str, int]]] = {}
        self._lock = threading.Lock()

    def columns(
        self,
        file: pq.ParquetFile,
        source: Any,
        group: int,
        stop: int,
        bindings: Sequence[FieldBinding],
        schema: int,
    ) -> dict[str, Column]:
        """Field -> its column, of those that are not left to pyarrow. Blocks for reading and unpacking.

        Args:
            group, stop: of which row group how many rows.
            schema: a number of the schema of the file: what it says is looked up once.
            source: what `file` reads from: an open file, or bytes in memory that can be sought.
            bindings: fields that are columns of the file.

        Raises:
            OSError: a chunk is damaged; says which column and page.
        """
        row_group = file.metadata.row_group(group)
        forms = self._forms.setdefault(schema, {})
        if any(binding.field.name not in forms for binding in bindings):
            forms.update(_forms(file, bindings))
        found, left = {}, []
        for binding in bindings:
            name = binding.field.name
            try:
                form, leaf = forms[name]
                if isinstance(form, str):
                    raise LeftToArrow(form)
                found[name] = self._column(row_group, stop, leaf, form, source)
            except LeftToArrow as reason:
                left.append((name, str(reason)))
            except Damaged as error:
                raise OSError(f"column {binding.column!r}, {error}") from error
        with self._lock:
            self.chunks += len(found)
            self.left.update(left)
        return found

    def _column(self, row_group: pq.RowGroupMetaData, stop: int, leaf: int, form: Form, source: Any) -> Column:
        chunk = row_group.column(leaf)
        reason = why_left(chunk)
        if reason:
            raise LeftToArrow(reason)
        codec, values, unpacked = chunk.compression, chunk.num_values, chunk.total_uncompressed_size
        ((begin, end),) = column_ranges(row_group, [leaf])
        raw, owner = self._bytes(source, begin, end)
        pages = unpacked_pages(raw, owner, codec=codec, values=values, unpacked=unpacked, pool=self._pool)
        return read_column(pages, form, row_group.num_rows, stop, self._pool)

    def _bytes(self, source: Any, begin: int, end: int) -> tuple[np.ndarray, Any]:
        """uint8, bytes of the file, and what keeps them."""
        source.seek(begin)
        if not hasattr(source, "readinto"):
            held = source.read(end - begin)
            raw = np.frombuffer(held, np.uint8)
        else:
            held = self._pool.take(max(end - begin, 1))
            raw = np.asarray(held)[: end - begin]
            raw = raw[: source.readinto(raw)]
        if len(raw) < end - begin:
            raise Damaged(f"{len(raw)} bytes where {end - begin} should be: the file ends too early")
        return raw, held


def _forms(file: pq.ParquetFile, bindings: Sequence[FieldBinding]) -> dict[str, tuple[Form | str, int]]:
    """Field -> the form of its column, or why it is left to pyarrow; and the number of the leaf column."""
    schema, arrow = file.schema, file.schema_arrow
    leaves: dict[str, list[int]] = {}
    for leaf in range(len(schema)):
        leaves.setdefault(schema.column(leaf).path.split(".")[0], []).append(leaf)
    forms: dict[str, tuple[Form | str, int]] = {}
    for binding in bindings:
        assert binding.column is not None
        field, here = binding.field, leaves.get(binding.column, [])
        if binding.is_text:
            forms[field.name] = "text", -1
        elif len(here) != 1 or field.shape == "nested":
            forms[field.name] = "nested", -1
        else:
            arrow_type = arrow.field(binding.column).type
            forms[field.name] = form_of(schema.column(here[0]), arrow_type, field.number), here[0]
    return forms
