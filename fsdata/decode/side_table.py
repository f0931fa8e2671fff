"""Side tables: read once into memory, then a join is a lookup of addresses.

Letters: F fields and D dense columns of the main table, f and d those of the side table, M rows of it, N looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.footers import Skipped
from fsdata.catalog.retry import Retry
from fsdata.catalog.roles import Want, key_want
from fsdata.decode.field_table import Place, Places
from fsdata.decode.slices import Slice
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import DataError, SchemaError
from fsdata.sources.source import Join, ParquetSource


@dataclass(frozen=True, slots=True)
class SideTable:
    """A side table in memory, in the order of its keys.

    Attributes:
        keys: int64 [M], ascending, unique.
        address, length: int64 [f, M]; dense: float32 [M, d].
        places: where its fields stand in them.
        defaults: field -> its default, int64 or float32 [1].
        owners: keeps the addresses valid.
    """

    files: SourceFiles
    on: str
    fields: tuple[str, ...]
    keys: np.ndarray
    address: np.ndarray
    length: np.ndarray
    dense: np.ndarray
    places: Places
    defaults: dict[str, np.ndarray]
    owners: tuple[Any, ...]
    fingerprint: dict[str, str]

    @property
    def source(self) -> ParquetSource:
        return self.files.source

    @property
    def skipped(self) -> list[Skipped]:
        return self.files.skipped


def load_side_table(join: Join, wants: Sequence[Want], *, label: str, threads: int | None, retry: Retry) -> SideTable:
    """Decode a whole side table.

    Args:
        wants: what the schema wants; the table serves those named in `join.fields`.

    Raises:
        DataError: a null key, or a key that two rows share.
    """
    fields = tuple(join.fields)
    served = [want for want in wants if want.field in fields]
    label = f"{label}, side table {join.source.label}"
    files = SourceFiles(join.source, [*served, key_want(join.on)], index=0, label=label, threads=threads, retry=retry)
    places = _places(served, files)
    reader = files.reader(lambda want: True, places, filtered=True)
    try:
        slices = [files.decode(reader, group, 0, group.rows) for group in files.groups]
    finally:
        files.close()
    read = [piece for piece in slices if piece is not None]
    return _sorted_by_key(read, join, files, places)


def _places(served: Sequence[Want], files: SourceFiles) -> Places:
    lists = {bound.want.field for kind in files.kinds for bound in kind.bounds if bound.is_list}
    places: dict[str, Place] = {}
    dense = 0
    for want in served:
        if want.role == "dense":
            places[want.field] = Place("dense", dense)
            dense += 1
        else:
            is_list = want.shape == "list" or want.field in lists
            places[want.field] = Place("row", len(places) - dense, is_list, 4 if want.number == "value" else 8)
    itemsize = np.array([place.itemsize for place in places.values() if place.kind == "row"], np.int64)
    whole = np.full_like(itemsize, -1)
    return Places(places, len(itemsize), dense, itemsize, whole, np.zeros(len(itemsize), np.uint8))


def _sorted_by_key(slices: list[Slice], join: Join, files: SourceFiles, places: Places) -> SideTable:
    on = join.on
    alive = [np.flatnonzero(piece.drop == 0) for piece in slices]
    pairs = list(zip(slices, alive, strict=True))
    keys = _concatenate([piece.arrays[on][0][rows] for piece, rows in pairs], np.empty(0, np.int64))
    nulls = int(_concatenate([piece.arrays[on][1][rows] for piece, rows in pairs], np.empty(0, bool)).sum())
    if nulls:
        raise DataError(f"{files.label}: {nulls} rows have a null {on!r} and can never match; filter them out")
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = np.unique(keys[1:][keys[1:] == keys[:-1]])
    if len(twice):
        some = ", ".join(str(key) for key in twice[:5].tolist()) + (", ..." if len(twice) > 5 else "")
        raise DataError(
            f"{files.label}: {len(twice)} values of the key {on!r} stand in more than one row ({some}); "
            "a side table has one row per key"
        )
    table = np.empty((places.rows, 0), np.int64)
    values = {
        name: np.full(1, join.source.defaults.get(name, 0), np.float32 if places.of[name].itemsize == 4 else np.int64)
        if places.of[name].kind == "row"
        else np.full(1, join.source.defaults.get(name, 0), np.float32)
        for name in join.fields
    }
    return SideTable(
        files=files,
        on=on,
        fields=tuple(join.fields),
        keys=keys,
        address=_concatenate([piece.address[:, rows] for piece, rows in pairs], table)[:, order],
        length=_concatenate([piece.length[:, rows] for piece, rows in pairs], table)[:, order],
        dense=_concatenate([piece.dense[rows].T for piece, rows in pairs], np.empty((places.dense, 0), np.float32)).T[
            order
        ],
        places=places,
        defaults=values,
        owners=tuple(owner for piece in slices for owner in piece.owners),
        fingerprint=fingerprint(join.source, files.footers, ()),
    )


def _concatenate(parts: list[np.ndarray], nothing: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=-1) if parts else nothing


def attach(table: Slice, side: SideTable, places: Places, where: str) -> None:
    """Add the side table's fields to the rows of `table`, in place.

    A key that is null or not found is a null of every joined field.

    Raises:
        DataError: a key without a match where a field's policy is `error`.
    """
    keys, null = table.arrays[side.on]
    found, at = _look_up(side.keys, keys)
    found &= ~null
    lost = np.flatnonzero(~found & (table.drop == 0))
    if len(lost):
        policies = {name: side.source.policy(name) for name in side.fields}
        for name, policy in policies.items():
            if policy == "error":
                key = "null" if null[lost[0]] else int(keys[lost[0]])
                raise DataError(
                    f"{where}, row {table.row(int(lost[0]))}: {side.on} {key} is not in the {side.files.label}, which "
                    f"makes {name} null. Give that ParquetSource a default for it, or nulls={{{name!r}: 'drop'}}"
                )
        if "drop" in policies.values():
            table.drop[lost] = 1
    for name in side.fields:
        own, other, default = places.of[name], side.places.of[name], side.defaults[name]
        if own.kind == "dense":
            table.dense[:, own.index] = _choose(found, side.dense[:, other.index], at, default[0])
        else:
            _check_shape(name, own, other, where)
            missing = (0, -1) if own.is_list else (default.ctypes.data, 1)
            table.address[own.index] = _choose(found, side.address[other.index], at, missing[0])
            table.length[own.index] = _choose(found, side.length[other.index], at, missing[1])
    table.owners += (side,)


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each wanted key is there, and where."""
    if len(keys) == 0:
        return np.zeros(len(wanted), bool), np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[at] == wanted, at


def _choose(found: np.ndarray, values: np.ndarray, at: np.ndarray, missing: Any) -> np.ndarray:
    return np.where(found, values[at], missing) if len(values) else np.full(len(found), missing, values.dtype)


def _check_shape(name: str, own: Place, other: Place, where: str) -> None:
    if own.is_list != other.is_list:
        raise SchemaError(f"{where}: {name} is a list in one source and a scalar in another; all must agree")
