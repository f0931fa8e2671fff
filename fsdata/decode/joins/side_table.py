"""Side tables: read once into memory, then a join is a lookup of addresses.

Letters: F fields and D dense columns of the main table, f and d those of the side table, M rows of it, N looked up.
"""

from dataclasses import dataclass

import numpy as np

from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.retry import Retrying
from fsdata.catalog.roles import wanted_fields, wanted_key
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.decode.row_table import RowTable, concat, empty
from fsdata.decode.slice_plan import SlicePlan
from fsdata.decode.slices import Slice
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import DataError, SchemaError
from fsdata.schema import Schema
from fsdata.sources.source import Join, ParquetSource

FLAGS = np.array([False, True])  # what masks refer to


@dataclass(frozen=True, slots=True)
class SideTable:
    """A side table in memory, in the order of its keys.

    Attributes:
        keys: int64 [M], ascending, unique.
        layout: its fields; table: [f, M], dense: float32 [M, d], their values.
        defaults: field -> its default, int64 or float32 [1].
    """

    files: SourceFiles
    join: Join
    keys: np.ndarray
    layout: Layout
    table: RowTable
    dense: np.ndarray
    defaults: dict[str, np.ndarray]
    fingerprint: dict[str, str]

    @property
    def source(self) -> ParquetSource:
        return self.files.source

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.join.fields)

    def values(self, field: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(addresses, lengths) of a field's values in the rows `at`, int64 [N] each; a list that is null has -1."""
        return self.table.address[field][at], self.table.length[field][at]

    def numbers(self, name: str, at: np.ndarray) -> np.ndarray:
        """float32 [N], a dense field in the rows `at`."""
        column: np.ndarray = self.dense[at, self.layout.dense.index(name)]
        return column

    def missing(self, name: str) -> str:
        """What becomes of a field of a row without a match."""
        return self.join.missing or self.source.policy(name)

    @property
    def skipped(self) -> list[Skipped]:
        return self.files.skipped


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files of a side table, and how they are decoded."""

    files: SourceFiles
    layout: Layout
    plans: tuple[SlicePlan, ...]


def open_side(join: Join, schema: Schema, *, label: str, threads: int | None, retry: Retrying) -> SideFiles:
    """Raises: as `SourceFiles`."""
    wanted = [field for field in wanted_fields(schema) if field.name in join.fields]
    label = f"{label}, side table {join.source.label}"
    files = SourceFiles(join.source, [*wanted, wanted_key(join.on)], index=0, label=label, threads=threads, retry=retry)
    found = (each for kind in files.kinds for each in kind.bindings)
    list_labels = frozenset(each.field.name for each in found if each.field.role == "label" and each.is_list)
    layout = layout_of(schema, list_labels).only(join.fields)
    return SideFiles(files, layout, files.plans(lambda field: True, layout, filtered=True))


def load_side_table(join: Join, opened: SideFiles) -> SideTable:
    """Decode a whole side table, and close its files.

    Raises:
        DataError: a null key, or a key that two rows share.
    """
    files = opened.files
    try:
        slices = [files.decode(opened.plans, group, 0, group.rows) for group in files.groups]
    finally:
        files.close()
    return sorted_by_key([each for each in slices if each is not None], join, files, opened.layout)


def decoded(side: SideTable, file: int) -> list[Slice]:
    """The rows of one of its files."""
    files = side.files
    plans = files.plans(lambda field: True, side.layout, filtered=True)
    slices = [
        files.decode(plans, files.groups[place], 0, files.groups[place].rows) for place in files.groups.of_file(file)
    ]
    return [each for each in slices if each is not None]


def sorted_by_key(slices: list[Slice], join: Join, files: SourceFiles, layout: Layout) -> SideTable:
    for each in slices:
        each.keep(np.flatnonzero(each.drop == 0))
    key = wanted_key(join.on)
    keys = np.concatenate([np.empty(0, np.int64), *(each.arrays[key][0] for each in slices)])
    nulls = sum(int(each.arrays[key][1].sum()) for each in slices)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    check_keys(keys, nulls, files.label, join.on)
    tables = [RowTable(each.address, each.length, layout.itemsize, tuple(each.owners)) for each in slices]
    dense = [np.empty((0, len(layout.dense)), np.float32), *(each.dense for each in slices)]
    return SideTable(
        files=files,
        join=join,
        keys=keys,
        layout=layout,
        table=concat(tables).take(order) if tables else empty(layout.itemsize),
        dense=np.concatenate(dense)[order],
        defaults=defaults_of(join, layout),
        fingerprint=fingerprint(join.source, files.catalog, (), files.version),
    )


def check_keys(keys: np.ndarray, nulls: int, label: str, on: str) -> None:
    """keys: ascending."""
    if nulls:
        raise DataError(f"{label}: {nulls} rows have a null {on!r} and can never match; filter them out")
    twice = np.unique(keys[1:][keys[1:] == keys[:-1]])
    if len(twice):
        some = ", ".join(str(key) for key in twice[:5].tolist()) + (", ..." if len(twice) > 5 else "")
        raise DataError(
            f"{label}: {len(twice)} values of the key {on!r} stand in more than one row ({some}); a side table has one "
            "row per key"
        )


def defaults_of(join: Join, layout: Layout) -> dict[str, np.ndarray]:
    """See `SideTable`."""
    given = join.source.defaults
    of_fields = {field.name: np.full(1, given.get(field.name, 0), field.dtype) for field in layout.fields}
    return of_fields | {name: np.full(1, given.get(name, 0), np.float32) for name in layout.dense}


def attach(table: Slice, side: SideTable, layout: Layout, where: str) -> None:
    """Add the side table's fields to the rows of `table`, whose layout is `layout`, in place.

    A key that is null or not found is a null of every joined field.

    Raises:
        DataError: a key without a match where a field's policy is `error`.
    """
    on = side.join.on
    keys, null = table.arrays[wanted_key(on)]
    found, at = _look_up(side.keys, keys)
    found &= ~null
    some = len(side.keys) > 0
    lost = np.flatnonzero(~found & (table.drop == 0))
    if len(lost):
        policies = {name: side.missing(name) for name in side.fields}
        for name, policy in policies.items():
            if policy == "error":
                key = "null" if null[lost[0]] else int(keys[lost[0]])
                raise DataError(
                    f"{where}, row {table.row(int(lost[0]))}: {on} {key} is not in the {side.files.label}, which "
                    f"makes {name} null. Give that ParquetSource a default for it, or nulls={{{name!r}: 'drop'}}"
                )
        if "drop" in policies.values():
            table.drop[lost] = 1
    for to, name in enumerate(layout.dense):
        if name in side.fields:
            table.dense[:, to] = (
                np.where(found, side.numbers(name, at), side.defaults[name][0]) if some else (side.defaults[name][0])
            )
    for name, slot in layout.masks.items():
        if name in side.fields:
            table.address[slot] = FLAGS.ctypes.data + found
    slots = layout.slots
    for of, field in enumerate(side.layout.fields):
        to = slots[field.name]
        is_list = layout.fields[to].is_list
        if is_list != field.is_list:
            raise SchemaError(f"{where}: {field.name} is a list in one source and a scalar in another; all must agree")
        missing = (0, -1) if is_list else (side.defaults[field.name].ctypes.data, 1)
        if field.kind == "nested_ids":
            missing = (0, 0)
        if some:
            address, length = side.values(of, at)
            table.address[to], table.length[to] = (
                np.where(found, address, missing[0]),
                np.where(found, length, missing[1]),
            )
        else:
            table.address[to], table.length[to] = missing
    table.owners.append(side)


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each wanted key is there, and where."""
    if len(keys) == 0:
        return np.zeros(len(wanted), bool), np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[at] == wanted, at
