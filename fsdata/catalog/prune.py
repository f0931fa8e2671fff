"""Skips files and row groups that cannot match the filter, by names of folders and bounds of columns.

The conditions that the top level of a filter joins by `and` are evaluated separately. Skipping must be certain: where
anything is unknown, the answer is "may match".

Letters: G row groups.
"""

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import partition_values
from fsdata.catalog.bounds import as_columns
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import FileList
from fsdata.errors import DataError, SchemaError
from fsdata.sources import expressions
from fsdata.sources.source import ParquetSource

if TYPE_CHECKING:
    import polars as pl

_AND, _OR = ("And", "LogicalAnd"), ("Or", "LogicalOr")
_TURNED = {"Gt": "Lt", "GtEq": "LtEq", "Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq"}
_MANY = 64  # values of an `is_in` that are compared one by one; of more, only the smallest and the largest


def pruned(files: FileList, source: ParquetSource) -> list[int]:
    """Numbers of the files that cannot match `source.filter`, by the names of their folders.

    Only conditions on keys of folders count, and only keys that `source.columns` does not mention: for these the column
    of that name in the files counts. At least one file is left, as its schema is needed.
    """
    if source.condition is None:
        return []
    values = partition_values(source, [folder.partitions for folder in files.folders])
    mentioned = {column for column in source.columns.values() if isinstance(column, str)}
    mentioned |= {name for expression in source.computed.values() for name in expression.columns}
    keep = np.ones(len(files.folders), bool)
    for condition in expressions.conjuncts(source.condition):
        if not mentioned & set(condition.columns):
            keep &= _may_be_true(condition, values)
    without = np.flatnonzero(~keep[files.folder]).tolist()
    return without[1:] if len(without) == len(files) else without


def may_have_rows(catalog: Catalog, source: ParquetSource) -> np.ndarray:
    """bool [G]: whether the row group may have rows that match `source.filter`, by the bounds of its columns."""
    keep = np.ones(len(catalog.rows), bool)
    if source.condition is None or not set(source.condition.columns) & set(catalog.bounds):
        return keep
    schema_of = np.repeat(catalog.schema_of, np.diff(catalog.first))  # [G]
    for condition in expressions.conjuncts(source.condition):
        bound = None if condition.polars is None else _bound(condition.polars)
        if bound is not None:
            for number in np.unique(schema_of).tolist():
                groups = schema_of == number
                keep[groups] &= _within(bound, condition, catalog, groups, catalog.schemas[number])
    return keep


def _may_be_true(condition: expressions.Expression, values: list[dict[str, pa.Scalar]]) -> np.ndarray:
    """bool [folders]: the condition for the values of each folder; true if a folder lacks a key that it reads."""
    possible = np.ones(len(values), bool)
    # The condition is evaluated once per distinct combination of values: many folders have equal ones.
    folders_of: dict[tuple[pa.Scalar, ...], list[int]] = defaultdict(list)
    for number, of_folder in enumerate(values):
        if set(condition.columns) <= set(of_folder):
            folders_of[tuple(of_folder[name] for name in condition.columns)].append(number)
    if not folders_of or not condition.columns:
        return possible
    columns = [pa.array([key.as_py() for key in keys], keys[0].type) for keys in zip(*folders_of, strict=True)]
    rows = pa.RecordBatch.from_arrays(columns, list(condition.columns))
    try:
        (answer,) = expressions.evaluate([condition], [pa.bool_()], rows)
    except (SchemaError, DataError):
        return possible  # reading the files raises it again, with a better message
    for numbers, true in zip(folders_of.values(), answer.fill_null(False).to_pylist(), strict=True):
        possible[numbers] = true
    return possible


