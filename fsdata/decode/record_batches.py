"""Record batches of a row group: decoded, filtered, and of the types that the kernels read.

A row group is decoded in batches whose widest column has a few MiB: Arrow then reuses the pages it has just given back,
where one table per row group would touch fresh memory for every column.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.bind import FieldBinding, partition_column
from fsdata.decode import widen
from fsdata.errors import DataError, SchemaError
from fsdata.sources.expressions import expressions
from fsdata.sources.expressions.expressions import Expression

_BATCH_BYTES = 3 << 20
_MIN_ROWS = 512
_MAX_ROWS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows [start, stop) of a row group.

    Attributes:
        group: position of the row group in its file.
        to_end: decode to the end of the row group even if `stop` is before it, so that damage is found or not
            whatever part of the group is asked for.
        wide: see `wide_columns`.
        where: source, file and row group, for messages.
    """

    group: int
    start: int
    stop: int
    to_end: bool
    wide: Sequence[int]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How record batches of one kind of file become those that the kernels read.

    Attributes:
        read: columns to decode, in the file's order.
        condition: the filter; None keeps all rows.
        columns: the fields that the columns of a finished batch hold, a nested field in two of them (counts, ids); None
            if it is the decoded batch as it is.
        expressions: field -> the expression that makes it.
        partitions: what the file's `key=value` folders say.
    """

    read: tuple[str, ...]
    condition: Expression | None
    columns: tuple[FieldBinding, ...] | None
    expressions: Mapping[str, Expression]
    partitions: Mapping[str, int | str | None]


def wide_columns(metadata: pq.FileMetaData, read: Sequence[str]) -> tuple[int, ...]:
    """Leaf columns of those in `read` that may hold more than one number per row."""
    leaves = [(leaf, metadata.schema.column(leaf)) for leaf in range(metadata.num_columns)]
    return tuple(
        leaf
        for leaf, column in leaves
        if column.path.split(".")[0] in read
        and (column.max_repetition_level > 0 or column.physical_type.endswith("BYTE_ARRAY"))
    )


def batch_rows(row_group: pq.RowGroupMetaData, wide: Sequence[int]) -> int:
    """Rows whose widest column has about 3 MiB, a power of two.

    Larger batches touch fresh memory where smaller ones reuse what Arrow has just given back; smaller ones pay too
    often for every column. Both cost a tenth or more of the decoding.
    """
    widest = 8 * row_group.num_rows
    for leaf in wide:
        chunk = row_group.column(leaf)
        widest = max(widest, 8 * chunk.num_values, chunk.total_uncompressed_size)
    rows = min(max(_BATCH_BYTES * row_group.num_rows // widest, _MIN_ROWS), _MAX_ROWS)
    return 1 << (rows.bit_length() - 1)


def record_batches(
    file: pq.ParquetFile, wanted: RowRange, plan: BatchPlan
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """(int64 [n], their numbers in the row group; n rows that the filter keeps), n > 0, until all rows were read.

    Raises:
        DataError: an id outside int64, or an expression that fails.
        pa.ArrowException, OSError: the row group cannot be decoded.
    """
    for first, batch in _decoded(file, wanted, plan.read):
        rows = np.arange(first, first + batch.num_rows)
        if plan.condition is not None:
            mask = _evaluate([(plan.condition, pa.bool_())], batch, rows, plan, wanted.where)[0]
            rows = rows[widen.bool_mask(mask)]
            if len(rows) < batch.num_rows:
                batch = _without_views(batch).filter(mask)
            if len(rows) == 0:
                continue
        yield rows, batch if plan.columns is None else _converted(plan.columns, batch, rows, plan, wanted.where)


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with text that Arrow can filter."""
    names, arrays = batch.schema.names, [widen.without_views(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names)


def unnamed(arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch of `arrays`; without any, one that still says how many rows there are."""
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _decoded(file: pq.ParquetFile, wanted: RowRange, columns: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, batch) of everything inside [start, stop), cut to it."""
    start, stop, begin = wanted.start, wanted.stop, 0
    size = batch_rows(file.metadata.row_group(wanted.group), wanted.wide)
    for batch in file.iter_batches(size, row_groups=[wanted.group], columns=list(columns), use_threads=False):
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
    columns: tuple[FieldBinding, ...], batch: pa.RecordBatch, rows: np.ndarray, plan: BatchPlan, where: str
) -> pa.RecordBatch:
    made = [(plan.expressions[each.field.name], each.type) for each in columns if each.origin == "expression"]
    computed = iter(_evaluate(made, batch, rows, plan, where) if made else [])
    arrays = []
    for binding in columns:
        array = next(computed) if binding.origin == "expression" else batch.column(binding.column)
        try:
            if binding.field.shape == "nested":
                counts, array = widen.nested_parts(array)
                arrays.append(counts)
            if binding.is_text and binding.policy == "default":
                array = widen.fill_texts(array, str(binding.value))
            arrays.append(widen.convert(array, binding.field.number))
        except widen.RowError as error:
            raise DataError(f"{where}, row {rows[error.row]}: {binding.field.name}: {error}") from error
    return unnamed(arrays, batch.num_rows)


def _evaluate(
    made: Sequence[tuple[Expression, Any]], batch: pa.RecordBatch, rows: np.ndarray, plan: BatchPlan, where: str
) -> list[pa.Array]:
    """The results of expressions, each with the type that it must have."""
    exprs, types = [each for each, _ in made], [each for _, each in made]
    names = list(dict.fromkeys(name for expression in exprs for name in expression.columns))
    arrays = [
        partition_column(plan.partitions[name], batch.num_rows) if name in plan.partitions else batch.column(name)
        for name in names
    ]
    try:
        return expressions.evaluate(exprs, types, pa.RecordBatch.from_arrays(arrays, names))
    except (SchemaError, DataError) as error:
        raise DataError(f"{where}, row {rows[0]} or one of the {len(rows) - 1} after it: {error}") from error
