"""Decoding a piece of a row group: lists from pages where that is possible, the rest by pyarrow (orchestration)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.bind import Binding
from fsdata.decode.arrow import widen
from fsdata.decode.arrow.lists import list_column, nested_columns, packed
from fsdata.decode.arrow.record_batches import GroupRows, finished, record_batches
from fsdata.decode.arrow.scalars import ScalarColumns
from fsdata.decode.block import Column, joined, run
from fsdata.decode.open_files import OpenParquet
from fsdata.decode.piece import DecodedPiece, Nulls
from fsdata.decode.piece_plan import PiecePlan, constant
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import ids_of
from fsdata.schema import Field


class Pages(Protocol):
    """What decodes lists in place of pyarrow: `fsdata.pages.page_decoder`.

    Attributes:
        chunks: how many column chunks it has decoded. left: (field, reason) -> how many it has not.
        skipped: pages of the chunks that were not unpacked, as none of their rows was needed.
    """

    chunks: int
    skipped: int
    left: Counter[tuple[str, str]]

    def forms(self, file: pq.ParquetFile, bindings: Sequence[Binding], schema: int) -> dict[Binding, Any]:
        """How the fields are stored that it decodes; see there."""

    def columns(
        self,
        row_group: pq.RowGroupMetaData,
        source: Any,
        needed: range | np.ndarray,
        forms: Mapping[Binding, Any],
        indexes: np.ndarray | None,
        schema: int,
    ) -> dict[Field, Column]:
        """Columns of a row group, of those fields that are not left to pyarrow; see there."""


def decode(
    file: OpenParquet, wanted: GroupRows, plan: PiecePlan, pool: Pool | None, pages: Pages | None
) -> DecodedPiece:
    """Decode rows of a row group.

    Args:
        pool: copy the values there, for rows that stay long; None leaves them where Arrow has decoded them.
        pages: decodes what it can from the bytes of `file`; None leaves all to pyarrow.

    Raises:
        DataError: a null, a non-finite float or an id outside int64 that the field's policy forbids.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    parquet = file.parquet
    row_group = parquet.metadata.row_group(wanted.group)
    rows = row_group.num_rows
    if wanted.stop > rows:
        raise pa.ArrowInvalid(f"{rows} rows where {wanted.stop} or more are known")
    forms = pages.forms(parquet, plan.stored, wanted.schema) if pages is not None and plan.stored else {}
    if pages is None or not forms:
        return _by_pyarrow(parquet, wanted, plan, pool, frozenset()).finish()
    needed: range | np.ndarray = range(rows) if wanted.to_end else range(wanted.start, wanted.stop)
    served, builder = frozenset(each.field for each in forms), None
    if plan.batches.condition is not None and not wanted.to_end:
        builder = _by_pyarrow(parquet, wanted, plan, pool, served)
        needed = builder.rows
    if not len(needed):
        return _Builder(plan, wanted, pool).finish()
    columns = pages.columns(row_group, file.source, needed, forms, file.indexes(wanted.group), wanted.schema)
    if builder is None or columns.keys() != served:
        builder = _by_pyarrow(parquet, wanted, plan, pool, frozenset(columns))
    builder.add_lists(columns, plan)
    return builder.finish()


def decode_batch(batch: pa.RecordBatch, wanted: GroupRows, plan: PiecePlan) -> DecodedPiece:
    """Rows that are in memory: `batch` has the columns that the plan reads, of the rows that are wanted. Raises as
    `decode`."""
    builder = _Builder(plan, wanted, None)
    if plan.batches.needs_none:
        builder.skip(batch.num_rows)
    else:
        for rows, made in finished([(wanted.start, batch)], wanted, plan.batches):
            builder.add(rows, made)
    return builder.finish()


def _by_pyarrow(
    file: pq.ParquetFile, wanted: GroupRows, plan: PiecePlan, pool: Pool | None, without: frozenset[Field]
) -> "_Builder":
    """The rows that the filter keeps, with all fields but those in `without`."""
    rest = plan.without(without) if without else plan
    builder = _Builder(rest, wanted, pool)
    if without and rest.batches.needs_none:
        builder.skip(wanted.stop - wanted.start)
    else:
        for rows, batch in record_batches(file, wanted, rest.batches):
            builder.add(rows, batch)
    return builder


