"""Sources without files: every row is a number, so an order can be read off a batch."""

from collections import namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from fsdata.decode.opened_source import SurvivingRows
from fsdata.decode.row_layout import layout_of
from fsdata.decode.row_table import RowTable
from fsdata.schema import Schema, Sequence

SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("row",), time="row")
LAYOUT = layout_of(SCHEMA)
Group = namedtuple("Group", "source index rows")


class Groups(list):
    @property
    def row_counts(self):
        return np.array([group.rows for group in self], np.int64)


def table_of(numbers: np.ndarray) -> RowTable:
    """Row n has `row` n and a history of n % 5 items, each n."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    items = np.repeat(numbers, 5)
    lengths = np.stack([np.ones_like(numbers), numbers % 5])
    address = np.stack(
        [numbers.ctypes.data + 8 * np.arange(len(numbers)), items.ctypes.data + 40 * np.arange(len(numbers))]
    )
    return RowTable(address, lengths, LAYOUT.itemsize, (numbers, items))


@dataclass
class FakeSource:
    """`sizes` rows per group, numbered from `first`; rows whose number is in `dropped` do not survive reading."""

    sizes: list[int]
    first: int = 0
    index: int = 0
    dropped: frozenset[int] = frozenset()
    times: np.ndarray | None = None
    weight: float | None = None
    skipped: list = field(default_factory=list)
    retries: int = 0
    list_labels: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    masks: frozenset[str] = frozenset()
    default_labels: frozenset[str] = frozenset()
    time_unit: str = "integer"
    histories: Any = field(default_factory=lambda: SimpleNamespace(groups={}))

    @property
    def label(self) -> str:
        return f"fake {self.index}"

    @property
    def groups(self):
        return Groups(Group(self.index, i, size) for i, size in enumerate(self.sizes))

    @property
    def may_drop(self) -> bool:
        return bool(self.dropped)

    @property
    def sides(self):
        return []

    @property
    def fingerprint(self):
        return {"sizes": repr(self.sizes)}

    def numbers(self, group: int) -> np.ndarray:
        start = self.first + sum(self.sizes[:group])
        return np.arange(start, start + self.sizes[group])

    def read(self, group, layout, start, stop):
        numbers = self.numbers(group.index)[start:stop]
        kept = np.flatnonzero([number not in self.dropped for number in numbers])
        return SurvivingRows(table_of(numbers[kept]), None if len(kept) == len(numbers) else kept)

    def read_times(self, group):
        at = self.numbers(group.index) - self.first
        return self.times[at]


def numbers_in(table: RowTable) -> list[int]:
    """The row numbers behind a table's addresses."""
    import ctypes

    return [ctypes.c_int64.from_address(int(address)).value for address in table.address[0]]
