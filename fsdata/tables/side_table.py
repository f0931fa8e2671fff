"""Side tables: read once into memory, with their keys sorted; then a join is a binary search for row numbers.

Letters: M rows of the side table, N rows looked up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted, check_key
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.decode.attached import Stage
from fsdata.decode.block import Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.join_keys import check_unique, keyed_rows
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import Faults, SchemaError
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import ParquetSource
from fsdata.tables.join import Join

_KEYS = "keys"
_VALUES, _STARTS, _LENGTHS, _DENSE = "values of ", "starts of ", "lengths of ", "dense "


@dataclass(frozen=True, slots=True)
class SideTable(Stage):
    """A side table in the order of its keys, which are unique.

    Attributes:
        layout: its fields. arrays: their values, in the order of the files; by row in the order of the keys: where its
            values begin and how many they are, keys, dense fields.
    """

    files: SourceFiles
    join: Join
    layout: Layout
    arrays: Mapping[str, np.ndarray]
    fingerprint: dict[str, str]

    @property
    def catalog(self) -> Catalog:
        return self.files.catalog

    @property
    def kinds(self) -> Sequence[FileKind]:
        return self.files.kinds

    @property
    def counted(self) -> dict[str, Counted]:
        return {field.name: found for field, found in self.files.counted.items()}

    @property
    def defaults(self) -> dict[str, float | str]:
        return {**dict.fromkeys(self.masks, 0), **self.source.defaults}

    @property
    def masks(self) -> frozenset[str]:
        return frozenset(self.fields if self.join.missing == "mask" else ())

    @property
    def may_drop(self) -> bool:
        return self.join.missing == "drop" or any(self.source.policy(name) == "drop" for name in self.fields)

    def check(self, own: Mapping[Field, Counted], ids: Mapping[str, Counted]) -> None:
        key = Field(self.join.on, "join_key")
        check_key(self.join.on, own.get(key), self.files.counted.get(key))

    def attach(self, decoded: DecodedRows, file: int) -> None:
        attach(decoded, self)

    @property
    def keys(self) -> np.ndarray:
        """int64 [M], ascending."""
        return self.arrays[_KEYS]

    @property
    def source(self) -> ParquetSource:
        return self.files.source

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.join.fields)

    def missing(self, name: str) -> str:
        """What becomes of a field of a row without a match."""
        return self.join.missing or self.source.policy(name)

    @property
    def skipped(self) -> list[Skipped]:
        return self.files.skipped

    def column(self, name: str, found: np.ndarray, at: np.ndarray) -> Column:
        """A field of the rows `at`, int64 [N]. Where they are not found, bool [N], lists are null, and others have the
        default."""
        field = self.layout.fields[self.layout.slots[name]]
        values = replace(Column.of(self.arrays[_VALUES + name]), bytes=0)  # they are those of the table
        start = self.arrays[_STARTS + name][at] if len(self.keys) else at
        if not field.is_list:
            default = np.full(1, self.source.defaults.get(name, 0), field.dtype)
            return replace(values.plus(default), start=np.where(found, start, values.size))
        length = self.arrays[_LENGTHS + name][at].astype(np.int64) if len(self.keys) else at
        nothing = 0 if field.kind == "nested_ids" else -1
        return replace(values, start=np.where(found, start, 0), length=np.where(found, length, nothing))

    def numbers(self, name: str, found: np.ndarray, at: np.ndarray) -> np.ndarray:
        """A dense field of the rows `at`, see `column`."""
        default = np.float32(self.source.defaults.get(name, 0))
        if not len(self.keys):
            return np.full(len(at), default)
        return np.where(found, self.arrays[_DENSE + name][at], default)


def load_side_table(join: Join, schema: Schema, open_files: Callable[..., SourceFiles]) -> SideTable:
    """Decode a whole side table, and close its files.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`.

    Raises:
        SchemaError: the files cannot be read as these fields.
        DataError: a null key, or a key that two rows share.
    """
    wanted = [field for field in fields_of(schema) if field.name in join.fields]
    files = open_files([*wanted, Field(join.on, "join_key")])
    try:
        found = (each for kind in files.kinds for each in kind.bindings)
        list_labels = frozenset(each.field.name for each in found if each.field.kind == "label" and each.is_list)
        layout = layout_of(schema, list_labels).only(join.fields)
        plans = files.plans(layout)
        identity = fingerprint(join.source, files.catalog, (), files.version)
        groups = (files.decode(plans, group) for group in files.groups)
        arrays = _arrays((each for each in groups if each is not None), join, files.faults, layout)
        return SideTable(files, join, layout, arrays, identity)
    finally:
        files.close()


def decoded_rows_of(side: SideTable, file: int) -> list[DecodedRows]:
    """The rows of one of its files."""
    files = side.files
    plans = files.plans(side.layout)
    groups = [files.groups[place] for place in files.groups.of_file(file)]
    decoded = [files.decode(plans, group) for group in groups]
    return [each for each in decoded if each is not None]


def table_of(groups: Iterable[DecodedRows], like: SideTable) -> SideTable:
    """A side table of these rows. Raises as `load_side_table`."""
    join, files = like.join, like.files
    identity = fingerprint(join.source, files.catalog, (), files.version)
    return SideTable(files, join, like.layout, _arrays(groups, join, files.faults, like.layout), identity)


def _arrays(groups: Iterable[DecodedRows], join: Join, faults: Faults, layout: Layout) -> dict[str, np.ndarray]:
    """See `SideTable`."""
    fields = layout.fields
    values = [[np.empty(0, field.dtype)] for field in fields]
    heads: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for decoded in groups:
        alive, keys = keyed_rows(decoded, join.on)
        length = np.empty((len(fields), len(alive)), np.int64)
        for slot, field in enumerate(fields):
            column = decoded.column(slot)
            length[slot] = column.width if column.length is None else column.length[alive]
            values[slot].append(column.gathered(field.dtype, alive))
        heads.append((keys, length, decoded.dense[alive]))
    keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _, _ in heads)])
    lengths = np.concatenate([np.empty((len(fields), 0), np.int64), *(of for _, of, _ in heads)], axis=1)
    dense = np.concatenate([np.empty((0, len(layout.dense)), np.float32), *(of for _, _, of in heads)])
    order = np.argsort(keys, kind="stable")
    check_unique(keys[order], faults, join.on, "a side table has one row per key")
    found = {_KEYS: keys[order]}
    for number, name in enumerate(layout.dense):
        found[_DENSE + name] = dense[order, number]
    for slot, field in enumerate(fields):
        stored = np.maximum(lengths[slot], 0)  # a list that is null has -1
        found[_LENGTHS + field.name] = lengths[slot][order].astype(np.int32)
        found[_STARTS + field.name] = (np.cumsum(stored) - stored)[order]
        found[_VALUES + field.name] = np.concatenate(values[slot])
    return found


def attach(decoded: DecodedRows, side: SideTable) -> None:
    """Add the side table's fields to the rows of a decoded, in place.

    A key that is null or not found is a null of every joined field.

    Raises:
        DataError: a key without a match where a field's policy is `error`.
    """
    on, layout = side.join.on, decoded.layout
    keys, null = decoded.keys[Field(on, "join_key")]
    found, at = _look_up(side.keys, keys)
    found &= ~null
    lost = np.flatnonzero(~found & ~decoded.drop)

    def say(strict: list[str]) -> tuple[str, str]:
        key = "null" if null[lost[0]] else int(keys[lost[0]])
        what = f"{on} {key} is not in the {side.files.label}, which makes {', '.join(strict)} null"
        return what, f". Give that ParquetSource a default for it, or nulls={{{strict[0]!r}: 'drop'}}"

    decoded.nulls.without_match(on, lost, {name: side.missing(name) for name in side.fields}, say)
    for to, name in enumerate(layout.dense):
        if name in side.fields:
            decoded.dense[:, to] = side.numbers(name, found, at)
    for name, slot in layout.masks.items():
        if name in side.fields:
            decoded.columns[slot] = Column.of(found.view(np.uint8))
    for field in side.layout.fields:
        to = layout.slots[field.name]
        if layout.fields[to].is_list != field.is_list:
            raise SchemaError(
                f"{decoded.faults.where}: {field.name} is a list in one source and a scalar in another; all must agree"
            )
        decoded.columns[to] = side.column(field.name, found, at)


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each wanted key is there, and where."""
    if len(keys) == 0:
        return np.zeros(len(wanted), bool), np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[at] == wanted, at
