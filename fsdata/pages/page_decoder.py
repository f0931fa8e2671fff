"""Decodes the lists of a row group from their pages, and counts the chunks that are left to pyarrow."""

import threading
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fsdata.catalog.binding.bind import Binding
from fsdata.catalog.binding.column_paths import leaf_at, names_at
from fsdata.catalog.footers import column_ranges
from fsdata.decode.plan import DecodePlan
from fsdata.decode.readers.open_files import OpenParquet
from fsdata.decode.reused_buffers import Pool
from fsdata.pages.chunk import Column, Damaged, LeftToArrow, page_headers, read_column, unpacked_pages
from fsdata.pages.forms import Form, form_of, why_left
from fsdata.pages.kernels import headers, locations
from fsdata.pages.page_rows import first_rows_by_headers, first_rows_by_index, with_rows
from fsdata.schema import Field

_LONGEST_PAUSE = 64  # chunks
_LOCATION_BYTES = 64  # upper bound of the bytes of a page in an offset index


class PageDecoder:
    """Decodes column chunks of lists, and counts those that are left to pyarrow. Thread-safe.

    Some chunks turn out to be undecodable only after they were read, and pyarrow has to read them again. The following
    chunks of the field probably are the same: they are left to pyarrow unread, one chunk at first, and twice as many
    each time that this repeats.

    Attributes:
        chunks: number of decoded chunks. left: (field, reason) -> number of chunks left to pyarrow.
        skipped: number of pages that were not unpacked, as none of their rows was needed.
    """

    def __init__(self, pool: Pool) -> None:
        self.chunks = 0
        self.skipped = 0
        self.left: Counter[tuple[str, str]] = Counter()
        self._pool = pool
        self._columns: dict[tuple[int, Field], _StoredColumn] = {}
        self._lock = threading.Lock()

    def chosen(self, file: OpenParquet, plan: DecodePlan) -> list[Binding]:
        """The fields that neither the schema nor earlier chunks leave to pyarrow."""
        chosen, left = [], []
        for binding in plan.stored:
            reason = self._column(file, binding).reason_to_leave()
            if reason is None:
                chosen.append(binding)
            else:
                left.append((binding.field.name, reason))
        if left:
            with self._lock:
                self.left.update(left)
        return chosen

    def column(self, file: OpenParquet, group: int, binding: Binding, needed: range | np.ndarray) -> Column | None:
        """Decode the column of a row group; None if it is left to pyarrow. Blocks for reading and unpacking.

        needed: row numbers that will be used, ascending; other rows may be empty.

        Raises:
            OSError: the chunk is damaged; the message has the column and page.
        """
        stored = self._column(file, binding)
        assert isinstance(stored.form, Form)
        row_group = file.parquet.metadata.row_group(group)
        chunk = row_group.column(stored.leaf)
        rows = row_group.num_rows
        reason = why_left(chunk)
        if reason is not None:
            self._leave(binding, reason)
            return None
        try:
            ((begin, end),) = column_ranges(row_group, [stored.leaf])
            raw, owner = self._bytes(file.source, begin, end)
            table = page_headers(raw, values=chunk.num_values, unpacked=chunk.total_uncompressed_size)
            first = None if len(needed) == rows else self._first_rows(file, group, stored.leaf, raw, table, rows, begin)
            unpack = partial(unpacked_pages, raw, owner, table, codec=chunk.compression, pool=self._pool)
            read = partial(
                read_column,
                form=stored.form,
                count=rows,
                pool=self._pool,
                policy=binding.policy,
                default=binding.value or 0,  # type: ignore[arg-type]  # a number, as no text comes here
            )
            skipped, column = 0, None
            if first is not None:
                pages = with_rows(first, needed)
                table[:, headers.FIRST_ROW], table[:, headers.END_ROW] = first[:-1], first[1:]
                try:
                    column = read(unpack(needed=pages), stop=rows, present=int(np.diff(first)[pages].sum()))
                    skipped = int((~pages).sum())
                except Damaged:
                    # The row numbers may be wrong, and not the pages: read all pages without row numbers.
                    table[:, [headers.FIRST_ROW, headers.END_ROW]] = 0
            if column is None:
                column = read(unpack(), stop=int(needed[-1]) + 1)
        except LeftToArrow as left:
            stored.pause(str(left))
            self._leave(binding, str(left))
            return None
        except Damaged as error:
            raise OSError(f"column {binding.column!r}, {error}") from error
        with self._lock:
            self.chunks += 1
            self.skipped += skipped
        return column

    def _leave(self, binding: Binding, reason: str) -> None:
        with self._lock:
            self.left[binding.field.name, reason] += 1

    def _column(self, file: OpenParquet, binding: Binding) -> "_StoredColumn":
        """How the field is stored in files of this schema. Files of one schema share the schema object."""
        key = id(file.schema), binding.field
        column = self._columns.get(key)
        if column is None:
            column = self._columns.setdefault(key, _StoredColumn(file, binding))
        return column

    def _first_rows(
        self, file: OpenParquet, group: int, leaf: int, raw: np.ndarray, table: np.ndarray, rows: int, begin: int
    ) -> np.ndarray | None:
        """int64 [P + 1], see `fsdata.pages.page_rows`; None if rows are unknown or a row is divided between pages."""
        if not locations.begin_with_rows(raw, table):
            return None
        first = first_rows_by_headers(table, rows)
        indexes = file.indexes(group)
        if first is not None or indexes is None:
            return first
        at, size = indexes[leaf].tolist()
        data_pages = int((table[:, headers.KIND] != headers.DICTIONARY).sum())
        if not 0 < size <= _LOCATION_BYTES * (data_pages + 1):  # with a damaged size it could read the whole file
            return None
        entries = locations.read_locations(self._bytes(file.source, at, at + size)[0], data_pages)
        return first_rows_by_index(table, rows, entries, begin)

    def _bytes(self, source: Any, begin: int, end: int) -> tuple[np.ndarray, Any]:
        """(uint8, bytes [begin, end) of the file; the object that owns them)."""
        source.seek(begin)
        if not hasattr(source, "readinto"):
            owner = source.read(end - begin)
            raw = np.frombuffer(owner, np.uint8)
        else:
            owner = self._pool.take(max(end - begin, 1))
            raw = np.asarray(owner)[: end - begin]
            raw = raw[: source.readinto(raw)]
        if len(raw) < end - begin:
            raise Damaged(f"{len(raw)} bytes where {end - begin} should be: the file ends too early")
        raw.flags.writeable = False  # like arrays over `bytes`: numba compiles the kernels for one type
        return raw, owner


