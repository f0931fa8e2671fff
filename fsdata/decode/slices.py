"""Decoding a slice of a row group into references (orchestration; the kernels are in `fsdata.kernels.index`).

A row group is decoded in record batches whose widest column has a few MiB: Arrow then reuses the pages it has just
given back, where one table per row group would touch fresh memory for every column. Smaller batches pay for every
column of every batch.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.bind import Kind, partition_column
from fsdata.decode import widen
from fsdata.decode.field_table import Places, SlicePlan
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.slice_rows import batch_rows
from fsdata.errors import DataError, SchemaError
from fsdata.kernels import index
from fsdata.sources.expressions import expressions
from fsdata.sources.expressions.expressions import Expression

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclass(slots=True)
class Slice:
    """Rows of a row group by reference; lists are not aligned yet (see `fsdata.kernels.index.align_groups`).

    Letters: F fields, N rows, D dense columns.

    Attributes:
        address, length: int64 [F, N].
        drop: uint8 [N], rows that a null policy leaves out.
        dense: float32 [N, D].
        arrays: time and keys, int64 [N], and where they are null.
        rows: int64 [N], row in the row group of every row; None if they are start, start + 1, ...
        start: first row of the slice in its row group.
        owners: keeps the addresses valid.
    """

    address: np.ndarray
    length: np.ndarray
    drop: np.ndarray
    dense: np.ndarray
    start: int
    arrays: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    rows: np.ndarray | None = None
    owners: tuple[Any, ...] = ()

    def row(self, n: int) -> int:
        """The row of the row group that row n of the table is."""
        return int(self.rows[n]) if self.rows is not None else self.start + n


@dataclass(frozen=True, slots=True)
class Expressions:
    """What polars has to do for a source: field -> expression, and the filter."""

    of: dict[str, Expression]
    filter: Expression | None


def decode(
    file: pq.ParquetFile, row_group: int, start: int, stop: int, *,
    wide: Sequence[int], plan: SlicePlan, kind: Kind, places: Places, exprs: Expressions, whole: bool,
    pool: Pool | None, where: str,
) -> Slice:  # fmt: skip
    """Decode rows [start, stop) of a row group.

    Args:
        wide: see `fsdata.decode.slice_rows`.
        whole: decode to the end of the row group even if `stop` is before it, so that damage is found or not
            whatever part of the group is asked for.
        pool: copy the values there, for rows that stay long; None leaves them where Arrow has decoded them.
        where: source, file and row group, for messages.

    Raises:
        DataError: a null, a non-finite float or an id outside int64 that the field's policy forbids.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    builder = _Builder(plan, kind, places, exprs, pool, stop - start, start, where)
    rows = batch_rows(file.metadata.row_group(row_group), wide)
    for first, batch in _batches(file, row_group, plan.read, start, stop, rows=rows, whole=whole):
        builder.add(batch, first)
    return builder.finish()


