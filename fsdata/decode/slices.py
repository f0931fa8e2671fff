"""Decoding a slice of a row group into references (orchestration; the kernels are in `fsdata.kernels.index`)."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.bind import FieldBinding
from fsdata.catalog.roles import WantedField
from fsdata.decode.arrow import widen
from fsdata.decode.arrow.record_batches import RowRange, record_batches, unnamed
from fsdata.decode.pages.column import Column
from fsdata.decode.pages.columns import PageDecoder
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.slice_plan import SlicePlan
from fsdata.errors import DataError
from fsdata.kernels import index

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(slots=True)
class Slice:
    """Rows of a row group by reference; lists are not aligned yet (see `fsdata.kernels.index.align_groups`).

    Letters: F fields, N rows, D dense columns.

    Attributes:
        address, length: int64 [F, N].
        drop: uint8 [N], rows that a null policy leaves out.
        dense: float32 [N, D].
        arrays: time and keys, int64 [N], and where they are null, bool [N].
        start: first row of the slice in its row group.
        rows: int64 [N], row in the row group of every row; None if they are start, start + 1, ...
        owners: keeps the addresses valid.
    """

    address: np.ndarray
    length: np.ndarray
    drop: np.ndarray
    dense: np.ndarray
    arrays: dict[WantedField, tuple[np.ndarray, np.ndarray]]
    start: int
    rows: np.ndarray | None = None
    owners: list[Any] = field(default_factory=list)

    @property
    def references(self) -> index.References:
        return index.References(self.address, self.length, self.drop)

    def row(self, n: int) -> int:
        """The row of the row group that row n of the table is."""
        return int(self.rows[n]) if self.rows is not None else self.start + n

    def keep(self, some: slice | np.ndarray) -> None:
        """Leave out all rows but `some`."""
        self.address = np.ascontiguousarray(self.address[:, some])
        self.length = np.ascontiguousarray(self.length[:, some])
        self.drop, self.dense = self.drop[some], self.dense[some]
        self.arrays = {field: (values[some], null[some]) for field, (values, null) in self.arrays.items()}
        self.rows = None if self.rows is None else self.rows[some]


def decode(
    file: pq.ParquetFile, wanted: RowRange, plan: SlicePlan, pool: Pool | None, pages: PageDecoder | None, source: Any
) -> Slice:
    """Decode rows of a row group.

    Args:
        pool: copy the values there, for rows that stay long; None leaves them where Arrow has decoded them.
        pages: decodes what it can from the bytes of `source`, which is what `file` reads from; None leaves all to
            pyarrow.

    Raises:
        DataError: a null, a non-finite float or an id outside int64 that the field's policy forbids.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    row_group = file.metadata.row_group(wanted.group)
    rows = row_group.num_rows
    if wanted.stop > rows:
        raise pa.ArrowInvalid(f"{rows} rows where {wanted.stop} or more are known")
    forms = {} if pages is None else pages.forms(file, plan.stored, wanted.schema)
    if pages is None or not forms:
        return _by_pyarrow(file, wanted, plan, pool, frozenset()).finish()
    needed: range | np.ndarray = range(rows) if wanted.to_end else range(wanted.start, wanted.stop)
    served, builder = frozenset(each.field for each in forms), None
    if plan.batches.condition is not None and not wanted.to_end:
        builder = _by_pyarrow(file, wanted, plan, pool, served)
        needed = builder.rows
    if not len(needed):
        return _SliceBuilder(plan, wanted, pool).finish()
    columns = pages.columns(row_group, source, needed, forms, wanted.indexes)
    if builder is None or columns.keys() != served:
        builder = _by_pyarrow(file, wanted, plan, pool, frozenset(columns))
    builder.add_columns(columns, plan)
    return builder.finish()


def _by_pyarrow(
    file: pq.ParquetFile, wanted: RowRange, plan: SlicePlan, pool: Pool | None, without: frozenset[WantedField]
) -> "_SliceBuilder":
    """The rows that the filter keeps, with all fields but those in `without`."""
    rest = plan.without(without) if without else plan
    builder = _SliceBuilder(rest, wanted, pool)
    if without and rest.batches.needs_none and not len(rest.fields) and not len(rest.dense):
        builder.skip(wanted.stop - wanted.start)  # no kernel for pyarrow's arrays is compiled for nothing
    elif without and rest.batches.needs_none:
        builder.add(np.arange(wanted.start, wanted.stop), unnamed([], wanted.stop - wanted.start))
    else:
        for rows, batch in record_batches(file, wanted, rest.batches):
            builder.add(rows, batch)
    return builder


