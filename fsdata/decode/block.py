"""Rows by reference: a *block* has the rows that one thread decoded, a *reference* is the number of a block and of a
row in it.

The loader does not copy a sample before its batch is known. Decoding leaves values where they are, often in pages that
are still encoded. Shuffling, batching and balancing move references, of 8 bytes each. One kernel then copies each value
to its final address (`fsdata.kernels.columns`).

Letters: B blocks, F fields, N rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsdata.kernels import columns, runs, scalars


class Resolver(ABC):
    """Gathers columns whose values depend on the row beyond start and length, such as merged histories and look-ups.

    The resolvers of one batch are of one class, and any of them gathers for all.

    Attributes:
        table: int64, input of the kernels, see `RESOLVED` in `fsdata.kernels.columns`.
        from_end: whether the start of a row is behind its last value, so that a shorter length drops its first values.
    """

    table: np.ndarray
    from_end: bool = False

    @abstractmethod
    def gather(self, spans: "Spans", itemsize: np.ndarray, target: np.ndarray) -> None:
        """`Spans.gather` for the fields that have a resolver in some block."""

    @abstractmethod
    def gather_each(self, spans: "Spans", itemsize: np.ndarray, order: np.ndarray, target: np.ndarray) -> None:
        """`Spans.gather_each` for the columns that have a resolver."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one field in N rows, at the addresses where they were decoded or stored.

    Attributes:
        runs: int64 [R + 1, runs.COLUMNS], see `fsdata.kernels.runs`.
        start: int64 [N], index of the first value of each row; None: n * step for row n.
        length: int64 [N], number of values of each row, -1 for null; None: `width` each.
        dictionary, stored: see `fsdata.kernels.columns`.
        values: [V], the values in their final type, if they are in one piece of memory.
        resolver: maps the values to those of the field; None if they are the field's.
        owners: objects that own the memory of `runs` and `dictionary`. bytes: memory that only this column retains.
    """

    runs: np.ndarray
    start: np.ndarray | None = None
    length: np.ndarray | None = None
    step: int = 1
    width: int = 1
    dictionary: int = 0
    stored: int = columns.SAME
    values: np.ndarray | None = None
    resolver: Resolver | None = None
    owners: tuple[Any, ...] = ()
    bytes: int = 0

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        *,
        width: int = 1,
        start: np.ndarray | None = None,
        length: np.ndarray | None = None,
        owners: tuple[Any, ...] = (),
    ) -> "Column":
        """A column over values in memory, [V] in C order. Without `start` each row has the next `width` values."""
        table = run(values.ctypes.data, len(values))
        return cls(table, start, length, width, width, values=values, owners=(values, *owners), bytes=values.nbytes)

    @classmethod
    def constant(cls, values: np.ndarray) -> "Column":
        """A column in which every row has all of `values`."""
        return replace(cls.of(values, width=len(values)), step=0)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(start, length) of a column that has both."""
        assert self.start is not None
        assert self.length is not None
        return self.start, self.length

    @property
    def size(self) -> int:
        """V, the number of values."""
        return int(self.runs[-1, runs.FIRST])

    @property
    def flat(self) -> int:
        """Address of the first value, if every row has `width` values of the final type, in order; else 0."""
        elsewhere = self.start is not None or self.length is not None or self.resolver is not None
        if elsewhere or len(self.runs) != 2 or self.runs[0, runs.FORM] != runs.FINAL:
            return 0
        return int(self.runs[0, runs.AT])

    def take(self, rows: np.ndarray | slice) -> "Column":
        """The rows at `rows`: numbers, or a slice if the column has starts."""
        start = self.start[rows] if self.start is not None else self.step * np.asarray(rows)
        return replace(self, start=start, length=None if self.length is None else self.length[rows])

    def plus(self, values: np.ndarray) -> "Column":
        """The column with further values at the end, in their final type. `start` does not refer to them yet."""
        table = np.vstack([self.runs, [[self.size + len(values), 0, 0]]])
        table[-2, runs.FORM], table[-2, runs.AT] = runs.FINAL, values.ctypes.data
        owners, size = (*self.owners, values), self.bytes + values.nbytes
        return replace(self, runs=table, values=None, owners=owners, bytes=size)

    def lengths(self, rows: int) -> np.ndarray:
        """int64 [N], 0 for null lists."""
        return np.full(rows, self.width) if self.length is None else np.maximum(self.length, 0)

    def gathered(self, dtype: np.dtype[Any] | type, some: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Copy the values of the rows `some`, int64 [n], one row after another. Null lists have none.

        out: array to write to.
        """
        column = self if self.length is None else replace(self, length=np.maximum(self.length, 0))
        block = Block.of([column], int(some.max(initial=-1)) + 1)
        spans = RowRefs.of(block).take(some).spans()
        if out is None:
            out = np.empty(int(spans.length.sum()), dtype)
        spans.gather(np.array([out.itemsize]), np.array([out.ctypes.data]))
        return out


def run(address: int, count: int, form: int = runs.FINAL) -> np.ndarray:
    """The table of one run of `count` values in memory."""
    return np.array([[0, form, address], [count, 0, 0]], np.int64)


def joined(parts: Sequence[Column]) -> Column:
    """Concatenate the rows of columns that have starts and lengths, and values of the final type."""
    if len(parts) == 1:
        return parts[0]
    first = np.cumsum([0, *(part.size for part in parts)])
    tables, starts, lengths = [], [], []
    for part, before in zip(parts, first.tolist(), strict=False):
        start, length = part.bounds
        table = part.runs[:-1].copy()
        table[:, runs.FIRST] += before
        tables.append(table)
        starts.append(start + before)
        lengths.append(length)
    return Column(
        np.vstack([*tables, [[first[-1], 0, 0]]]),
        np.concatenate(starts),
        np.concatenate(lengths),
        owners=tuple(part.owners for part in parts),
        bytes=sum(part.bytes for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """S fields with one value in each of N rows, in their final type.

    Attributes:
        slots: int64 [S], slots of the layout. at: int64 [S], addresses of the values of row 0.
        step: int64 [S], distance between two rows in values: 1 for a contiguous field, more where rows are contiguous.
        rows: N.
        owners: objects that own the memory. bytes: its size.
    """

    slots: np.ndarray
    at: np.ndarray
    step: np.ndarray
    rows: int
    owners: tuple[Any, ...]
    bytes: int

    def column(self, slot: int) -> Column:
        """The field at a slot. Raises KeyError for a slot of other fields."""
        found = np.flatnonzero(self.slots == slot)
        if not len(found):
            raise KeyError(slot)
        at, step = int(self.at[found[0]]), int(self.step[found[0]])
        return Column(run(at, step * self.rows), step=step, owners=self.owners)

    def enter(self, numbers: np.ndarray) -> np.ndarray:
        """Write the fields to the table `Block.columns`. It points to the returned array, which must be kept."""
        table = np.zeros((len(self.slots), 2, runs.COLUMNS), np.int64)
        table[:, 0, runs.FORM], table[:, 0, runs.AT], table[:, 1, runs.FIRST] = (
            runs.FINAL,
            self.at,
            self.step * self.rows,
        )
        found = np.zeros((len(self.slots), columns.NUMBERS), np.int64)
        found[:, columns.RUNS] = table.ctypes.data + table.strides[0] * np.arange(len(table))
        found[:, columns.FLAT], found[:, columns.STEP] = self.at, self.step
        found[:, [columns.COUNT, columns.WIDTH]] = 1
        numbers[self.slots] = found
        return table


class Block:
    """N rows of F fields, decoded by one thread. Immutable.

    Attributes:
        rows: N. source: number of their source. bytes: memory that the block retains.
        columns: int64 [F, NUMBERS], see `fsdata.kernels.columns`. resolver: that of some columns, if any has one.
    """

    def __init__(
        self, numbers: np.ndarray, rows: int, source: int, owners: Any, size: int, resolver: Resolver | None
    ) -> None:
        self.rows = rows
        self.resolver = resolver
        self.source = source
        self.bytes = size
        self.columns = numbers
        self._owners = owners

    @classmethod
    def of(cls, fields: Sequence[Column | None], rows: int, source: int = 0, scalars: Scalars | None = None) -> "Block":
        """Arrays of starts or lengths that fields share, as those of one sequence do, are stored once.

        fields: by slot; None for those of `scalars`.
        """
        held: dict[int, np.ndarray] = {}  # by address; counted in `bytes`
        tables: dict[int, np.ndarray] = {}  # small, or shared by blocks: not counted
        numbers = np.zeros((len(fields), columns.NUMBERS), np.int64)
        owners: list[Any] = [held, tables]
        resolver: Resolver | None = None
        if scalars is not None:
            owners += [scalars.enter(numbers), scalars.owners]
        size = 0 if scalars is None else scalars.bytes
        for at, each in enumerate(fields):
            if each is None:
                continue
            numbers[at] = (
                _address(each.runs, tables),
                len(each.runs) - 1,
                each.dictionary,
                each.stored,
                _address(each.start, held),
                each.step,
                _address(each.length, held),
                each.width,
                0 if each.resolver is None else _address(each.resolver.table, tables),
                each.flat,
            )
            resolver = each.resolver or resolver
            owners += [each.owners, each.resolver]
            size += each.bytes
        size += sum(array.nbytes for array in held.values())
        return cls(numbers, rows, source, owners, size, resolver)


def _address(numbers: np.ndarray | None, held: dict[int, np.ndarray]) -> int:
    """Address of the array, as int64 in C order, which is kept in `held`; 0 for None."""
    if numbers is None:
        return 0
    numbers = np.ascontiguousarray(numbers, np.int64)
    address: int = numbers.__array_interface__["data"][0]
    held[address] = numbers
    return address


class Blocks:
    """B blocks, and their tables for kernels.

    Attributes:
        of: the blocks. columns: [B, F, NUMBERS]. flat: uint8 [F], whether a field is flat in all blocks, see
            `Column.flat` and `fsdata.kernels.scalars`. resolver: that of some columns, if any has one.
    """

    def __init__(self, blocks: Sequence[Block], fields: int) -> None:
        self.of = tuple(blocks)
        self.resolver = next((block.resolver for block in blocks if block.resolver is not None), None)
        self.columns = np.empty((len(blocks), fields, columns.NUMBERS), np.int64)
        for number, block in enumerate(blocks):
            self.columns[number] = block.columns
        widths = self.columns[:, :, columns.WIDTH]
        flat = (self.columns[:, :, columns.FLAT] != 0) & (widths == widths[:1])
        self.flat = flat.all(axis=0).view(np.uint8) if self.of else np.zeros(fields, np.uint8)


@dataclass(frozen=True, slots=True)
class RowRefs:
    """References to N rows of some blocks.

    Decoding returns a reference for every planned row, in order, so that its position says which row it is. Rows that
    the filter or a policy dropped have row -1. Methods that read values need `take(alive)` first.

    Attributes:
        block, row: int32 [N], number of the block, and of the row in it; -1 for a dropped row.
    """

    blocks: Blocks
    block: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, block: Block) -> "RowRefs":
        """References to all rows of a block."""
        blocks = Blocks([block], len(block.columns))
        return cls(blocks, np.zeros(block.rows, np.int32), np.arange(block.rows, dtype=np.int32))

    @property
    def num_rows(self) -> int:
        return len(self.row)

    @property
    def alive(self) -> np.ndarray:
        """int64 [n], increasing: positions of the rows that are not dropped."""
        return np.flatnonzero(self.row >= 0)

    @property
    def bytes(self) -> int:
        """Memory that their blocks retain."""
        return sum(block.bytes for block in self.blocks.of)

    def take(self, index: np.ndarray | slice) -> "RowRefs":
        """The rows at `index`, positions or a slice, in that order."""
        return RowRefs(self.blocks, self.block[index], self.row[index])

    def spans(self, slot: int | None = None) -> "Spans":
        """Start and length of every row in every field, or in the one at `slot`."""
        table, flat = self.blocks.columns, self.blocks.flat
        if slot is not None:
            table, flat = np.ascontiguousarray(table[:, slot : slot + 1]), flat[slot : slot + 1]
        start = np.empty((table.shape[1], len(self.row)), np.int64)
        length, count = np.empty_like(start), np.empty(len(start), np.int64)
        columns.find_spans(table, flat, self.block, self.row, start, length, count)
        return Spans(self.blocks, table, flat, self.block, self.row, start, length, count)

    def numbers(self, slot: int, width: int) -> np.ndarray:
        """int64 [N, width]: the values of an integer field that has `width` values in every row."""
        found = np.empty((len(self.row), width), np.int64)
        self.spans(slot).gather(np.array([8]), np.array([found.ctypes.data]))
        return found

    def sources(self) -> np.ndarray:
        """int64 [N]: number of the source of every row."""
        return np.array([block.source for block in self.blocks.of], np.int64)[self.block]


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions and lengths of the values of N rows in F fields.

    Attributes:
        blocks: own the values.
        columns: int64 [B, F, NUMBERS]; flat: uint8 [F], see `Blocks`; block, row: int32 [N], see `RowRefs`.
        start, length: int64 [F, N], index of the first value in its column, and number of values. `start` is undefined
            for flat fields.
        counts: int64 [F]: number of values of every field in all rows.
    """

    blocks: Blocks
    columns: np.ndarray
    flat: np.ndarray
    block: np.ndarray
    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    counts: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.block)

    def take(self, index: np.ndarray) -> "Spans":
        start, length = self.start.take(index, axis=1), self.length.take(index, axis=1)
        return replace(self, block=self.block[index], row=self.row[index], start=start).with_length(length)

    def with_length(self, length: np.ndarray) -> "Spans":
        """The spans with other lengths; those of flat fields must not change."""
        return replace(self, length=length, counts=np.add.reduce(length, axis=1))

    def gather(self, itemsize: np.ndarray, target: np.ndarray) -> None:
        """Copy the values of every field, row after row. itemsize, target: int64 [F]; addresses, 0 to skip."""
        # Only kernels that have work are called, so that others need not be compiled.
        if self.flat.any():
            scalars.gather_flat(self.columns, self.flat, self.block, self.row, itemsize, target)
        resolver = self._resolver
        if resolver is not None:
            resolver.gather(self, itemsize, target)
        columns.gather_fields(self.columns, self.flat, self.block, self.start, self.length, itemsize, target)

    def gather_each(self, itemsize: np.ndarray, order: np.ndarray, target: np.ndarray) -> None:
        """Copy every field of the rows `order`, int64 [M], each to its own address. target: int64 [F, M], 0 to skip."""
        columns.gather_samples(
            self.columns, self.flat, self.block, self.row, self.start, self.length, itemsize, order, target
        )
        resolver = self._resolver
        if resolver is not None:
            resolver.gather_each(self, itemsize, order, target)

    @property
    def _resolver(self) -> Resolver | None:
        """The resolver of these columns, which may be some of those of the blocks."""
        return self.blocks.resolver if self.columns[:, :, columns.RESOLVED].any() else None


