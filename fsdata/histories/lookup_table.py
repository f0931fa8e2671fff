"""Dimension tables: read once per host; ids become values where they are copied into a batch.

Letters: M rows of the table, S places of a hash table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import FileKind, check_default
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.counted import Counted, check_key
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.attached import Stage
from fsdata.decode.block import Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.join_keys import check_unique, keyed_rows
from fsdata.decode.row_layout import Layout
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import SchemaError
from fsdata.histories.history_table import own_copy, versions
from fsdata.histories.kernels import lookups
from fsdata.histories.lookup import Lookup
from fsdata.histories.resolver import TableResolver
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import ParquetSource

_IDS, _ROWS, _FORM = "ids", "rows", "form"
_SPARSE = 8  # times as many values as rows: more take more memory than a hash table
_VERSION = 3  # of the arrays that processes share


@dataclass(frozen=True, slots=True)
class LookupTable:
    """The dimension table of one `Lookup`.

    Attributes:
        tables: field -> what its values are found by, see `fsdata.histories.kernels.lookups`. floats: fields that are
            float32.
        counted: what the integers of its key and fields count. catalog: the files of the table.
    """

    join: Lookup
    label: str
    skipped: list[Skipped]
    fingerprint: dict[str, str]
    shared: SharedArrays
    tables: Mapping[str, np.ndarray]
    floats: frozenset[str]
    counted: Mapping[str, Counted]
    catalog: Catalog

    kinds: ClassVar[tuple[FileKind, ...]] = ()
    defaults: ClassVar[Mapping[str, float | str]] = MappingProxyType({})
    masks: ClassVar[frozenset[str]] = frozenset()
    may_drop: ClassVar[bool] = False  # its own rows are left out: ids without one have a default

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        check_key(self.join.on, ids.get(self.join.on), self.counted.get(self.join.on))

    @property
    def source(self) -> ParquetSource:
        return self.join.source

    def is_float(self, name: str) -> bool:
        """Whether a field is float32, and not int64."""
        return name in self.floats

    def over(self, ids: Column, name: str) -> Column:
        """A field of the rows of a column of ids."""
        pools = ids.resolver.pools if isinstance(ids.resolver, TableResolver) else None
        resolver = TableResolver(pools=pools, lookup=self.tables[name])
        return replace(ids, resolver=resolver, values=None, bytes=0, owners=(*ids.owners, self.shared))


class Lookups(Stage):
    """The dimension tables of one source."""

    turn = 3

    def __init__(self, tables: Sequence[LookupTable]) -> None:
        self._tables = tables

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """What is found is as long as its ids."""
        for lookup, name in self._in(decoded):
            decoded.columns.setdefault(decoded.layout.slots[name], self._ids(lookup, decoded))

    def finish(self, decoded: DecodedRows) -> None:
        for lookup, name in self._in(decoded):
            decoded.columns[decoded.layout.slots[name]] = lookup.over(self._ids(lookup, decoded), name)

    def _in(self, decoded: DecodedRows) -> Iterator[tuple[LookupTable, str]]:
        return ((each, name) for each in self._tables for name in each.join.fields if name in decoded.layout.slots)

    def _ids(self, lookup: LookupTable, decoded: DecodedRows) -> Column:
        return decoded.column(decoded.layout.slots[lookup.join.on])


def load_lookup(join: Lookup, schema: Schema, open_files: Callable[..., SourceFiles]) -> LookupTable:
    """Read a dimension table, or map the one that another process of this host has read.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`.

    Raises:
        SchemaError: the files cannot be read as these fields, or a default is not a number of its field.
        DataError: a null key, or a key that two rows share.
    """
    kinds = {field.name: field.number for field in fields_of(schema)}

    def wanted(catalog: Catalog) -> list[Field]:
        columns = {name: join.source.columns.get(name, name) for name in join.fields}
        floats = {name for name, column in columns.items() if kinds.get(name, _number(catalog, column)) == "value"}
        fields = (Field(name, "label" if name in floats else "context") for name in join.fields)
        return [*fields, Field(join.on, "join_key")]

    files = open_files(wanted)
    label = files.label
    *fields, _ = files.wanted
    try:
        for field in fields:
            try:
                check_default(field, join.default_of(field.name))
            except SchemaError as error:
                raise SchemaError(f"{label}, {field.name}: {error}") from error
        identity = fingerprint(join.source, files.catalog, (), files.version)
        contents = (_VERSION, identity, join.form, repr(fields), versions(files), *own_copy(files.faults.notes))
        name = f"lookup{blake2b(repr(contents).encode(), digest_size=16).hexdigest()}"
        shared = SharedArrays(name, lambda _: _arrays(files, fields, join), label)
    finally:
        files.close()
    floats = frozenset(field.name for field in fields if field.number == "value")
    found = {field.name: each for field, each in files.counted.items()}
    tables = _tables(fields, shared)
    return LookupTable(join, label, files.skipped, identity, shared, tables, floats, found, files.catalog)


def _number(catalog: Catalog, column: object) -> str:
    """What a column that no field of the schema is made of becomes."""
    if not isinstance(column, str):
        return "id"
    found = [kind for schema in catalog.schemas if (kind := type_at(schema, column)) is not None]
    return "value" if any(map(pa.types.is_floating, found)) else "id"


def _arrays(files: SourceFiles, fields: Sequence[Field], join: Lookup) -> Arrays:
    """`ids`: of an array by id its first one alone; `rows`: bytes, the last row of defaults; `form`: bytes of a row,
    then where each field begins in it, then the bytes of each."""
    keys, values = _rows(files, fields, join)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    check_unique(keys, files.faults, join.on, "a dimension table has one row per key")
    if len(keys) and keys[0] == lookups.EMPTY:
        raise SchemaError(f"{files.label}: {join.on} {keys[0]} cannot be an id")
    low, span = (int(keys[0]), int(keys[-1]) - int(keys[0]) + 1) if len(keys) else (0, 0)
    if span <= _SPARSE * len(keys):
        places, at = np.array([low]), keys - low
        size = span
    else:
        size = 1 << (2 * len(keys) - 1).bit_length()
        places, at = np.full(size, lookups.EMPTY), np.empty(len(keys), np.int64)
        lookups.fill_places(keys, at, places)
    row = np.dtype([(field.name, _narrowest(values[field.name], join, field)) for field in fields], align=True)
    rows = np.empty(size + 1, row)
    for field in fields:
        rows[field.name] = join.default_of(field.name)
        rows[field.name][at] = values[field.name][order]
    places_of = [row.fields[field.name][1] for field in fields]  # type: ignore[index]
    widths = [row[field.name].itemsize for field in fields]
    return {_IDS: places, _ROWS: rows.view(np.uint8), _FORM: np.array([row.itemsize, *places_of, *widths])}


def _rows(files: SourceFiles, fields: Sequence[Field], join: Lookup) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The keys, int64 [M], and the values of every field, in the order of the files."""
    layout = Layout(tuple(fields), 0)
    plans = files.plans(layout)
    keys = [np.empty(0, np.int64)]
    values: dict[str, list[np.ndarray]] = {field.name: [np.empty(0, field.dtype)] for field in fields}
    for group in files.groups:
        decoded = files.decode(plans, group)
        if decoded is None:
            continue
        alive, own = keyed_rows(decoded, join.on)
        keys.append(own)
        for slot, field in enumerate(fields):
            values[field.name].append(decoded.column(slot).gathered(field.dtype, alive))
    return np.concatenate(keys), {name: np.concatenate(parts) for name, parts in values.items()}


def _narrowest(values: np.ndarray, join: Lookup, field: Field) -> np.dtype[Any]:
    """Integers take 4 bytes where they fit: more of them are in the cache."""
    if field.dtype is not np.int64:
        return np.dtype(field.dtype)
    ends = [int(join.default_of(field.name)), *([int(values.min()), int(values.max())] if len(values) else [])]
    return np.dtype(np.int32 if -(2**31) <= min(ends) <= max(ends) < 2**31 else np.int64)


def _tables(fields: Sequence[Field], shared: SharedArrays) -> dict[str, np.ndarray]:
    """See `LookupTable`."""
    ids, rows, (stride, *form) = shared[_IDS], shared[_ROWS], shared[_FORM].tolist()
    low, places = (int(ids[0]), 0) if len(ids) == 1 else (0, ids.ctypes.data)
    at, size, found = rows.ctypes.data, len(rows) // stride - 1, {}
    for field, place, width in zip(fields, form, form[len(fields) :], strict=False):
        found[field.name] = np.array([low, size, places, at + place, width, stride // 4, at], np.int64)
    return found