def _constant(binding: FieldBinding, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A time or key as all rows have it, where it is no column: int64 [rows], and whether it is null."""
    null = binding.origin == "partition" and binding.value is None
    return np.full(rows, int(binding.value or 0)), np.full(rows, null)


class _SliceBuilder:
    """Adds record batches one after another to a table of known size."""

    def __init__(self, plan: SlicePlan, wanted: RowRange, pool: Pool | None) -> None:
        self._plan = plan
        self._where = wanted.where
        self._pool = pool
        self._added = 0
        self._fault = np.zeros(1, index.FAULT)
        self._refill = np.zeros(len(plan.fields), np.uint8)
        rows = wanted.stop - wanted.start
        shape, width = (len(plan.layout.fields), rows), len(plan.layout.dense)
        self._table = Slice(
            address=np.empty(shape, np.int64),
            length=np.empty(shape, np.int64),
            drop=np.full(rows, plan.drops_all, np.uint8),
            dense=np.frombuffer(pa.allocate_buffer(4 * rows * width), np.float32).reshape(rows, width),
            arrays={each.field: _constant(each, rows) for each, _ in plan.arrays},
            start=wanted.start,
            rows=None if plan.batches.condition is None else np.empty(rows, np.int64),
            owners=[plan.defaults],
        )

    @property
    def rows(self) -> np.ndarray:
        """int64 [n], numbers in the row group of all rows added."""
        table, count = self._table, self._added
        return np.arange(table.start, table.start + count) if table.rows is None else table.rows[:count]

    def add(self, rows: np.ndarray, batch: pa.RecordBatch) -> None:
        """`rows`: int64 [n], numbers in the row group of the n rows of `batch`."""
        table, here = self._table, slice(self._added, self._added + len(rows))
        if table.rows is not None:
            table.rows[here] = rows
        self._index(batch)
        if self._refill.any():
            batch = self._filled(batch)
            self._index(batch)
        if len(self._plan.nested):
            index.cut_nested(self._plan.nested, self._added, len(rows), table.references)
        for binding, column in self._plan.arrays:
            if column >= 0:
                values, null = table.arrays[binding.field]
                values[here], null[here] = widen.int64_values(batch.column(column))
        if self._pool is None:
            table.owners.append(batch)
        else:
            self._pack(len(rows), self._pool)
        self._added += len(rows)

    def skip(self, rows: int) -> None:
        """Add rows that have no fields but those of `add_columns`."""
        self._added += rows

    def add_columns(self, columns: Mapping[WantedField, Column], plan: SlicePlan) -> None:
        """What `plan` has besides the fields of the batches, for the rows of all batches added."""
        table, count = self._table, self._added
        rows = self.rows
        table.owners += [plan.defaults, *(column.owner for column in columns.values())]
        for line, binding in enumerate(plan.bindings):
            column = columns.get(binding.field)
            if column is not None:
                record = plan.fields[line : line + 1]
                index.index_column(
                    column.base, column.first, column.length, rows, record, 0, table.references, self._fault
                )
                self._check((binding,))
        for line, binding in enumerate(plan.dense_bindings):
            column = columns.get(binding.field)
            if column is not None:
                record = plan.dense[line : line + 1]
                index.fill_column(
                    column.values, column.first, column.length, rows, record, 0, table.dense, table.drop, self._fault
                )
                self._check((binding,))
        for binding, _ in plan.arrays:
            column = columns.get(binding.field)
            if column is not None:
                assert column.values is not None
                values = np.zeros(len(table.drop), np.int64)
                if len(column.values):
                    values[:count] = column.values.take(column.first[rows], mode="clip")
                table.arrays[binding.field] = values, np.append(column.length[rows] < 0, values[count:] == 1)

    def finish(self) -> Slice:
        """The table of all batches added."""
        if self._added < len(self._table.drop):
            self._table.keep(slice(self._added))
        return self._table

    def _index(self, batch: pa.RecordBatch) -> None:
        plan, table, fault = self._plan, self._table, self._fault
        capsules = batch.__arrow_c_array__()  # released with the capsules; the buffers live as long as the batch
        pointer = _pointer_of(capsules[1], b"arrow_array")
        rows = batch.num_rows
        index.index_batch(pointer, rows, plan.fields, self._added, table.references, self._refill, fault)
        self._check(plan.bindings)
        if len(plan.dense):
            index.fill_dense(pointer, rows, plan.dense, self._added, table.dense, table.drop, fault)
            self._check(plan.dense_bindings)

    def _check(self, bindings: tuple[FieldBinding, ...]) -> None:
        code, line, row, detail = self._fault[0].item()
        if code == index.OK:
            return
        if code == index.NULL_ELEMENT:
            what = f"null at {self._place(line, row, detail)}"
        elif code == index.NOT_FINITE:
            what = "NaN or infinite" + (f" at position {detail} of the list" if detail else "")
        else:
            what = "null"
        name = bindings[line].field.name
        raise DataError(
            f"{self._where}, row {self._table.row(row)}: {name} is {what}. Give "
            f"ParquetSource(defaults={{{name!r}: ...}}) or nulls={{{name!r}: 'drop'}}"
        )

    def _place(self, line: int, row: int, detail: int) -> str:
        """Where an element of a list stands; the counts of a nested list come one line before its ids."""
        fields, table = self._plan.fields, self._table
        if self._plan.layout.fields[fields[line]["slot"]].kind != "nested_ids":
            return f"position {detail} of the list"
        slot = fields[line - 1]["slot"]
        counts = (ctypes.c_int64 * int(table.length[slot, row])).from_address(int(table.address[slot, row]))
        stops = np.cumsum(counts)
        event = int(np.searchsorted(stops, detail, side="right"))
        return f"position {detail - stops[event] + counts[event]} of the ids of event {event}"

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with defaults in place of null and non-finite elements."""
        arrays = list(batch.columns)
        for line in np.flatnonzero(self._refill).tolist():
            column = self._plan.fields[line]["column"]
            default = self._plan.bindings[line].value or 0
            assert not isinstance(default, str)  # the elements of a text are never null
            arrays[column] = widen.fill_elements(arrays[column], default)
        self._refill[:] = 0
        return unnamed(arrays, batch.num_rows)

    def _pack(self, rows: int, pool: Pool) -> None:
        """Copy what the batch holds into a pooled buffer, so that Arrow can decode the next one into hot memory."""
        table, fields = self._table.references, self._plan.packed
        size = index.packed_bytes(fields, table, self._added, rows)
        if size:
            lease = pool.take(size)
            index.pack_rows(fields, table, self._added, rows, lease.address)
            self._table.owners.append(lease)
