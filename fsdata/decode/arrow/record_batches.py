"""Record batches of a row group: decoded, filtered, mapped by a function of the user, of the types that kernels read.

A row group is decoded in batches whose widest column has a few MiB: Arrow then reuses the pages it has just given back,
where one table per row group would touch fresh memory for every column. Without lists or texts it is decoded at once:
its values stay where Arrow has decoded them, and every batch costs Arrow something for every column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.arrow_types import objection
from fsdata.catalog.binding.bind import Binding, difference
from fsdata.catalog.binding.column_paths import array_at
from fsdata.decode.arrow import widen
from fsdata.errors import DataError, Faults, SchemaError
from fsdata.sources import expressions
from fsdata.sources.expressions import Expression

_BATCH_BYTES = 3 << 20
_MIN_ROWS = 512
_MAX_ROWS = 8192
_MAX_FLAT_ROWS = 1 << 17  # a column then has the size of a page of 1 MiB, which writers make by default

Map = Callable[[pa.RecordBatch], pa.RecordBatch]
Paths = tuple[tuple[str, ...], ...]
"""What is read of a file: the names that lead to each column or field of structs, see `names_at`."""


class MapFailed(Exception):
    """Carries what `ParquetSource(map=...)` raised past those who would take it for damage of the file."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """Rows [start, stop) of a row group.

    Attributes:
        group: position of the row group in its file.
        to_end: decode to the end of the row group even if `stop` is before it, so that damage is found or not
            whatever part of the group is asked for.
        schema: a number that files with the same schema share.
        faults: what becomes of rows that contradict the schema.
        leaves: gives the leaf columns to read for paths, see `leaves_at`.
    """

    group: int
    start: int
    stop: int
    to_end: bool
    schema: int
    faults: Faults
    leaves: Callable[[Paths], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowPlan:
    """How record batches of one kind of file become those that the kernels read.

    Attributes:
        read: columns to decode, in the file's order; paths: what is needed of them.
        needs_none: a column that nothing needs but the number of its rows.
        flat: all of them hold numbers, one per row.
        condition: the filter; None keeps all rows.
        columns: the fields that the columns of a finished batch hold, a nested field in two of them (counts, ids); None
            if it is the decoded batch as it is. native: whether kernels read each of them as it is.
        typed: columns that hold nothing but nulls -> the type that they have in other files.
        expressions: field -> the expression that makes it.
        partitions: what the file's `key=value` folders say.
        map: see `ParquetSource`; lists that went through it have int64 offsets.
    """

    read: tuple[str, ...]
    paths: Paths
    needs_none: bool
    flat: bool
    condition: Expression | None
    columns: tuple[Binding, ...] | None
    native: tuple[bool, ...]
    typed: Mapping[str, pa.DataType]
    expressions: Mapping[str, Expression]
    partitions: Mapping[str, int | str | None]
    map: Map | None


def batch_rows(metadata: pq.FileMetaData, group: int, leaves: Iterable[int]) -> int:
    """Rows of a row group whose widest column, of those that are read, has about 3 MiB; a power of two.

    Larger batches touch fresh memory where smaller ones reuse what Arrow has just given back; smaller ones pay too
    often for every column. Both cost a tenth or more of the decoding.
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
    file: pq.ParquetFile, wanted: GroupRows, plan: ArrowPlan
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """(int64 [n], their numbers in the row group; n rows that the filter keeps), n > 0, until all rows were read.

    Raises:
        DataError: an id outside int64, an expression that fails, or a `map` that gives something else; see `Faults`.
        MapFailed: `map` raised.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    yield from finished(_decoded(file, wanted, plan), wanted, plan)


def finished(
    batches: Iterable[tuple[int, pa.RecordBatch]], wanted: GroupRows, plan: ArrowPlan
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """See `record_batches`. batches: (first row, batch), of the columns that the plan reads."""
    for first, batch in batches:
        rows = np.arange(first, first + batch.num_rows)
        if plan.typed:
            batch = _with_types(batch, plan.typed)
        if plan.condition is not None:
            made = _evaluate([(plan.condition, pa.bool_())], batch, rows, plan, wanted.faults)
            if made is None:
                continue
            (mask,) = made
            rows = rows[widen.bool_mask(mask)]
            if len(rows) < batch.num_rows:
                batch = _without_views(batch).filter(mask)
            if len(rows) == 0:
                continue
        found = batch if plan.columns is None else _converted(plan.columns, batch, rows, plan, wanted.faults)
        if found is not None:
            yield rows, found


def _with_types(batch: pa.RecordBatch, typed: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    for name, kind in typed.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, widen.nulls_as(batch.column(name), kind))
    return batch


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with text that Arrow can filter."""
    names, arrays = batch.schema.names, [widen.without_views(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names)


def unnamed(arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch of `arrays`; without any, one that still says how many rows there are."""
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _decoded(file: pq.ParquetFile, wanted: GroupRows, plan: ArrowPlan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, batch) of everything inside [start, stop), cut to it."""
    start, stop, begin = wanted.start, wanted.stop, 0
    leaves = wanted.leaves(plan.paths)
    if plan.flat:
        size = min(file.metadata.row_group(wanted.group).num_rows if wanted.to_end else stop, _MAX_FLAT_ROWS)
    else:
        size = batch_rows(file.metadata, wanted.group, leaves)
    # By names, pyarrow would also give the column `a.b` the field `b` of a struct `a`.
    for batch in file.reader.iter_batches(size, [wanted.group], leaves, use_threads=False):
        end = begin + batch.num_rows
        low, high = max(start, begin), min(stop, end)
        if low < high:
            yield low, batch if high - low == batch.num_rows else batch.slice(low - begin, high - low)
        begin = end
        if begin >= stop and not wanted.to_end:
            return
    if begin < stop:
        raise pa.ArrowInvalid(f"{begin} rows where the footer says {stop} or more")


def _converted(
    columns: tuple[Binding, ...], batch: pa.RecordBatch, rows: np.ndarray, plan: ArrowPlan, faults: Faults
) -> pa.RecordBatch | None:
    """None if an expression fails and that is noted."""
    made = [(plan.expressions[each.field.name], each.type) for each in columns if each.origin == "expression"]
    results = _evaluate(made, batch, rows, plan, faults) if made else []
    if results is None:
        return None
    computed = iter(results)
    raw = [
        next(computed) if each.origin == "expression" else widen.nulls_as(array_at(batch, str(each.column)), each.type)
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
    """Raise or note a fault in `some` of these rows, see `widen.Bad`."""
    name, todo = binding.field.name, ""
    if kind == "range" and binding.field.number != "time":
        todo = f". Keep the bits of a hash as int64: {_signed(binding)}"
    faults.found(kind, name, rows[some], f"{name}: {what}", todo=todo)


def _signed(binding: Binding) -> str:
    """An expression that makes int64 of uint64, for messages."""
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
    """The arrays of `columns` after `function`, which gets each field once; at least one row.

    Args:
        rows: which they are, for messages; where: source, file and row group.

    Raises:
        MapFailed: the function raised.
        DataError: it gave other columns, another number of rows, or types that cannot serve the fields.
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
        if isinstance(error, StopIteration):  # as it is, it would end the reading of the row group without a word
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
    made: Sequence[tuple[Expression, Any]], batch: pa.RecordBatch, rows: np.ndarray, plan: ArrowPlan, faults: Faults
) -> list[pa.Array] | None:
    """The results of expressions, each with the type that it must have; None if one fails and that is noted."""
    exprs, types = [each for each, _ in made], [each for _, each in made]
    names = list(dict.fromkeys(name for expression in exprs for name in expression.columns))
    arrays = [
        pa.repeat(plan.partitions[name], batch.num_rows) if name in plan.partitions else array_at(batch, name)
        for name in names
    ]
    try:
        return expressions.evaluate(exprs, types, pa.RecordBatch.from_arrays(arrays, names))
    except (SchemaError, DataError) as error:
        faults.found("expression", None, rows, str(error), one_of=True)
        return None
