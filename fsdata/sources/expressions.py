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
    try:
        several = value.meta.has_multiple_outputs()
        roots_named = bool(value.meta.root_names())
        culprit = _looks_at_other_rows(value)
        preserves = value.meta.is_length_preserving()
    except pl.exceptions.ColumnNotFoundError:  # the question needs column types here: asked again on an empty frame
        preserves = True
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{where}: {value} cannot be used: {error}") from error
    if several or not roots_named:
        raise SchemaError(f"{where} must name its columns and give one output; for a constant use defaults")
    if culprit is not None or not preserves:
        raise SchemaError(
            f"{where} must give one value per row from that row alone, because files are decoded in batches; "
            f"{culprit if culprit is not None else value} does not"
        )


def _looks_at_other_rows(expression: "pl.Expr") -> "pl.Expr | None":
    """The innermost part of an expression that mixes rows. Polars answers for one node at a time."""
    import polars as pl

    if not expression.meta.root_names():  # literals, and what is applied inside a list
        return None
    for part in expression.meta.pop():
        culprit = _looks_at_other_rows(part)
        if culprit is not None:
            return culprit
    try:
        return None if expression.meta.is_row_separable() else expression
    except pl.exceptions.ColumnNotFoundError:
        return None


def parse(sql: str, where: str) -> "pl.Expr":
    """The expression that a SQL string describes."""
    import polars as pl

    try:
        return pl.sql_expr(sql)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{where}: not an SQL expression: {error}") from error


def hashed(column: str, buckets: int, *, is_list: bool) -> "pl.Expr":
    """Ids in [0, buckets) from a column of texts, or of lists of texts."""
    import polars as pl

    one = (pl.element() if is_list else pl.col(column)).hash(seed=0) % buckets
    return pl.col(column).list.eval(one) if is_list else one


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
    return evaluate([expression], schema.empty_table())[0].type


def evaluate(expressions: "list[pl.Expr]", rows: pa.Table | pa.RecordBatch) -> list[pa.Array]:
    """One array per expression, each as long as `rows`.

    Raises:
        SchemaError: polars rejects the expression.
        DataError: an expression gave another number of values than there are rows.
    """
    import polars as pl

    named = [expression.alias(str(index)) for index, expression in enumerate(expressions)]
    try:
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        result = frame.select(named)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"expression failed: {error}") from error
    if result.height != frame.height:
        raise DataError(f"an expression gave {result.height} values for {frame.height} rows")
    table = result.to_arrow()
    return [_one(table.column(index)) for index in range(table.num_columns)]


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
