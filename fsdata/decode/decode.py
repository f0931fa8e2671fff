"""Decodes rows of a row group, each column by one decoder: lists from pages where possible, others by pyarrow."""

from collections import Counter, defaultdict
from typing import Protocol

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import Binding
from fsdata.decode.arrow import widen
from fsdata.decode.arrow.lists import list_column, nested_columns, packed
from fsdata.decode.arrow.record_batches import finished, record_batches
from fsdata.decode.arrow.scalars import ScalarColumns
from fsdata.decode.block import Column, joined, run
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.nulls import Nulls
from fsdata.decode.plan import DecodePlan, Slot
from fsdata.decode.readers.open_files import OpenParquet
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Layout, ids_of
from fsdata.errors import Faults
from fsdata.schema import Field


class ColumnDecoder(Protocol):
    """Decodes lists in place of pyarrow: `fsdata.pages.page_decoder`.

    Attributes:
        chunks: number of decoded column chunks. left: (field, reason) -> number of chunks left to pyarrow.
        skipped: number of pages that were not unpacked, since none of their rows was needed.
    """

    chunks: int
    skipped: int
    left: Counter[tuple[str, str]]

    def chosen(self, file: OpenParquet, plan: DecodePlan) -> list[Binding]:
        """The fields of the plan that it will try to decode in the next row group."""

    def column(self, file: OpenParquet, group: int, binding: Binding, needed: range | np.ndarray) -> Column | None:
        """The column of a row group; None if pyarrow has to decode it. See `fsdata.pages.page_decoder`."""


