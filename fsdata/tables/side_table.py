"""Side tables: read once, in memory or on disk, in the order of their keys; then a join is a lookup of places.

One on disk is held once per host: its processes map the same file.

Letters: M rows of the side table, N rows looked up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from fsdata.catalog.binding.bind import FileKind
from fsdata.catalog.binding.counted import Counted, check_key
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.shared_arrays import SharedArrays
from fsdata.decode.attached import Stage
from fsdata.decode.block import Column, RowRefs
from fsdata.decode.piece import DecodedPiece
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import Faults, SchemaError
from fsdata.histories.history_table import ONE_ROW, Pile, check_keys, keyed_rows, own_copy, versions
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import ParquetSource
from fsdata.tables.join import Join

_VERSION = 2  # of the arrays that processes share
_KEYS = "keys"
_VALUES, _STARTS, _LENGTHS, _DENSE = "values of ", "starts of ", "lengths of ", "dense "


@dataclass(frozen=True, slots=True)
class SideTable(Stage):
    """A side table in the order of its keys, which are unique.

    Attributes:
        layout: its fields. arrays: their values, and where those of each row begin and how many they are; keys; dense
            fields.
    """

    files: SourceFiles
    join: Join
    layout: Layout
    arrays: Mapping[str, np.ndarray] | SharedArrays
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

    def attach(self, piece: DecodedPiece, file: int) -> None:
        attach(piece, self)

    def bucket(self, sources: Sequence[Sequence[Stage]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
        return bucket_of([[each for each in stages if isinstance(each, SideTable)] for stages in sources], layout)

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
    """Decode a whole side table, or map the one that another process of this host has read; and close its files.

    While one for the disk is read its keys and the lengths of its fields are in memory, 8 bytes each.

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
        plans = files.plans(lambda field: True, layout, filtered=True)
        identity = fingerprint(join.source, files.catalog, (), files.version)

        def read(scratch: Path | None) -> dict[str, np.ndarray]:
            pieces = (files.decode(plans, group, 0, group.rows) for group in files.groups)
            return _arrays((each for each in pieces if each is not None), join, files.faults, layout, scratch)

        if join.bucketed is None:
            return SideTable(files, join, layout, read(None), identity)
        contents = (_VERSION, identity, join.form, repr(schema), versions(files), *own_copy(files.faults.notes))
        name = f"side{blake2b(repr(contents).encode(), digest_size=16).hexdigest()}"
        return SideTable(files, join, layout, SharedArrays(name, read, files.label, on_disk=True), identity)
    finally:
        files.close()


def pieces_of(side: SideTable, file: int) -> list[DecodedPiece]:
    """The rows of one of its files."""
    files = side.files
    plans = files.plans(lambda field: True, side.layout, filtered=True)
    groups = [files.groups[place] for place in files.groups.of_file(file)]
    pieces = [files.decode(plans, group, 0, group.rows) for group in groups]
    return [each for each in pieces if each is not None]


def table_of(pieces: Iterable[DecodedPiece], like: SideTable) -> SideTable:
    """A side table of these rows. Raises as `load_side_table`."""
    join, files = like.join, like.files
    identity = fingerprint(join.source, files.catalog, (), files.version)
    return SideTable(files, join, like.layout, _arrays(pieces, join, files.faults, like.layout, None), identity)


