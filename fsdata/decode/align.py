"""The last step of decoding gives the lists of a group one length and points null lists at their default."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fsdata.decode.row_layout import Field, Layout
from fsdata.decode.slices import Slice
from fsdata.errors import DataError
from fsdata.kernels import index
from fsdata.schema import Schema


@dataclass(frozen=True, slots=True)
class Groups:
    """The aligned groups of a layout: their names, and what `fsdata.kernels.index.align_groups` takes."""

    names: tuple[str, ...]
    members: np.ndarray
    records: np.ndarray


def groups_of(schema: Schema, layout: Layout) -> Groups:
    """The groups of the fields in `layout`; list labels belong to the candidates."""
    members = [[row for row, field in enumerate(layout.fields) if field.group == group.name] for group in schema.groups]
    records = np.zeros(len(members), index.GROUP)
    records["stop"] = np.cumsum([len(rows) for rows in members])
    records["first"][1:] = records["stop"][:-1]
    records["max_length"] = [group.max_length or -1 for group in schema.groups]
    records["keep_last"] = [group.keep == "last" for group in schema.groups]
    return Groups(
        names=tuple(group.name for group in schema.groups),
        members=np.array([row for rows in members for row in rows], np.int64),
        records=records,
    )


class Defaults:
    """Memory full of one field's default, to which all rows that need it point. Thread-safe.

    Args:
        values: field -> its default.
    """

    def __init__(self, values: Mapping[str, float | str]) -> None:
        self._values = values
        self._blocks: dict[Field, np.ndarray] = {}
        self._lock = threading.Lock()

    def block(self, field: Field, elements: int) -> np.ndarray:
        """At least `elements` times the default of `field`."""
        with self._lock:
            block = self._blocks.get(field)
            if block is None or len(block) < elements:
                size = max(64, 1 << (elements - 1).bit_length())
                value = 0 if field.kind == "counts" else self._values[field.name]  # a null list has no ids
                block = self._blocks[field] = np.full(size, value, field.dtype)
            return block


def align(table: Slice, groups: Groups, layout: Layout, defaults: Defaults, where: str) -> None:
    """Check and truncate the lists of `table` and point null lists at their default, in place.

    Raises:
        DataError: lists of one group that differ in length, with the row and all lengths.
    """
    needed = np.zeros(len(layout.fields), np.int64)
    fault = np.zeros(1, index.FAULT)
    index.align_groups(table.references, layout.itemsize, groups.members, groups.records, needed, fault)
    if fault[0]["code"] != index.OK:
        _fail(table, groups, layout, fault[0], where)
    for row in np.flatnonzero(needed).tolist():
        field = layout.fields[row]
        block = defaults.block(field, int(needed[row]))
        address = table.address[row]
        address[(address == 0) & (table.length[row] > 0)] = block.ctypes.data
        table.owners.append(block)


def _fail(table: Slice, groups: Groups, layout: Layout, fault: np.void, where: str) -> None:
    name, group, row = groups.names[fault["line"]], groups.records[fault["line"]], int(fault["row"])
    members = groups.members[group["first"] : group["stop"]].tolist()
    lengths = {layout.fields[member].name: int(table.length[member, row]) for member in members}
    listed = ", ".join(f"{name} {'null' if length < 0 else length}" for name, length in lengths.items())
    raise DataError(
        f"{where}, row {table.row(row)}: the lists of {name!r} have different lengths: {listed}. "
        "Aligned fields need one length in every row; move a field to a Sequence of its own if it is not aligned"
    )
