"""A schema to begin with, guessed from the columns of a file. Run by `Schema.infer`."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fsdata.catalog.arrow_types import is_list, objection, plain
from fsdata.catalog.footers import open_file
from fsdata.catalog.listing.find_files import discover
from fsdata.errors import SchemaError
from fsdata.schema import Field, FieldKind, Schema, Sequence

_LOG = logging.getLogger("fsdata")
_LONG = "uih"
_ROWS = 4096


def infer_schema(path: str | Path, filesystem: Any) -> Schema:
    """See `Schema.infer`. Reads rows of the first file that has some."""
    file, rows = _first_rows(path, filesystem)
    roles: dict[str, list[str]] = {}
    lists: dict[bytes, dict[str, list[str]]] = {}  # by the lengths of all rows
    size: dict[bytes, float] = {}
    for name in rows.schema.names:
        column = rows.column(name)
        role = _role(name, plain(column.type))
        if role is None:
            _LOG.warning("Schema.infer: %s has no place in a schema: it is %s [%s]", name, column.type, file)
        elif not is_list(plain(column.type)):
            roles.setdefault(role, []).append(name)
        else:
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            lists.setdefault(lengths.tobytes(), {}).setdefault(role, []).append(name)
            size[lengths.tobytes()] = float(lengths.mean())
    times = roles.pop("time", [])
    sequences = tuple(_sequences(sorted(lists.items(), key=lambda item: -size[item[0]])))
    if not sequences and not roles:
        raise SchemaError(f"{file} has no column that a sample can be made of: {', '.join(rows.schema.names)}")
    return Schema(sequences=sequences, time=times[0] if times else None, **_tuples(roles))


def _sequences(groups: list[tuple[bytes, dict[str, list[str]]]]) -> Iterator[Sequence]:
    """The longest lists first. Events are counted along ids or floats, so that lists of lists alone are left out."""
    name = _LONG
    for _, roles in groups:
        if not roles.keys() & {"fields", "floats"}:
            _LOG.warning("Schema.infer: %s: no list of single values is as long", ", ".join(roles["nested"]))
            continue
        first = (roles.get("fields") or roles["floats"])[0]
        yield Sequence(name or f"{first} list", **_tuples(roles))
        name = ""


def _tuples(roles: dict[str, list[str]]) -> dict[str, Any]:
    return {role: tuple(names) for role, names in roles.items()}


_KINDS: dict[bool, dict[str, FieldKind]] = {  # of lists or not: the first that takes a type has it
    False: {"context": "context", "dense": "dense", "passthrough": "passthrough"},
    True: {"fields": "ids", "floats": "floats", "nested": "nested"},
}


def _role(name: str, kind: pa.DataType) -> str | None:
    """Of a column in `Schema`, or of a list in its `Sequence`."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_boolean(kind):
        return "labels"
    if pa.types.is_timestamp(kind):
        return "time"
    wanted = _KINDS[is_list(kind)].items()
    return next((role for role, of in wanted if objection(Field(name, of), kind) is None), None)


def _first_rows(path: str | Path, filesystem: Any) -> tuple[str, pa.RecordBatch]:
    for file in discover((str(path),), filesystem):
        with open_file(file) as handle:
            for batch in pq.ParquetFile(handle).iter_batches(_ROWS, use_threads=False):
                if batch.num_rows:
                    return file.name, batch
    raise SchemaError(f"{path}: no file has a row to look at")