def _arrays(
    pieces: Iterable[DecodedPiece], join: Join, faults: Faults, layout: Layout, scratch: Path | None
) -> dict[str, np.ndarray]:
    """See `SideTable`. scratch: where values lie until all are there, if not in memory."""
    piles = [Pile(np.dtype(field.dtype), scratch and scratch / str(slot)) for slot, field in enumerate(layout.fields)]
    heads: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for piece in pieces:
        alive, keys = keyed_rows(piece, join.on)
        length = np.empty((len(piles), len(alive)), np.int64)
        for slot, pile in enumerate(piles):
            column = piece.column(slot)
            length[slot] = column.width if column.length is None else column.length[alive]
            pile.add(column.gathered(pile.kind, alive))
        heads.append((keys, length, piece.dense[alive]))
    keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _, _ in heads)])
    lengths = np.concatenate([np.empty((len(piles), 0), np.int64), *(of for _, of, _ in heads)], axis=1)
    dense = np.concatenate([np.empty((0, len(layout.dense)), np.float32), *(of for _, _, of in heads)])
    order = np.argsort(keys, kind="stable")
    check_keys(keys[order], faults, join.on, f"a side table {ONE_ROW}")
    found = {_KEYS: keys[order]}
    for number, name in enumerate(layout.dense):
        found[_DENSE + name] = dense[order, number]
    for slot, (field, pile) in enumerate(zip(layout.fields, piles, strict=True)):
        some = np.maximum(lengths[slot], 0)  # a list that is null has -1
        starts = np.cumsum(some) - some
        found[_LENGTHS + field.name] = lengths[slot][order].astype(np.int32)
        found[_STARTS + field.name] = np.cumsum(some[order]) - some[order]
        found[_VALUES + field.name] = pile.gathered(starts[order], some[order])
    return found


def attach(piece: DecodedPiece, side: SideTable) -> None:
    """Add the side table's fields to the rows of a piece, in place.

    A key that is null or not found is a null of every joined field.

    Raises:
        DataError: a key without a match where a field's policy is `error`.
    """
    on, layout = side.join.on, piece.layout
    keys, null = piece.arrays[Field(on, "join_key")]
    found, at = _look_up(side.keys, keys)
    found &= ~null
    lost = np.flatnonzero(~found & ~piece.drop)
    if len(lost):
        policies = {name: side.missing(name) for name in side.fields}
        strict = [name for name, policy in policies.items() if policy == "error"]
        if strict:
            key = "null" if null[lost[0]] else int(keys[lost[0]])
            what = f"{on} {key} is not in the {side.files.label}, which makes {', '.join(strict)} null"
            todo = f". Give that ParquetSource a default for it, or nulls={{{strict[0]!r}: 'drop'}}"
            piece.faults.found("no match", on, piece.rows[lost], what, todo=todo)
        if "drop" in policies.values():
            piece.drop[lost] = True
    for to, name in enumerate(layout.dense):
        if name in side.fields:
            piece.dense[:, to] = side.numbers(name, found, at)
    for name, slot in layout.masks.items():
        if name in side.fields:
            piece.columns[slot] = Column.of(found.view(np.uint8))
    for field in side.layout.fields:
        to = layout.slots[field.name]
        if layout.fields[to].is_list != field.is_list:
            raise SchemaError(
                f"{piece.faults.where}: {field.name} is a list in one source and a scalar in another; all must agree"
            )
        piece.columns[to] = side.column(field.name, found, at)


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each wanted key is there, and where."""
    if len(keys) == 0:
        return np.zeros(len(wanted), bool), np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[at] == wanted, at


def bucket_of(sides: Sequence[Sequence[SideTable]], layout: Layout) -> Callable[[RowRefs], np.ndarray] | None:
    """Rows -> int64 [n], which stretch of the side table on disk a row has its values in, of as many as the join says;
    None without such a table. The first one decides. sides: of every source."""
    stored = [
        (source, side)
        for source, of in enumerate(sides)
        for side in of
        if isinstance(side.arrays, SharedArrays) and side.layout.fields
    ]
    if not stored:
        return None
    source, side = stored[0]
    name = side.layout.fields[0].name
    size, slot = max(len(side.arrays[_VALUES + name]), 1), layout.slots[name]
    buckets = side.join.bucketed or 1

    def bucket(rows: RowRefs) -> np.ndarray:
        spans = rows.spans(slot)
        at = spans.start[0]
        inside = (rows.sources() == source) & (at < size) & (spans.length[0] > 0)
        found: np.ndarray = np.where(inside, at * buckets // size + 1, 0)
        return found

    return bucket