def concat(parts: Sequence[RowRefs]) -> RowRefs:
    """Concatenate references to rows of the same fields. Blocks without a reference are dropped."""
    blocks = parts[0].blocks
    if len(parts) == 1:
        return parts[0]
    row = np.concatenate([part.row for part in parts])
    if all(part.blocks is blocks for part in parts):
        return RowRefs(blocks, np.concatenate([part.block for part in parts]), row)
    number: dict[Block, int] = {}
    block = []
    for part in parts:
        used = np.bincount(part.block[part.row >= 0], minlength=len(part.blocks.of)) > 0
        new = [
            number.setdefault(each, len(number)) if some else 0
            for each, some in zip(part.blocks.of, used.tolist(), strict=True)
        ]
        block.append(np.array(new or [0], np.int32)[part.block])  # dropped rows have block 0 even if there is none
    return RowRefs(Blocks(list(number), blocks.columns.shape[1]), np.concatenate(block), row)


def dropped_rows(count: int, fields: int) -> RowRefs:
    """References to rows that were all dropped."""
    return RowRefs(Blocks((), fields), np.zeros(count, np.int32), np.full(count, -1, np.int32))


def no_rows(fields: int) -> RowRefs:
    """No references, to rows of `fields` fields."""
    return dropped_rows(0, fields)
