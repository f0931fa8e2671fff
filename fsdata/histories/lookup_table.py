"""Dimension tables: read once per host. Ids become values when they are copied to a batch.

Letters: M rows of the table, S slots of a hash table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import check_default
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import Counted, check_key
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.block import Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.keyed_rows import order_of_keys, read_rows
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.decode.row_layout import Layout
from fsdata.errors import SchemaError
from fsdata.histories.history_table import shared_name
from fsdata.histories.kernels import lookups
from fsdata.histories.lookup import Lookup
from fsdata.histories.resolver import TableResolver
from fsdata.schema import Field, Schema, fields_of

_IDS, _ROWS, _FORM = "ids", "rows", "form"
_SPARSE = 8  # ids may span so many values per row; beyond that an array by id takes more memory than a hash table
_VERSION = 3  # of the arrays that processes share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupTable(Attached):
    """The dimension table of one `Lookup`.

    Attributes:
        shared: its arrays. tables: field -> input of the kernels, see `fsdata.histories.kernels.lookups`.
        floats: fields that are float32.
    """

    join: Lookup
    shared: SharedArrays
    tables: Mapping[str, np.ndarray]
    floats: frozenset[str]

    @property
    def may_drop(self) -> bool:
        """False: ids without a row have a default."""
        return False

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        check_key(self.join.on, ids.get(self.join.on), self.counted.get(self.join.on))

    def is_float(self, name: str) -> bool:
        """Whether a field is float32, and not int64."""
        return name in self.floats

    def over(self, ids: Column, name: str) -> Column:
        """The column of a field, looked up by a column of ids."""
        pools = ids.resolver.pools if isinstance(ids.resolver, TableResolver) else None
        resolver = TableResolver(pools=pools, lookup=self.tables[name])
        return replace(ids, resolver=resolver, values=None, bytes=0, owners=(*ids.owners, self.shared))


class Lookups(Stage):
    """The dimension tables of one source."""

    turn = 4

    def __init__(self, tables: Sequence[LookupTable]) -> None:
        self._tables = tables

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Add the ids in place of the values: lists are aligned by their lengths, which are the same."""
        for slot, ids, _, _ in self._fields(decoded):
            decoded.columns.setdefault(slot, ids)

    def finish(self, decoded: DecodedRows) -> None:
        for slot, ids, table, name in self._fields(decoded):
            decoded.columns[slot] = table.over(ids, name)

    def _fields(self, decoded: DecodedRows) -> Iterator[tuple[int, Column, LookupTable, str]]:
        """(slot, column of its ids, table, name) of every field that is looked up."""
        slots = decoded.layout.slots
        for table in self._tables:
            for name in table.join.fields:
                if name in slots:
                    yield slots[name], decoded.column(slots[table.join.on]), table, name


def load_lookup(join: Lookup, schema: Schema, open_files: Callable[..., SourceFiles]) -> LookupTable:
    """Read a dimension table, or map the arrays of another process of this host.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`.

    Raises:
        SchemaError: the files cannot be read as these fields, or a default is not a number of its field.
        DataError: a null key, or a key of two rows.
    """
    numbers = {field.name: field.number for field in fields_of(schema)}

    def wanted(catalog: Catalog) -> list[Field]:
        columns = {name: join.source.columns.get(name, name) for name in join.fields}
        floats = {name for name, column in columns.items() if numbers.get(name, _number(catalog, column)) == "value"}
        fields = (Field(name, "label" if name in floats else "context") for name in join.fields)
        return [*fields, Field(join.on, "join_key")]

    files = open_files(wanted)
    *fields, _ = files.wanted
    try:
        for field in fields:
            try:
                check_default(field, join.default_of(field.name))
            except SchemaError as error:
                raise SchemaError(f"{files.label}, {field.name}: {error}") from error
        name = shared_name("lookup", files, _VERSION, join.form, repr(fields))
        shared = SharedArrays(name, lambda _: _arrays(files, fields, join), files.label)
    finally:
        files.close()
    floats = frozenset(field.name for field in fields if field.number == "value")
    return LookupTable(join=join, files=files, shared=shared, tables=_tables(fields, shared), floats=floats)


def _number(catalog: Catalog, column: object) -> str:
    """The kind of number, see `Field.number`, of a field that the schema does not have: only other joins use it."""
    if not isinstance(column, str):
        return "id"
    types = (type_at(schema, column) for schema in catalog.schemas)
    return "value" if any(each is not None and pa.types.is_floating(each) for each in types) else "id"


def _arrays(files: SourceFiles, fields: Sequence[Field], join: Lookup) -> Arrays:
    """The arrays that processes share.

    Returns:
        `ids`: int64 [S], the id in every slot of the hash table; of an array by id only the first id.
        `rows`: bytes of the rows by slot, values of one row side by side, and of a last row with the defaults.
        `form`: int64, bytes of a row, then the offset of each field in it, then the bytes of each.
    """
    table = read_rows(files, files.groups, Layout(tuple(fields), 0), join.on)
    order = order_of_keys(table.keys, files.faults, join.on, "a dimension table has one row per key")
    keys = table.keys[order]
    if len(keys) and keys[0] == lookups.EMPTY:
        raise SchemaError(f"{files.label}: {join.on} {keys[0]} cannot be an id")
    low, span = (int(keys[0]), int(keys[-1]) - int(keys[0]) + 1) if len(keys) else (0, 0)
    if span <= _SPARSE * len(keys):
        ids, slot, size = np.array([low]), keys - low, span
    else:
        size = 1 << (2 * len(keys) - 1).bit_length()  # a power of two, at least half of it empty: probes stay short
        ids, slot = np.full(size, lookups.EMPTY), np.empty(len(keys), np.int64)
        lookups.fill_places(keys, slot, ids)
    row = np.dtype([(field.name, _narrowest(table.values[field.name], join, field)) for field in fields], align=True)
    rows = np.empty(size + 1, row)  # ids without a row get the last one
    for field in fields:
        rows[field.name] = join.default_of(field.name)
        rows[field.name][slot] = table.values[field.name][order]
    offsets = [row.fields[field.name][1] for field in fields]  # type: ignore[index]
    widths = [row[field.name].itemsize for field in fields]
    return {_IDS: ids, _ROWS: rows.view(np.uint8), _FORM: np.array([row.itemsize, *offsets, *widths])}


def _narrowest(values: np.ndarray, join: Lookup, field: Field) -> np.dtype[Any]:
    """Type of a field in the table. Integers take 4 bytes where they fit, so that more of them are in the cache."""
    if field.dtype is not np.int64:
        return np.dtype(field.dtype)
    ends = [int(join.default_of(field.name)), *([int(values.min()), int(values.max())] if len(values) else [])]
    return np.dtype(np.int32 if -(2**31) <= min(ends) <= max(ends) < 2**31 else np.int64)


def _tables(fields: Sequence[Field], shared: SharedArrays) -> dict[str, np.ndarray]:
    """See `LookupTable`."""
    ids, rows, (stride, *form) = shared[_IDS], shared[_ROWS], shared[_FORM].tolist()
    low, hashed = (int(ids[0]), 0) if len(ids) == 1 else (0, ids.ctypes.data)
    begin, size = rows.ctypes.data, len(rows) // stride - 1
    return {
        field.name: np.array([low, size, hashed, begin + offset, width, stride // 4, begin], np.int64)
        for field, offset, width in zip(fields, form, form[len(fields) :], strict=False)
    }