def _batches(
    file: pq.ParquetFile, row_group: int, columns: Iterable[str], start: int, stop: int, *, rows: int, whole: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, batch) of everything inside [start, stop), cut to it."""
    begin = 0
    for batch in file.iter_batches(rows, row_groups=[row_group], columns=list(columns), use_threads=False):
        end = begin + batch.num_rows
        lo, hi = max(start, begin), min(stop, end)
        if lo < hi:
            yield lo, batch if hi - lo == batch.num_rows else batch.slice(lo - begin, hi - lo)
        begin = end
        if begin >= stop and not whole:
            return
    if begin < stop:
        raise pa.ArrowInvalid(f"{begin} rows where the footer says {stop} or more")


class _Builder:
    """Adds record batches one after another to a table of known size."""

    def __init__(
        self,
        plan: SlicePlan,
        kind: Kind,
        places: Places,
        exprs: Expressions,
        pool: Pool | None,
        rows: int,
        start: int,
        where: str,
    ) -> None:
        self._plan = plan
        self._kind = kind
        self._places = places
        self._exprs = exprs
        self._pool = pool
        self._where = where
        self._at = 0
        self._owners: list[Any] = [plan.owners]
        self._rows: list[np.ndarray] = []
        self._arrays: dict[str, list[tuple[np.ndarray, np.ndarray | None]]] = {
            want.field: [] for want, _ in plan.arrays
        }
        self._report = np.zeros(4, np.int64)
        self._refill = np.zeros(len(plan.spec), np.uint8)
        computed = [column.bound for column in plan.columns if column.name is None]
        self._computed = [exprs.of[bound.want.field] for bound in computed]
        self._computed_types = [bound.type for bound in computed]
        shape = (places.rows, rows)
        memory = pa.allocate_buffer(4 * rows * places.dense)
        dense = np.frombuffer(memory, np.float32).reshape(rows, places.dense)
        drop = np.full(rows, plan.drops_all, np.uint8)
        self._slice = Slice(np.empty(shape, np.int64), np.empty(shape, np.int64), drop, dense, start)

    def add(self, batch: pa.RecordBatch, first: int) -> None:
        """`batch`: rows first, first + 1, ... of the row group."""
        if self._exprs.filter is not None:
            batch = self._filter(batch, first)
            if batch.num_rows == 0:
                return
        if not self._plan.direct:
            batch = self._convert(batch)
        self._index(batch)
        if self._refill.any():
            batch = self._fill(batch)
            self._index(batch)
        for want, column in self._plan.arrays:
            self._arrays[want.field].append(self._array(batch, want.field, column))
        if self._pool is None:
            self._owners.append(batch)
        else:
            self._pack(batch.num_rows, self._pool)
        self._at += batch.num_rows

    def finish(self) -> Slice:
        """The table of all batches added."""
        table = self._slice
        if self._exprs.filter is not None:
            table.rows = np.concatenate(self._rows) if self._rows else np.empty(0, np.int64)
            table.address = np.ascontiguousarray(table.address[:, : self._at])
            table.length = np.ascontiguousarray(table.length[:, : self._at])
            table.drop = table.drop[: self._at]
            table.dense = table.dense[: self._at]
        for name, pieces in self._arrays.items():
            values = [values for values, _ in pieces] or [np.empty(0, np.int64)]
            nulls = [np.zeros(len(values), bool) if null is None else null for values, null in pieces]
            table.arrays[name] = np.concatenate(values), np.concatenate(nulls or [np.empty(0, bool)])
        table.owners = tuple(self._owners)
        return table

    def _filter(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        assert self._exprs.filter is not None
        mask = self._evaluate([self._exprs.filter], [pa.bool_()], batch)[0]
        keep = np.flatnonzero(widen.bool_mask(mask))
        self._rows.append(first + keep)
        return batch if len(keep) == batch.num_rows else batch.filter(mask)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch that the kernels see: `plan.columns`, all of native types."""
        computed = self._evaluate(self._computed, self._computed_types, batch) if self._computed else []
        arrays = []
        for column in self._plan.columns:
            array = computed[column.expression] if column.name is None else batch.column(column.name)
            try:
                arrays.append(array if column.native else widen.convert(array, column.bound.want.number))
            except widen.OutsideInt64 as error:
                raise DataError(f"{self._place(self._at + error.row)}: {column.bound.want.field}: {error}") from error
        return _anonymous(arrays, batch.num_rows)

    def _evaluate(self, exprs: list[Expression], kinds: list[Any], batch: pa.RecordBatch) -> list[pa.Array]:
        names = list(dict.fromkeys(name for expression in exprs for name in expression.columns))
        arrays = [
            partition_column(self._kind.partitions[name], batch.num_rows)
            if name in self._kind.partitions
            else batch.column(name)
            for name in names
        ]
        try:
            return expressions.evaluate(exprs, kinds, pa.RecordBatch.from_arrays(arrays, names))
        except (SchemaError, DataError) as error:
            raise DataError(f"{self._place(self._at)} or one of the {batch.num_rows - 1} after it: {error}") from error

    def _index(self, batch: pa.RecordBatch) -> None:
        plan, table = self._plan, self._slice
        capsules = batch.__arrow_c_array__()  # released with the capsules; the buffers live as long as the batch
        pointer = _pointer_of(capsules[1], b"arrow_array")
        rows = batch.num_rows
        index.index_batch(
            pointer, rows, plan.spec, plan.fallback, self._at,
            table.address, table.length, table.drop, self._refill, self._report,
        )  # fmt: skip
        if self._report[0] != index.OK:
            self._fail(plan.spec_fields)
        if len(plan.dense_spec):
            index.fill_dense(
                pointer, rows, plan.dense_spec, plan.dense_default, self._at, table.dense, table.drop, self._report
            )
            if self._report[0] != index.OK:
                self._fail(plan.dense_fields)

    def _pack(self, rows: int, pool: Pool) -> None:
        """Copy what the batch holds into a pooled buffer, so that Arrow can decode the next one into hot memory."""
        table, places, fields = self._slice, self._places, self._plan.packed
        size = index.packed_bytes(table.length, places.itemsize, fields, places.limit, table.drop, self._at, rows)
        if size == 0:
            return
        lease = pool.take(size)
        index.pack_rows(
            table.address, table.length, places.itemsize, fields, places.limit, places.keep_last, table.drop, self._at,
            rows, lease.address,
        )  # fmt: skip
        self._owners.append(lease)

    def _fail(self, fields: tuple[str, ...]) -> None:
        code, field, row, detail = self._report.tolist()
        what = {
            index.NULL: "null",
            index.NULL_ELEMENT: f"null at position {detail} of the list",
            index.NOT_FINITE: "NaN or infinite" + (f" at position {detail} of the list" if detail else ""),
        }[code]
        name = fields[field]
        raise DataError(
            f"{self._place(row)}: {name} is {what}. Give ParquetSource(defaults={{{name!r}: ...}}) or "
            f"nulls={{{name!r}: 'drop'}}"
        )

    def _fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = list(batch.columns)
        for line in np.flatnonzero(self._refill).tolist():
            column = int(self._plan.spec[line, 1])
            arrays[column] = widen.fill_elements(arrays[column], self._plan.defaults[line])
        self._refill[:] = 0
        return _anonymous(arrays, batch.num_rows)

    def _array(self, batch: pa.RecordBatch, field: str, column: int) -> tuple[np.ndarray, np.ndarray | None]:
        if column < 0:
            return np.full(batch.num_rows, self._plan.constants[field], np.int64), None
        return widen.int64_values(batch.column(column))

    def _place(self, row: int) -> str:
        if self._rows:
            return f"{self._where}, row {int(np.concatenate(self._rows)[row])}"
        return f"{self._where}, row {self._slice.start + row}"


def _anonymous(arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
    if not arrays:  # only constants: the kernels still need to know how many rows there are
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
