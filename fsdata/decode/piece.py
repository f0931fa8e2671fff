"""Rows of a row group on their way to a block: their fields, and what becomes of nulls."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fsdata.catalog.binding.bind import Binding
from fsdata.decode.block import Block, Column, Scalars
from fsdata.decode.row_layout import Layout
from fsdata.errors import Faults
from fsdata.schema import Field


@dataclass(slots=True)
class DecodedPiece:
    """N rows of a row group. Lists of one sequence are not aligned yet: see `align`.

    Attributes:
        layout: which fields they have.
        columns: slot of the layout -> its values; the dense fields stand in `dense`, float32 [N, D].
        scalars: the slots that `columns` does not have, if any.
        arrays: times and keys: int64 [N], and where they are null, bool [N].
        drop: bool [N], rows that a null policy leaves out.
        rows: int64 [N], their numbers in the row group.
        faults: what becomes of rows that contradict the schema.
    """

    layout: Layout
    columns: dict[int, Column]
    scalars: Scalars | None
    dense: np.ndarray
    arrays: dict[Field, tuple[np.ndarray, np.ndarray]]
    drop: np.ndarray
    rows: np.ndarray
    faults: Faults

    @property
    def alive(self) -> np.ndarray:
        """int64 [n]: the rows that are not left out."""
        return np.flatnonzero(~self.drop)

    def column(self, slot: int) -> Column:
        """The values at a slot."""
        if slot not in self.columns and self.scalars is not None:
            return self.scalars.column(slot)
        return self.columns[slot]

    def block(self, source: int = 0) -> Block:
        """All rows; every field of the layout has a column."""
        fields = [self.columns.get(slot) for slot in range(len(self.layout.fields))]
        return Block.of(fields, len(self.rows), source, self.scalars)


def align(piece: DecodedPiece, defaults: Mapping[str, float | str]) -> None:
    """Give all lists of a sequence one length: check it, truncate, and let null lists be of defaults, in place.

    Fields that begin at the same values get one array of starts, too, so that a block holds it once.

    defaults: field -> its default, of those that have one. Lengths are compared before truncation.

    Raises:
        DataError: lists of one sequence that differ in length, with the row and all lengths.
    """
    layout, columns = piece.layout, piece.columns
    for name, slots in layout.aligned:
        first = layout.fields[slots[0]]
        lengths = [_length(columns[slot], len(piece.rows)) for slot in slots]
        common = lengths[0]
        if any(each is not common and not np.array_equal(each, common) for each in lengths[1:]):
            common = np.maximum.reduce(lengths)
            differ = np.logical_or.reduce([(each != common) & (each >= 0) for each in lengths]) & ~piece.drop
            if differ.any():
                _ragged(piece, name, slots, lengths, np.flatnonzero(differ))
                common = np.where(differ, 0, common)
        nulls = common.min(initial=0) < 0 or common is not lengths[0]
        kept = common if common.min(initial=0) >= 0 else np.maximum(common, 0)
        skip = 0
        if first.max_length is not None and kept.max(initial=0) > first.max_length:
            whole, kept = kept, np.minimum(kept, first.max_length)
            skip = whole - kept if first.keep_last else 0
        before, shared = np.empty(0, np.int64), np.empty(0, np.int64)  # starts of the field before, whole and cut
        for slot, length in zip(slots, lengths, strict=True):
            column = columns[slot]
            start = column.start if column.start is not None else column.step * np.arange(len(kept))
            if start is not before and not np.array_equal(start, before):
                before, shared = start, start + skip if isinstance(skip, np.ndarray) else start
            column = replace(column, start=shared, length=kept)
            columns[slot] = (
                _with_defaults(column, length < 0, piece, layout.fields[slot], defaults) if nulls else column
            )


def _length(column: Column, rows: int) -> np.ndarray:
    """With -1 where a list is null."""
    return np.full(rows, column.width) if column.length is None else column.length


def _with_defaults(
    column: Column, null: np.ndarray, piece: DecodedPiece, field: Field, defaults: Mapping[str, float | str]
) -> Column:
    """The column with lists of defaults in place of null lists."""
    start, length = column.bounds
    longest = int(length[null & ~piece.drop].max(initial=0))
    if longest == 0:
        return column
    value = 0 if field.kind == "counts" else defaults.get(field.name, 0)  # a null list has no ids
    filled = column.plus(np.full(longest, value, field.dtype))
    return replace(filled, start=np.where(null, column.size, start))


def _ragged(
    piece: DecodedPiece, name: str, slots: tuple[int, ...], lengths: list[np.ndarray], rows: np.ndarray
) -> None:
    of = {piece.layout.fields[slot].name: int(each[rows[0]]) for slot, each in zip(slots, lengths, strict=True)}
    listed = ", ".join(f"{name} {'null' if length < 0 else length}" for name, length in of.items())
    what = f"the lists of {name!r} have different lengths: {listed}"
    todo = ". Aligned fields need one length in every row; move a field to a Sequence of its own if it is not aligned"
    piece.faults.found("ragged", name, piece.rows[rows], what, todo=todo)


@dataclass(frozen=True, slots=True)
class Nulls:
    """What becomes of nulls in some rows of a piece; `rows`, `drop` and `faults` are those of `DecodedPiece`.

    `drop` is changed in place. What a policy forbids is a fault; where faults are noted, it then is as the default 0.
    """

    rows: np.ndarray
    drop: np.ndarray
    faults: Faults

    def scalars(self, binding: Binding, values: np.ndarray, null: np.ndarray | None) -> np.ndarray:
        """int64 or float32 [n], with the default in place of nulls and of numbers that are not finite.

        null: bool [n], None without any.

        Raises:
            DataError: where the policy is `error`.
        """
        bad = null if null is not None and null.any() else None
        if values.dtype == np.float32:
            finite = np.isfinite(values)
            if not finite.all():
                bad = ~finite if bad is None else bad | ~finite
        if bad is None:
            return values
        absent = np.zeros_like(bad) if null is None else null
        self.forbid(
            binding,
            ("null", np.flatnonzero(absent), "null"),
            ("not finite", np.flatnonzero(bad & ~absent), "NaN or infinite"),
        )
        if binding.policy == "drop":
            self.drop[bad] = True  # the 0 that stands there is never read
        return np.where(bad, values.dtype.type(binding.value or 0), values)

    def lists(self, binding: Binding, null: np.ndarray) -> None:
        """Of lists that are null, bool [n]. Raises as `scalars`. Under `default` they stay null: only `align` knows how
        long the other lists of the row are."""
        self.forbid(binding, ("null", np.flatnonzero(null), "null"))
        if binding.policy == "drop":
            self.drop[null] = True

    def forbid(self, binding: Binding, *found: tuple[str, np.ndarray, str]) -> None:
        """Faults of a field whose policy is `error`: (kind, which of these rows, ascending, what the first of them is).

        The fault of the earliest row comes first. Raises as `scalars`.
        """
        if binding.policy != "error":
            return
        name = binding.field.name
        for kind, rows, what in sorted((each for each in found if len(each[1])), key=lambda each: int(each[1][0])):
            todo = f". Give ParquetSource(defaults={{{name!r}: ...}}) or nulls={{{name!r}: 'drop'}}"
            self.faults.found(kind, name, self.rows[rows], f"{name} is {what}", todo=todo)