class _StoredColumn:
    """A field in files of one schema: how it is stored, and the number of next chunks that are left to pyarrow unread.

    Without a lock: after a race, some chunks more or fewer are left to pyarrow.

    Attributes:
        form: form of its values, or the reason for leaving it to pyarrow. leaf: the leaf column.
    """

    def __init__(self, file: OpenParquet, binding: Binding) -> None:
        self.form, self.leaf = _form(file.parquet, binding)
        self._schema = file.schema  # alive, as long as the id of the object is a key
        self._left = self._length = 0  # chunks of the pause that remain; length of the pause
        self._reason = ""

    def reason_to_leave(self) -> str | None:
        """The reason for leaving the next chunk to pyarrow; None to decode it. Ends a pause chunk by chunk."""
        if isinstance(self.form, str):
            return self.form
        if self._left > 0:
            self._left -= 1
            return self._reason
        return None

    def pause(self, reason: str) -> None:
        """Leave the next chunks to pyarrow."""
        self._reason = reason
        self._left = self._length = min(max(2 * self._length, 1), _LONGEST_PAUSE)


def _form(file: pq.ParquetFile, binding: Binding) -> tuple[Form | str, int]:
    """(form of a field's column, or the reason for leaving it to pyarrow; number of the leaf column)."""
    arrow = file.schema_arrow
    names = names_at(arrow, str(binding.column))
    if binding.is_text:
        return "text", -1
    if names is None or binding.field.shape == "nested":
        return "nested", -1
    leaf = leaf_at(arrow, names)
    return form_of(file.schema.column(leaf), arrow, names, binding.field.number), leaf
