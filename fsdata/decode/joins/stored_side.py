"""A side table on disk, held once per host: its rows in the order of their keys, field after field."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from fsdata.catalog.fingerprint import fingerprint
from fsdata.catalog.roles import wanted_key
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.joins.history_table import versions
from fsdata.decode.joins.pile import Pile
from fsdata.decode.joins.side_table import SideFiles, SideTable, check_keys, defaults_of
from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import RowTable
from fsdata.decode.slices import Slice
from fsdata.kernels.copy import gather_fields
from fsdata.schema import Schema
from fsdata.sources.source import Join

_VERSION = 1
_KEYS = "keys"
_VALUES, _STARTS, _LENGTHS, _DENSE = "values of ", "starts of ", "lengths of ", "dense "


@dataclass(frozen=True, slots=True)
class StoredSideTable(SideTable):
    """A side table of M rows that the processes of a host map from one file."""

    shared: SharedArrays

    def values(self, field: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        name = self.layout.fields[field].name
        values, itemsize = self.shared[_VALUES + name], self.layout.fields[field].itemsize
        starts = self.shared[_STARTS + name][at]
        return values.ctypes.data + itemsize * starts, self.shared[_LENGTHS + name][at].astype(np.int64)

    def numbers(self, name: str, at: np.ndarray) -> np.ndarray:
        return self.shared[_DENSE + name][at]


def load_stored_side(join: Join, opened: SideFiles, schema: Schema) -> SideTable:
    """Read a side table, or map the one that another process of this host has read; and close its files.

    While it is read its keys and the lengths of its fields are in memory, 8 bytes each.

    Raises:
        DataError: a null key, or a key that two rows share.
    """
    files, layout = opened.files, opened.layout
    identity = fingerprint(join.source, files.catalog, (), files.version)
    contents = (_VERSION, identity, join.form, repr(schema), versions(files))
    name = f"side{blake2b(repr(contents).encode(), digest_size=16).hexdigest()}"

    def arrays(scratch: Path | None) -> Arrays:
        return _arrays(opened, join, scratch)

    try:
        shared = SharedArrays(name, arrays, files.label, on_disk=True)
    finally:
        files.close()
    none = np.empty((len(layout.fields), 0), np.int64)
    return StoredSideTable(
        files=files,
        join=join,
        keys=shared[_KEYS],
        layout=layout,
        table=RowTable(none, none, layout.itemsize, ()),
        dense=np.empty((0, len(layout.dense)), np.float32),
        defaults=defaults_of(join, layout),
        fingerprint=identity,
        shared=shared,
    )


def bucket_of(sides: Sequence[SideTable], layout: Layout) -> Callable[[RowTable], np.ndarray] | None:
    """Rows -> int64 [n], which stretch of the stored side table a row has its values in, of as many as the join says;
    None without such a table. The first stored table decides."""
    stored = [side for side in sides if isinstance(side, StoredSideTable) and side.layout.fields]
    if not stored:
        return None
    side = stored[0]
    field = side.layout.fields[0]
    values, slot = side.shared[_VALUES + field.name], layout.slots[field.name]
    first, size, buckets = values.ctypes.data, max(values.nbytes, 1), side.join.bucketed or 1

    def bucket(rows: RowTable) -> np.ndarray:
        at = rows.address[slot] - first
        inside = (at >= 0) & (at < size) & (rows.length[slot] > 0)
        found: np.ndarray = np.where(inside, at * buckets // size + 1, 0)
        return found

    return bucket


def _arrays(opened: SideFiles, join: Join, scratch: Path | None) -> dict[str, np.ndarray]:
    files, layout = opened.files, opened.layout
    piles = [
        Pile(np.dtype(field.dtype), scratch and scratch / str(number)) for number, field in enumerate(layout.fields)
    ]
    heads: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    nulls = 0
    for group in files.groups:
        part = files.decode(opened.plans, group, 0, group.rows)
        if part is None:
            continue
        part.keep(np.flatnonzero(part.drop == 0))
        keys, null = part.arrays[wanted_key(join.on)]
        nulls += int(null.sum())
        heads.append((keys.copy(), part.length.copy(), part.dense.copy()))
        for slot, pile in enumerate(piles):
            pile.add(_gathered(part, slot, layout))
    keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _, _ in heads)])
    lengths = np.concatenate([np.empty((len(piles), 0), np.int64), *(of for _, of, _ in heads)], axis=1)
    dense = np.concatenate([np.empty((0, len(layout.dense)), np.float32), *(of for _, _, of in heads)])
    order = np.argsort(keys, kind="stable")
    check_keys(keys[order], nulls, files.label, join.on)
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


def _gathered(part: Slice, slot: int, layout: Layout) -> np.ndarray:
    """The values of a field, of all rows, one after another."""
    lengths = np.maximum(part.length[slot : slot + 1], 0)
    values = np.empty(int(lengths.sum()), layout.fields[slot].dtype)
    gather_fields(
        part.address[slot : slot + 1], lengths, layout.itemsize[slot : slot + 1], np.array([values.ctypes.data])
    )
    return values