class _Builder:
    """Adds record batches one after another, then lists from pages."""

    def __init__(self, plan: PiecePlan, wanted: GroupRows, pool: Pool | None) -> None:
        size, layout = wanted.stop - wanted.start, plan.layout
        self._plan, self._layout, self._pool, self._faults = plan, layout, pool, wanted.faults
        self._added = 0
        self._rows = np.arange(wanted.start, wanted.stop)
        self._drop = np.full(size, plan.drops_all)
        self._dense = np.empty((size, len(layout.dense)), np.float32)
        self._scalars = ScalarColumns(plan.scalars, size, self._dense, pool)
        self._lists: dict[int, list[Column]] = defaultdict(list)
        self._columns: dict[int, Column] = {}
        self._arrays = {part.binding.field: _constant(part.binding, size) for part in plan.arrays}
        for place, value in plan.alike_dense.items():
            self._dense[:, place] = value

    @property
    def rows(self) -> np.ndarray:
        """int64 [n], numbers in the row group of all rows added."""
        return self._rows[: self._added]

    def add(self, rows: np.ndarray, batch: pa.RecordBatch) -> None:
        """`rows`: int64 [n], numbers in the row group of the n rows of `batch`."""
        here = slice(self._added, self._added + len(rows))
        self._rows[here] = rows
        nulls = Nulls(rows, self._drop[here], self._faults)
        self._scalars.add(batch, self._added, nulls)
        lists: dict[int, Column] = {}
        for part in self._plan.lists:
            array, slot = batch.column(part.column), part.slot
            if part.binding.field.shape == "nested":
                field, ids = self._layout.fields[slot], self._layout.slots[ids_of(part.binding.field.name)]
                lists[slot], lists[ids] = nested_columns(
                    array, batch.column(part.column + 1), part.binding, field, nulls
                )
            else:
                lists[slot] = list_column(array, part.binding, nulls)
        for part in self._plan.arrays:
            if part.column >= 0:
                values, null = self._arrays[part.binding.field]
                found, missing = widen.numbers_of(batch.column(part.column))
                values[here], null[here] = found, False if missing is None else missing
        if self._pool is not None and lists:
            lists = packed(lists, self._layout, nulls.drop, self._pool)
        for slot, column in lists.items():
            self._lists[slot].append(column)
        self._added += len(rows)

    def skip(self, rows: int) -> None:
        """Add rows that have no fields but those of `add_lists`, and those that all rows have alike."""
        self._added += rows

    def add_lists(self, columns: Mapping[Field, Column], plan: PiecePlan) -> None:
        """Lists of `plan` from pages, for the rows of all batches added."""
        count, rows = self._added, self.rows
        some = slice(rows[0], rows[-1] + 1) if count and rows[-1] - rows[0] == count - 1 else rows
        nulls = Nulls(rows, self._drop[:count], self._faults)
        for part in plan.lists:
            column = columns.get(part.binding.field)
            if column is None:
                continue
            column = column.take(some)
            _, length = column.bounds
            if length.min(initial=0) < 0:
                nulls.lists(part.binding, length < 0)
            self._columns[part.slot] = column

    def finish(self) -> DecodedPiece:
        """The rows of all batches added."""
        count, layout = self._added, self._layout
        for part in self._plan.alike:
            self._columns |= constant(part, layout, count)
        for slot, parts in self._lists.items():
            self._columns[slot] = joined(parts)
        if not count:
            none = np.empty(0, np.int64)
            self._columns = {slot: Column(run(0, 0), none, none) for slot in range(len(layout.fields))}
        return DecodedPiece(
            layout=layout,
            columns=self._columns,
            scalars=self._scalars.finish(count),
            dense=self._dense[:count],
            arrays={field: (values[:count], null[:count]) for field, (values, null) in self._arrays.items()},
            drop=self._drop[:count],
            rows=self.rows,
            faults=self._faults,
        )


def _constant(binding: Binding, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A time or key as all rows have it, where it is no column: int64 [rows], and whether it is null."""
    null = binding.origin == "partition" and binding.value is None
    return np.full(rows, int(binding.value or 0)), np.full(rows, null)
