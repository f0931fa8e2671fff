"""Folders that no row of a filter can come from, by their `key=value` names: their files are not opened."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from fsdata.catalog.bind import partition_values
from fsdata.catalog.listing.file_list import FileList
from fsdata.errors import DataError, SchemaError
from fsdata.sources.expressions import expressions
from fsdata.sources.source import ParquetSource


def pruned(files: FileList, source: ParquetSource) -> list[int]:
    """Numbers of the files without a row for which `source.filter` is true, as far as names of folders tell.

    A condition that reads anything but keys of folders tells nothing, nor does a key that `source.columns` mentions:
    then the column of that name in the files counts. One file is left, to read the schema of.
    """
    if source.condition is None:
        return []
    values = partition_values([folder.partitions for folder in files.folders])
    mentioned = {column for column in source.columns.values() if isinstance(column, str)}
    mentioned |= {name for expression in source.computed.values() for name in expression.columns}
    keep = np.ones(len(files.folders), bool)
    for condition in expressions.conjuncts(source.condition):
        if not mentioned & set(condition.columns):
            keep &= _may_be_true(condition, values)
    without = np.flatnonzero(~keep[files.folder]).tolist()
    return without[1:] if len(without) == len(files) else without


def _may_be_true(condition: expressions.Expression, values: list[dict[str, pa.Scalar]]) -> np.ndarray:
    """bool [folders]; true where a folder has not all keys that the condition reads."""
    found = np.ones(len(values), bool)
    alike: dict[tuple[pa.Scalar, ...], list[int]] = defaultdict(list)
    for number, of in enumerate(values):
        if set(condition.columns) <= set(of):
            alike[tuple(of[name] for name in condition.columns)].append(number)
    if not alike or not condition.columns:
        return found
    columns = [pa.array([each.as_py() for each in column], column[0].type) for column in zip(*alike, strict=True)]
    rows = pa.RecordBatch.from_arrays(columns, list(condition.columns))
    try:
        (answer,) = expressions.evaluate([condition], [pa.bool_()], rows)
    except (SchemaError, DataError):
        return found  # the files tell better what is wrong with it
    for numbers, true in zip(alike.values(), answer.fill_null(False).to_pylist(), strict=True):
        found[numbers] = true
    return found
