"""Polars expressions over a file's columns. The only file of the package that knows polars.

Polars is imported on first use: a source without expressions does not pay for it.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fsdata.errors import DataError, SchemaError

if TYPE_CHECKING:
    import polars as pl


def check(value: Any, where: str) -> None:
    """Raise SchemaError unless `value` is an expression that works row by row.

    A file is decoded in small batches, so an expression that looks at other rows (a mean, a shift, a rank) would
    depend on where batches end.
    """
    import polars as pl

    if not isinstance(value, pl.Expr):
        raise SchemaError(f"{where} takes a column name or a polars expression, got {value!r}")
    if value.meta.has_multiple_outputs() or not value.meta.root_names():
        raise SchemaError(f"{where} must name its columns and give one output; for a constant use defaults")
    if not value.meta.is_row_separable():
        raise SchemaError(
            f"{where} must work row by row, because files are decoded in batches; {value} looks at other rows"
        )


def parse(sql: str, where: str) -> "pl.Expr":
    """The expression that a SQL string describes."""
    import polars as pl

    try:
        return pl.sql_expr(sql)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{where}: not an SQL expression: {error}") from error


def column(name: str) -> "pl.Expr":
    import polars as pl

    return pl.col(name)


def roots(expression: "pl.Expr") -> tuple[str, ...]:
    """The columns that an expression reads."""
    return tuple(dict.fromkeys(expression.meta.root_names()))


def serialize(expression: "pl.Expr") -> bytes:
    return expression.meta.serialize()


def output_type(expression: "pl.Expr", schema: pa.Schema) -> pa.DataType:
    """The Arrow type of the expression's result, found by running it on no rows.

    Raises:
        SchemaError: the expression does not fit the columns' types; the message is polars' own.
    """
    return evaluate([expression], schema.empty_table().to_batches() or _no_rows(schema))[0].type


def _no_rows(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)]


def evaluate(expressions: "list[pl.Expr]", batches: list[pa.RecordBatch]) -> list[pa.Array]:
    """One array per expression, each as long as the batches together.

    Raises:
        SchemaError: polars rejects the expression.
        DataError: an expression gave another number of values than there are rows.
    """
    import polars as pl

    frame = pl.from_arrow(batches)
    assert isinstance(frame, pl.DataFrame)
    named = [expression.alias(str(index)) for index, expression in enumerate(expressions)]
    try:
        result = frame.select(named)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"expression failed: {error}") from error
    if result.height != frame.height:
        raise DataError(f"an expression gave {result.height} values for {frame.height} rows")
    table = result.to_arrow()
    return [_one(table.column(index)) for index in range(table.num_columns)]


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
