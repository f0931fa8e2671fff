"""The last step of decoding: lists of a group get one length, defaults get addresses, dropped rows go."""

import threading
from dataclasses import dataclass

import numpy as np

from fsdata.decode.row_layout import Layout
from fsdata.decode.slices import Slice
from fsdata.errors import DataError
from fsdata.kernels import index
from fsdata.schema import Schema


@dataclass(frozen=True, slots=True)
class Groups:
    """The aligned groups of a layout, as `fsdata.kernels.index.align_groups` takes them."""

    names: tuple[str, ...]
    members: np.ndarray
    starts: np.ndarray
    limit: np.ndarray
    keep_last: np.ndarray


def groups_of(schema: Schema, layout: Layout) -> Groups:
    """The groups of the fields in `layout`; list labels belong to the candidates."""
    members = [[row for row, field in enumerate(layout.fields) if field.group == group.name] for group in schema.groups]
    counts = [len(rows) for rows in members]
    return Groups(
        names=tuple(group.name for group in schema.groups),
        members=np.array([row for rows in members for row in rows], np.int64),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        limit=np.array([-1 if group.max_length is None else group.max_length for group in schema.groups], np.int64),
        keep_last=np.array([group.keep == "last" for group in schema.groups], np.uint8),
    )


class Constants:
    """Memory full of one field's default, to which all rows that need it point. Thread-safe."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int], np.ndarray] = {}
        self._lock = threading.Lock()

    def block(self, field: str, itemsize: int, value: float, elements: int) -> np.ndarray:
        """At least `elements` values, int64 or float32."""
        with self._lock:
            block = self._blocks.get((field, itemsize))
            if block is None or len(block) < elements:
                size = max(64, 1 << (elements - 1).bit_length())
                block = np.full(size, value, np.int64 if itemsize == 8 else np.float32)
                self._blocks[field, itemsize] = block
            return block


def align(
    table: Slice, groups: Groups, layout: Layout, *, defaults: dict[str, float], constants: Constants, where: str
) -> None:
    """Check and truncate the lists of `table` and point null lists at their default, in place.

    Raises:
        DataError: lists of one group that differ in length, with the row and all lengths.
    """
    needed = np.zeros(len(layout.fields), np.int64)
    report = np.zeros(4, np.int64)
    index.align_groups(
        table.address, table.length, layout.itemsize, groups.members, groups.starts, groups.limit,
        groups.keep_last, table.drop, needed, report,
    )  # fmt: skip
    if report[0] != index.OK:
        _fail(table, groups, layout, report, where)
    for row in np.flatnonzero(needed).tolist():
        field = layout.fields[row]
        block = constants.block(field.name, field.itemsize, defaults[field.name], int(needed[row]))
        address = table.address[row]
        address[(address == 0) & (table.length[row] > 0)] = block.ctypes.data
        table.owners += (block,)


def _fail(table: Slice, groups: Groups, layout: Layout, report: np.ndarray, where: str) -> None:
    group, row = int(report[1]), int(report[2])
    members = groups.members[groups.starts[group] : groups.starts[group + 1]].tolist()
    lengths = {layout.fields[member].name: int(table.length[member, row]) for member in members}
    listed = ", ".join(f"{name} {'null' if length < 0 else length}" for name, length in lengths.items())
    raise DataError(
        f"{where}, row {table.row(row)}: the lists of {groups.names[group]!r} have different lengths: {listed}. "
        "Aligned fields need one length in every row; move a field to a Sequence of its own if it is not aligned"
    )