def decode_rows(
    file: OpenParquet,
    group: int,
    rows: range,
    plan: DecodePlan,
    faults: Faults,
    *,
    pool: Pool | None = None,
    pages: ColumnDecoder | None = None,
) -> DecodedRows:
    """Decode `rows` of a row group, without those that the filter excludes. Blocks; mostly without the GIL.

    Args:
        pool: memory to which values are copied, for rows that are retained long; None keeps them in Arrow's memory.
        pages: decoder of lists; None decodes all columns by pyarrow.

    Raises:
        DataError: a null, a non-finite float or an id outside int64 that the field's policy forbids.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    count = file.parquet.metadata.row_group(group).num_rows
    if rows.stop > count:
        raise pa.ArrowInvalid(f"{count} rows where {rows.stop} or more are known")
    # The schema and earlier row groups determine the decoder of a column; a chunk may still turn out to need pyarrow.
    chosen = [] if pages is None else pages.chosen(file, plan)
    served = frozenset(each.field for each in chosen)
    needed: range | np.ndarray = range(count) if plan.to_end else rows
    filling = None
    if chosen and plan.condition is not None and not plan.to_end:
        # The filter first: pages that have none of the rows it keeps are not unpacked.
        filling = _by_pyarrow(file, group, rows, plan.without(served), faults, pool)
        needed = filling.rows
        if not len(needed):
            return filling.finish()
    columns = dict[Field, Column]()
    for binding in chosen:
        assert pages is not None
        column = pages.column(file, group, binding, needed)
        if column is not None:
            columns[binding.field] = column
    if filling is None or len(columns) < len(chosen):
        filling = _by_pyarrow(file, group, rows, plan.without(frozenset(columns)) if columns else plan, faults, pool)
    filling.add_lists(columns, plan)
    return filling.finish()


def decode_batch(batch: pa.RecordBatch, first: int, plan: DecodePlan, faults: Faults) -> DecodedRows:
    """Decode rows in memory, numbered from `first` on. Raises DataError as `decode_rows`.

    batch: the columns `plan.read`.
    """
    filling = _Filling(plan, range(first, first + batch.num_rows), faults, None)
    if plan.rows_only:
        filling.add_rows(batch.num_rows)
    else:
        for numbers, columns in finished([(first, batch)], plan, faults):
            filling.add(numbers, columns)
    return filling.finish()


def _by_pyarrow(
    file: OpenParquet, group: int, rows: range, plan: DecodePlan, faults: Faults, pool: Pool | None
) -> "_Filling":
    filling = _Filling(plan, rows, faults, pool)
    if plan.rows_only:
        filling.add_rows(len(rows))  # as many as the footer says
    else:
        for numbers, batch in record_batches(file.parquet, group, rows, plan, faults):
            filling.add(numbers, batch)
    return filling


class _Filling:
    """Collects record batches one after another, then lists from pages.

    Values of a batch are converted, and copied where there is a pool, before the next batch is decoded: Arrow then
    reuses memory that is still in the CPU's cache.
    """

    def __init__(self, plan: DecodePlan, rows: range, faults: Faults, pool: Pool | None) -> None:
        size, layout = len(rows), plan.layout
        self._plan, self._layout, self._pool, self._faults = plan, layout, pool, faults
        self._added = 0
        self._rows = np.arange(rows.start, rows.stop)
        self._drop = np.full(size, plan.drops_all)
        self._dense = np.empty((size, len(layout.dense)), np.float32)
        self._scalars = ScalarColumns(plan.scalars, size, self._dense, pool)
        self._lists: dict[int, list[Column]] = defaultdict(list)
        self._columns: dict[int, Column] = {}
        self._keys = {key.binding.field: _constant_key(key.binding, size) for key in plan.keys}
        for place, value in plan.constant_dense.items():
            self._dense[:, place] = value

    @property
    def rows(self) -> np.ndarray:
        """int64 [n], row numbers in the row group of all rows added so far."""
        return self._rows[: self._added]

    def add(self, rows: np.ndarray, batch: pa.RecordBatch) -> None:
        """Add a finished batch. rows: int64 [n], numbers of its rows in the row group."""
        here = slice(self._added, self._added + len(rows))
        self._rows[here] = rows
        nulls = Nulls(rows, self._drop[here], self._faults)
        self._scalars.add(batch, self._added, nulls)
        lists: dict[int, Column] = {}
        for slot in self._plan.lists:
            array, binding = batch.column(slot.column), slot.binding
            if binding.field.shape == "nested":
                field, ids = self._layout.fields[slot.number], self._layout.slots[ids_of(binding.field.name)]
                counts, items = nested_columns(array, batch.column(slot.column + 1), binding, field, nulls)
                lists[slot.number], lists[ids] = counts, items
            else:
                lists[slot.number] = list_column(array, binding, nulls)
        for key in self._plan.keys:
            if key.column >= 0:
                values, null = self._keys[key.binding.field]
                numbers, missing = widen.numbers_of(batch.column(key.column))
                values[here], null[here] = numbers, False if missing is None else missing
        if self._pool is not None and lists:
            lists = packed(lists, self._layout, nulls.drop, self._pool)
        for number, column in lists.items():
            self._lists[number].append(column)
        self._added += len(rows)

    def add_rows(self, count: int) -> None:
        """Add rows without a batch: their fields are constant, or follow by `add_lists`."""
        self._added += count

    def add_lists(self, columns: dict[Field, Column], plan: DecodePlan) -> None:
        """Add lists that were decoded from pages, to all rows added so far.

        columns: of all rows of the row group. plan: the plan that has these fields.
        """
        count, rows = self._added, self.rows
        some = slice(rows[0], rows[-1] + 1) if count and rows[-1] - rows[0] == count - 1 else rows
        nulls = Nulls(rows, self._drop[:count], self._faults)
        for slot in plan.lists:
            if slot.binding.field not in columns:
                continue
            column = columns[slot.binding.field].take(some)
            nulls.lists(slot.binding, column.bounds[1] < 0)
            self._columns[slot.number] = column

    def finish(self) -> DecodedRows:
        """All rows added."""
        count, layout = self._added, self._layout
        for slot in self._plan.constant:
            self._columns |= _constant(slot, layout, count)
        for number, parts in self._lists.items():
            self._columns[number] = joined(parts)
        if not count:
            none = np.empty(0, np.int64)
            self._columns = {slot: Column(run(0, 0), none, none) for slot in range(len(layout.fields))}
        return DecodedRows(
            layout=layout,
            columns=self._columns,
            scalars=self._scalars.finish(count),
            dense=self._dense[:count],
            keys={field: (values[:count], null[:count]) for field, (values, null) in self._keys.items()},
            drop=self._drop[:count],
            rows=self.rows,
            faults=self._faults,
        )


def _constant(slot: Slot, layout: Layout, rows: int) -> dict[int, Column]:
    """Slot -> values of a field with one value for all rows, a partition or a default. Lists are null: their length
    depends on the other lists of a row."""
    binding, field = slot.binding, layout.fields[slot.number]
    null = Column(run(0, 0), length=np.full(rows, -1), step=0)
    if binding.field.shape == "nested":
        return {slot.number: null, layout.slots[ids_of(binding.field.name)]: Column(run(0, 0), step=0, width=0)}
    if field.kind == "text":
        return {slot.number: Column.constant(np.frombuffer(str(binding.value or "").encode(), np.uint8))}
    if field.is_list:
        return {slot.number: null}
    return {slot.number: Column.constant(np.full(1, binding.value or 0, field.dtype))}


def _constant_key(binding: Binding, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [rows], bool [rows] where it is null) of a key or time with one value for all rows."""
    null = binding.origin == "partition" and binding.value is None
    return np.full(rows, int(binding.value or 0)), np.full(rows, null)