def _within(
    bound: "pl.Expr", condition: expressions.Expression, catalog: Catalog, groups: np.ndarray, schema: pa.Schema
) -> np.ndarray:
    """bool [groups]: `bound`, evaluated for the bounds of each row group; true where bounds are missing."""
    import polars as pl

    columns = {}
    for name in condition.columns:
        indices = schema.get_all_field_indices(name)
        cast = len(indices) == 1 and condition.types.get(name, schema.field(name).type) != schema.field(name).type
        if name not in catalog.bounds or len(indices) != 1 or cast:  # a cast may change the order: "10" < "9" as text
            return np.ones(int(groups.sum()), bool)
        low, high = as_columns(catalog.bounds[name][:, groups], schema.field(name).type)
        columns[f"low {name}"], columns[f"high {name}"] = pl.from_arrow(low), pl.from_arrow(high)
    try:
        return pl.DataFrame(columns).select(bound.fill_null(True)).to_series().to_numpy()
    except pl.exceptions.PolarsError:
        return np.ones(int(groups.sum()), bool)  # binding raises it again, with a better message


def _bound(condition: "pl.Expr") -> "pl.Expr | None":
    """An expression over columns `low NAME`, `high NAME` that is false only if `condition` is false for all values
    between them; None if there is none.

    Supports comparisons of a column with a constant, `is_between` and `is_in`, under `and` and `or`.
    """
    # polars has no public way to take an expression apart, except by its serialized form.
    document = json.loads(condition.meta.serialize(format="json"))
    if not isinstance(document, dict):
        return None
    operands = condition.meta.pop()[::-1]
    if "BinaryExpr" in document:
        return _of_binary(document["BinaryExpr"]["op"], *operands)
    if (
        "Function" in document
        and all(not operand.meta.root_names() for operand in operands[1:])
        and _is_column(operands[0])
    ):
        return _of_function(document["Function"]["function"], *operands)
    return None


def _of_binary(op: str, left: "pl.Expr", right: "pl.Expr") -> "pl.Expr | None":
    if op in _AND or op in _OR:
        of_left, of_right = _bound(left), _bound(right)
        if of_left is None or of_right is None:
            # One unknown side: an `and` is still false where the other side is, an `or` may be true anywhere.
            return (of_right if of_left is None else of_left) if op in _AND else None
        return of_left & of_right if op in _AND else of_left | of_right
    if _is_column(right):  # 5 < column is column > 5
        left, right, op = right, left, _TURNED.get(op, "")
    if not _is_column(left) or right.meta.root_names():
        return None
    low, high = _ends(left)
    comparisons = {"Gt": high > right, "GtEq": high >= right, "Lt": low < right, "LtEq": low <= right}
    return (low <= right) & (high >= right) if op == "Eq" else comparisons.get(op)


def _of_function(function: Any, column: "pl.Expr", *values: "pl.Expr") -> "pl.Expr | None":
    import polars as pl

    boolean = function.get("Boolean") if isinstance(function, dict) else None
    low, high = _ends(column)
    if isinstance(boolean, dict) and "IsBetween" in boolean and len(values) == 2:
        return (high >= values[0]) & (low <= values[1])
    if isinstance(boolean, dict) and "IsIn" in boolean and len(values) == 1:
        members = pl.select(values[0]).to_series()
        members = members.explode() if isinstance(members.dtype, pl.List | pl.Array) else members
        if boolean["IsIn"]["nulls_equal"] and members.null_count():
            return None  # true for nulls, which have no bounds
        members = members.drop_nulls().unique()
        if 0 < len(members) <= _MANY:
            return pl.any_horizontal([(low <= value) & (high >= value) for value in members])
        return (high >= members.min()) & (low <= members.max()) if len(members) else None
    return None


def _is_column(expression: "pl.Expr") -> bool:
    document = json.loads(expression.meta.serialize(format="json"))
    return isinstance(document, dict) and list(document) == ["Column"]


def _ends(column: "pl.Expr") -> "tuple[pl.Expr, pl.Expr]":
    import polars as pl

    (name,) = column.meta.root_names()
    return pl.col(f"low {name}"), pl.col(f"high {name}")
