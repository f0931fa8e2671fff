"""Rows of a joined table with their keys, as arrays. Side tables, histories and dimension tables are read this way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.readers.row_reader import RowReader
from fsdata.decode.row_layout import Layout
from fsdata.errors import Faults
from fsdata.schema import Field


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedRows:
    """N rows that have a key and were not dropped, in the order of the files.

    Attributes:
        keys: int64 [N]. rows: int64 [N], row numbers in their row groups.
        values: field -> its values in the final type, row after row.
        lengths: field with lists -> int64 [N], number of values of each row, -1 for null.
        dense: float32 [N, D].
    """

    keys: np.ndarray
    rows: np.ndarray
    values: Mapping[str, np.ndarray]
    lengths: Mapping[str, np.ndarray]
    dense: np.ndarray


def keyed_rows(decoded: DecodedRows, on: str) -> KeyedRows:
    """Copy the rows that have a key. Pages and Arrow's memory, which are larger, can be released then.

    Raises:
        DataError: a null key. Where faults are noted, its row is omitted.
    """
    alive = decoded.alive
    keys, null = decoded.keys[Field(on, "join_key")]
    no_key = null[alive]
    if no_key.any():
        what, todo = f"the key {on!r} is null and can never match", "; filter such rows out"
        decoded.faults.found("key", on, decoded.rows[alive[no_key]], what, todo=todo)
        alive = alive[~no_key]
    columns = [(field, decoded.column(slot)) for slot, field in enumerate(decoded.layout.fields)]
    return KeyedRows(
        keys=keys[alive],
        rows=decoded.rows[alive],
        values={field.name: column.gathered(field.dtype, alive) for field, column in columns},
        lengths={
            field.name: np.full(len(alive), column.width) if column.length is None else column.length[alive]
            for field, column in columns
            if field.is_list
        },
        dense=decoded.dense[alive],
    )


def read_rows(reader: RowReader, groups: Iterable[RowGroup], layout: Layout, on: str) -> KeyedRows:
    """Decode row groups one after another. Damaged ones that are skipped are omitted. Raises as `keyed_rows`."""
    plans = reader.plans(layout)
    decoded = (reader.decode(plans, group) for group in groups)
    return concatenated((keyed_rows(each, on) for each in decoded if each is not None), layout)


def concatenated(parts: Iterable[KeyedRows], layout: Layout) -> KeyedRows:
    """Concatenate rows of one layout."""
    empty = np.empty(0, np.int64)
    # Numpy does not concatenate an empty list, and a table may have no rows.
    none = KeyedRows(
        keys=empty,
        rows=empty,
        values={field.name: np.empty(0, field.dtype) for field in layout.fields},
        lengths={field.name: empty for field in layout.fields if field.is_list},
        dense=np.empty((0, len(layout.dense)), np.float32),
    )
    parts = [none, *parts]
    return KeyedRows(
        keys=np.concatenate([part.keys for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        values={name: np.concatenate([part.values[name] for part in parts]) for name in none.values},
        lengths={name: np.concatenate([part.lengths[name] for part in parts]) for name in none.lengths},
        dense=np.concatenate([part.dense for part in parts]),
    )


def order_of_keys(keys: np.ndarray, faults: Faults, on: str, requirement: str) -> np.ndarray:
    """int64 [N], the order in which the keys of a whole table ascend. Each key has one row, as a row matches only one.

    requirement: end of the message.

    Raises:
        DataError: a key of two rows.
    """
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    repeated = np.unique(ascending[1:][ascending[1:] == ascending[:-1]])
    if len(repeated):
        examples = ", ".join(str(key) for key in repeated[:5].tolist()) + (", ..." if len(repeated) > 5 else "")
        what = f"{len(repeated)} values of the key {on!r} are in more than one row ({examples})"
        faults.found("key", on, None, what, todo=f"; {requirement}")
    return order
