"""Decodes the lists of a row group from their pages, and counts those that are left to pyarrow."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fsdata.catalog.binding.bind import Binding
from fsdata.catalog.binding.column_paths import leaf_at, names_at
from fsdata.catalog.footers import column_ranges
from fsdata.decode.reused_buffers import Pool
from fsdata.pages.chunk import Column, Damaged, LeftToArrow, page_headers, read_column, unpacked_pages
from fsdata.pages.forms import Form, form_of, why_left
from fsdata.pages.kernels import headers, locations
from fsdata.pages.page_rows import first_rows_by_headers, first_rows_by_index, with_rows
from fsdata.schema import Field

_LONGEST_PAUSE = 64  # chunks
_LOCATION_BYTES = 64  # at most, of a page in an offset index


class PageDecoder:
    """Decodes column chunks of lists, and counts those that are left to pyarrow. Thread-safe.

    Some chunks turn out to be undecodable only after they were read, and the following chunks of the field probably are
    the same. They are left to pyarrow unread: one chunk at first, and twice as many each time that this repeats.

    Attributes:
        chunks: number of decoded chunks. left: (field, reason) -> number of chunks left to pyarrow.
        skipped: number of pages that were not unpacked, as none of their rows was needed.
    """

    def __init__(self, pool: Pool) -> None:
        self.chunks = 0
        self.skipped = 0
        self.left: Counter[tuple[str, str]] = Counter()
        self._pool = pool
        self._pauses: dict[tuple[int, Field], _Pause] = {}
        self._forms: dict[int, dict[Field, tuple[Form | str, int]]] = {}
        self._lock = threading.Lock()

    def forms(self, file: pq.ParquetFile, bindings: Sequence[Binding], schema: int) -> dict[Binding, tuple[Form, int]]:
        """Form and leaf column of the fields that neither the schema nor earlier chunks leave to pyarrow.

        Args:
            bindings: fields that are columns of the file.
            schema: number of the file's schema; files of equal schemas share the result.
        """
        forms = self._forms.setdefault(schema, {})
        if any(binding.field not in forms for binding in bindings):
            forms.update(_forms(file, bindings))
        decodable, left = {}, []
        for binding in bindings:
            form, leaf = forms[binding.field]
            pause = self._pauses.get((schema, binding.field))
            if isinstance(form, str):
                left.append((binding.field.name, form))
            elif pause is not None and pause.left > 0:
                pause.left -= 1
                left.append((binding.field.name, pause.reason))
            else:
                decodable[binding] = form, leaf
        if left:
            self._count(0, 0, left)
        return decodable

    def columns(
        self,
        row_group: pq.RowGroupMetaData,
        source: Any,
        needed: range | np.ndarray,
        forms: Mapping[Binding, tuple[Form, int]],
        indexes: np.ndarray | None,
        schema: int,
    ) -> dict[Field, Column]:
        """Field -> its column, without those left to pyarrow. Blocks for reading and unpacking.

        Args:
            source: an open file, or bytes in memory with `seek` and `read`.
            needed: rows of the row group that will be used, ascending; others may be empty.
            indexes: int64 [leaf columns, 2], first byte and size of each offset index; None: they are not read.
            schema: see `forms`.

        Raises:
            OSError: a chunk is damaged; the message has the column and page.
        """
        columns, left, skipped = {}, [], 0
        for binding, (form, leaf) in forms.items():
            chunk = None
            try:
                chunk = _Chunk(row_group, leaf, form, binding, self._pool)
                columns[binding.field] = chunk.read(source, needed, None if indexes is None else indexes[leaf])
                skipped += chunk.skipped
            except LeftToArrow as reason:
                left.append((binding.field.name, str(reason)))
                if chunk is not None:  # it was read in vain: not so if the constructor raised, by the footer alone
                    self._pauses.setdefault((schema, binding.field), _Pause()).begin(str(reason))
            except Damaged as error:
                raise OSError(f"column {binding.column!r}, {error}") from error
        self._count(len(columns), skipped, left)
        return columns

    def _count(self, chunks: int, skipped: int, left: list[tuple[str, str]]) -> None:
        with self._lock:
            self.chunks += chunks
            self.skipped += skipped
            self.left.update(left)


class _Pause:
    """Number of next chunks of a field that are left to pyarrow unread, and the reason. Without a lock: a wrong count
    by a race costs little."""

    def __init__(self) -> None:
        self.left = self._length = 0
        self.reason = ""

    def begin(self, reason: str) -> None:
        self.reason = reason
        self.left = self._length = min(max(2 * self._length, 1), _LONGEST_PAUSE)


class _Chunk:
    """One column chunk. skipped: number of pages that were not unpacked."""

    def __init__(self, row_group: pq.RowGroupMetaData, leaf: int, form: Form, binding: Binding, pool: Pool) -> None:
        chunk = row_group.column(leaf)
        reason = (
            why_left(chunk) if chunk.physical_type == form.physical else "values of another type than in other files"
        )
        if reason:
            raise LeftToArrow(reason)
        self._codec, self._values = chunk.compression, chunk.num_values
        self._unpacked, self._rows = chunk.total_uncompressed_size, row_group.num_rows
        ((self._begin, self._end),) = column_ranges(row_group, [leaf])
        self._form = form
        self._binding = binding
        self._pool = pool
        self.skipped = 0

    def read(self, source: Any, wanted: range | np.ndarray, index: np.ndarray | None) -> Column:
        raw, owner = self._bytes(source, self._begin, self._end)
        table = page_headers(raw, values=self._values, unpacked=self._unpacked)
        first = None if len(wanted) == self._rows else self._first_rows(source, raw, table, index)
        unpack = partial(unpacked_pages, raw, owner, table, codec=self._codec, pool=self._pool)
        column = partial(
            read_column,
            form=self._form,
            count=self._rows,
            pool=self._pool,
            policy=self._binding.policy,
            default=self._binding.value or 0,  # type: ignore[arg-type]  # a number, as no text comes here
        )
        if first is not None:
            needed = with_rows(first, wanted)
            table[:, headers.FIRST_ROW], table[:, headers.END_ROW] = first[:-1], first[1:]
            try:
                result = column(unpack(needed=needed), stop=self._rows, some=int(np.diff(first)[needed].sum()))
                self.skipped = int((~needed).sum())
                return result
            except Damaged:
                # The row numbers may be wrong, not the pages: read all pages without them.
                table[:, [headers.FIRST_ROW, headers.END_ROW]] = 0
        return column(unpack(), stop=int(wanted[-1]) + 1)

    def _first_rows(
        self, source: Any, raw: np.ndarray, table: np.ndarray, index: np.ndarray | None
    ) -> np.ndarray | None:
        """int64 [P + 1], see `fsdata.pages.page_rows`; None if they are unknown or a row is divided between pages."""
        if not locations.begin_with_rows(raw, table):
            return None
        first = first_rows_by_headers(table, self._rows)
        if first is not None or index is None:
            return first
        begin, size = index.tolist()
        data = int((table[:, headers.KIND] != headers.DICTIONARY).sum())
        if not 0 < size <= _LOCATION_BYTES * (data + 1):  # a damaged size must not make it read the whole file
            return None
        entries = locations.read_locations(self._bytes(source, begin, begin + size)[0], data)
        return first_rows_by_index(table, self._rows, entries, self._begin)

    def _bytes(self, source: Any, begin: int, end: int) -> tuple[np.ndarray, Any]:
        """uint8, bytes of the file, and the object that owns them."""
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


def _forms(file: pq.ParquetFile, bindings: Sequence[Binding]) -> dict[Field, tuple[Form | str, int]]:
    """Field -> the form of its column, or the reason for pyarrow; and the number of the leaf column."""
    schema, arrow = file.schema, file.schema_arrow
    forms: dict[Field, tuple[Form | str, int]] = {}
    for binding in bindings:
        names = names_at(arrow, str(binding.column))
        if binding.is_text:
            forms[binding.field] = "text", -1
        elif names is None or binding.field.shape == "nested":
            forms[binding.field] = "nested", -1
        else:
            leaf = leaf_at(arrow, names)
            forms[binding.field] = form_of(schema.column(leaf), arrow, names, binding.field.number), leaf
    return forms
