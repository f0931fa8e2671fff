"""Record batches of a row group: decoded, filtered, mapped by a function of the user, converted to kernels' types.

A row group is decoded in batches whose widest column has a few MiB: Arrow then reuses memory that it has just freed,
whereas one table per row group would touch fresh memory for every column. Without lists or texts it is decoded at once,
since its values stay where Arrow decoded them, and every batch has a fixed cost per column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import objection
from fsdata.catalog.binding.bind import Binding, difference
from fsdata.catalog.binding.column_paths import array_at
from fsdata.decode.arrow import widen
from fsdata.decode.plan import DecodePlan
from fsdata.errors import DataError, Faults, SchemaError
from fsdata.sources import expressions
from fsdata.sources.expressions import Expression

_BATCH_BYTES = 3 << 20
_MIN_ROWS = 512
_MAX_ROWS = 8192
_MAX_FLAT_ROWS = 1 << 17  # a column then has the size of a page of 1 MiB, which writers make by default

Map = Callable[[pa.RecordBatch], pa.RecordBatch]


class MapFailed(Exception):
    """Carries an error of `ParquetSource(map=...)` past the handlers that count errors as damage of the file."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def batch_rows(metadata: pq.FileMetaData, group: int, leaves: Iterable[int]) -> int:
    """Number of rows whose widest column, of those that are read, has about 3 MiB; a power of two.

    Larger batches touch fresh memory, smaller ones pay the fixed cost of a column too often. Both cost a tenth or more
    of decoding.
    """
    row_group, schema = metadata.row_group(group), metadata.schema
    widest = 8 * row_group.num_rows
    for leaf in leaves:
        column = schema.column(leaf)
        if column.max_repetition_level > 0 or column.physical_type.endswith("BYTE_ARRAY"):
            chunk = row_group.column(leaf)
            widest = max(widest, 8 * chunk.num_values, chunk.total_uncompressed_size)
    rows = min(max(_BATCH_BYTES * row_group.num_rows // widest, _MIN_ROWS), _MAX_ROWS)
    return 1 << (rows.bit_length() - 1)


def record_batches(
    file: pq.ParquetFile, group: int, rows: range, plan: DecodePlan, faults: Faults
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Finished batches, see `DecodePlan`: (int64 [n], row numbers in the row group; the batch of these rows), n > 0.

    Raises:
        DataError: an id outside int64, a failing expression, or a wrong result of `map`; see `Faults`.
        MapFailed: `map` raised an error.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    yield from finished(_decoded(file, group, rows, plan), plan, faults)


def finished(
    batches: Iterable[tuple[int, pa.RecordBatch]], plan: DecodePlan, faults: Faults
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """See `record_batches`. batches: (first row, batch of the columns `plan.read`)."""
    for first, batch in batches:
        rows = np.arange(first, first + batch.num_rows)
        if plan.typed:
            batch = _with_types(batch, plan.typed)
        if plan.condition is not None:
            results = _evaluate([(plan.condition, pa.bool_())], batch, rows, plan, faults)
            if results is None:
                continue
            (mask,) = results
            rows = rows[widen.bool_mask(mask)]
            if len(rows) < batch.num_rows:
                batch = _without_views(batch).filter(mask)
            if len(rows) == 0:
                continue
        columns = batch if plan.columns is None else _converted(plan.columns, batch, rows, plan, faults)
        if columns is not None:
            yield rows, columns


def _with_types(batch: pa.RecordBatch, typed: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    for name, kind in typed.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, widen.nulls_as(batch.column(name), kind))
    return batch


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without string views, which Arrow cannot filter."""
    names, arrays = batch.schema.names, [widen.without_views(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names)


def unnamed(arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch of `arrays`; without arrays, one that has the number of rows."""
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _decoded(file: pq.ParquetFile, group: int, rows: range, plan: DecodePlan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, batch) of the decoded rows, cut to `rows`."""
    start, stop, begin = rows.start, rows.stop, 0
    if plan.flat:
        size = min(file.metadata.row_group(group).num_rows if plan.to_end else stop, _MAX_FLAT_ROWS)
    else:
        size = batch_rows(file.metadata, group, plan.leaves)
    # By names, pyarrow would also give the column `a.b` the field `b` of a struct `a`.
    for batch in file.reader.iter_batches(size, [group], plan.leaves, use_threads=False):
        end = begin + batch.num_rows
        low, high = max(start, begin), min(stop, end)
        if low < high:
            yield low, batch if high - low == batch.num_rows else batch.slice(low - begin, high - low)
        begin = end
        if begin >= stop and not plan.to_end:
            return
    if begin < stop:
        raise pa.ArrowInvalid(f"{begin} rows where the footer says {stop} or more")


def _converted(
    columns: tuple[Binding, ...], batch: pa.RecordBatch, rows: np.ndarray, plan: DecodePlan, faults: Faults
) -> pa.RecordBatch | None:
    """The finished batch; None if an expression failed and the fault was noted."""
    computed = [(plan.expressions[each.field.name], each.type) for each in columns if each.origin == "expression"]
    results = _evaluate(computed, batch, rows, plan, faults) if computed else []
    if results is None:
        return None
    remaining = iter(results)
    raw = [
        next(remaining) if each.origin == "expression" else widen.nulls_as(array_at(batch, str(each.column)), each.type)
        for each in columns
    ]
    if plan.map is not None and columns:
        raw = _mapped(plan.map, columns, raw, f"row {rows[0]} and the {len(rows) - 1} after it", faults.where)
    arrays = []
    for binding, array, native in zip(columns, raw, plan.native, strict=True):
        bad = partial(_note, faults, binding, rows)
        if binding.field.shape == "nested":
            counts, array = widen.nested_parts(array)
            arrays.append(counts)
        if binding.is_text and binding.policy == "default":
            array = widen.fill_texts(array, str(binding.value))
        if not native or plan.map is not None:
            array = widen.convert(array, binding.field.number, bad)
        arrays.append(array if plan.map is None else widen.with_wide_offsets(array))
    return unnamed(arrays, batch.num_rows)


def _note(faults: Faults, binding: Binding, rows: np.ndarray, kind: str, some: np.ndarray, what: str) -> None:
    """Raise or note a fault in `some` of these rows; see `widen.Bad`."""
    name, todo = binding.field.name, ""
    if kind == "range" and binding.field.number != "time":
        todo = f". Keep the bits of a hash as int64: {_signed(binding)}"
    faults.found(kind, name, rows[some], f"{name}: {what}", todo=todo)


def _signed(binding: Binding) -> str:
    """An expression that reinterprets uint64 as int64, for messages."""
    name, signed = binding.field.name, "reinterpret(signed=True)"
    if binding.origin == "expression":
        return f"use .{signed} in the expression of {name!r}"
    if binding.is_list:
        signed = f"list.eval(pl.element().{signed})"
    if binding.field.shape == "nested":
        signed = f"list.eval(pl.element().{signed})"
    return f"columns={{{name!r}: pl.col({binding.column!r}).{signed}}}"


def _mapped(
    function: Map, columns: Sequence[Binding], arrays: Sequence[pa.Array], rows: str, where: str
) -> list[pa.Array]:
    """The arrays of `columns` after `function`, which receives one column per field, and at least one row.

    Args:
        rows: description of the rows, for messages. where: source, file and row group.

    Raises:
        MapFailed: the function raised an error.
        DataError: it returned other columns, another number of rows, or types that do not fit the fields.
    """
    names = [binding.field.name for binding in columns]
    given = pa.RecordBatch.from_pydict(dict(zip(names, arrays, strict=True)))
    made = _called(function, given, rows, where)
    reason = _map_objection(made, given)
    if reason is not None:
        raise DataError(f"{where}: map=... {reason}")
    found = []
    for binding in columns:
        array = made.column(binding.field.name)
        if pa.types.is_null(array.type):
            array = pa.nulls(len(array), binding.type)
        if array.type != binding.type:
            _check_map_type(binding, array.type, where)
        found.append(array)
    return found


def _check_map_type(binding: Binding, given: pa.DataType, where: str) -> None:
    reason = objection(binding.field, given)
    if reason is None:
        unlike = difference(replace(binding, type=given), binding)
        reason = unlike and f"is {given} where it got {binding.type}: {unlike}"
    if reason is not None:
        raise DataError(f"{where}: map=... gave {binding.field.name!r}, which {reason}")


def _called(function: Map, given: pa.RecordBatch, rows: str, where: str) -> pa.RecordBatch:
    try:
        return function(given)
    except Exception as error:
        failed = error
        if isinstance(error, StopIteration):  # inside generators it would end the row group silently
            failed = RuntimeError("map raised StopIteration")
            failed.__cause__ = error
        failed.add_note(f"map=... failed with {rows} of {where}")
        raise MapFailed(failed) from error


def _map_objection(made: object, given: pa.RecordBatch) -> str | None:
    if not isinstance(made, pa.RecordBatch):
        return f"gave a {type(made).__name__}, where a pyarrow.RecordBatch is needed"
    if sorted(made.schema.names) != sorted(given.schema.names):
        return f"gave the columns {made.schema.names}, where those that it got are needed: {given.schema.names}"
    if made.num_rows != given.num_rows:
        return (
            f"gave {made.num_rows} rows for {given.num_rows}: it must give one for each, in their order. To leave a "
            "row out, make a value of it null under nulls={...: 'drop'}"
        )
    return None


def _evaluate(
    wanted: Sequence[tuple[Expression, Any]], batch: pa.RecordBatch, rows: np.ndarray, plan: DecodePlan, faults: Faults
) -> list[pa.Array] | None:
    """Results of (expression, type); None if one failed and the fault was noted."""
    exprs, types = [each for each, _ in wanted], [each for _, each in wanted]
    names = list(dict.fromkeys(name for expression in exprs for name in expression.columns))
    arrays = [
        pa.repeat(plan.kind.partitions[name], batch.num_rows) if name in plan.kind.partitions else array_at(batch, name)
        for name in names
    ]
    try:
        return expressions.evaluate(exprs, types, pa.RecordBatch.from_arrays(arrays, names))
    except (SchemaError, DataError) as error:
        faults.found("expression", None, rows, str(error), one_of=True)
        return None
