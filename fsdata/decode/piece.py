"""Rows of a row group on their way to a block: their fields, and what becomes of nulls."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fsdata.catalog.bind import Binding
from fsdata.decode.block import Block, Column
from fsdata.decode.row_layout import Layout
from fsdata.errors import DataError
from fsdata.schema import Field


@dataclass(slots=True)
class DecodedPiece:
    """N rows of a row group. Lists of one sequence are not aligned yet: see `align`.

    Attributes:
        layout: which fields they have.
        columns: slot of the layout -> its values; the dense fields stand in `dense`, float32 [N, D].
        arrays: times and keys: int64 [N], and where they are null, bool [N].
        drop: bool [N], rows that a null policy leaves out.
        rows: int64 [N], their numbers in the row group.
        where: source, file and row group, for messages.
    """

    layout: Layout
    columns: dict[int, Column]
    dense: np.ndarray
    arrays: dict[Field, tuple[np.ndarray, np.ndarray]]
    drop: np.ndarray
    rows: np.ndarray
    where: str

    @property
    def alive(self) -> np.ndarray:
        """int64 [n]: the rows that are not left out."""
        return np.flatnonzero(~self.drop)

    def at(self, n: int | np.integer) -> str:
        """Where row n stands, for messages."""
        return f"{self.where}, row {int(self.rows[n])}"

    def block(self, source: int = 0) -> Block:
        """All rows; every field of the layout has a column."""
        fields = [self.columns[slot] for slot in range(len(self.layout.fields))]
        return Block.of(fields, len(self.rows), source)


def align(piece: DecodedPiece, defaults: Mapping[str, float | str]) -> None:
    """Give all lists of a sequence one length: check it, truncate, and let null lists be of defaults, in place.

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
                raise _ragged(piece, name, slots, lengths, int(np.flatnonzero(differ)[0]))
        nulls = common.min(initial=0) < 0 or common is not lengths[0]
        kept = common if common.min(initial=0) >= 0 else np.maximum(common, 0)
        skip = 0
        if first.max_length is not None and kept.max(initial=0) > first.max_length:
            whole, kept = kept, np.minimum(kept, first.max_length)
            skip = whole - kept if first.keep_last else 0
        for slot, length in zip(slots, lengths, strict=True):
            column = columns[slot]
            start = column.start if column.start is not None else column.step * np.arange(len(kept))
            column = replace(column, start=start + skip if isinstance(skip, np.ndarray) else start, length=kept)
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
    value = 0 if field.kind == "counts" else defaults[field.name]  # a null list has no ids
    filled = column.plus(np.full(longest, value, field.dtype))
    return replace(filled, start=np.where(null, column.size, start))


def _ragged(piece: DecodedPiece, name: str, slots: tuple[int, ...], lengths: list[np.ndarray], row: int) -> DataError:
    of = {piece.layout.fields[slot].name: int(each[row]) for slot, each in zip(slots, lengths, strict=True)}
    listed = ", ".join(f"{name} {'null' if length < 0 else length}" for name, length in of.items())
    return DataError(
        f"{piece.at(row)}: the lists of {name!r} have different lengths: {listed}. "
        "Aligned fields need one length in every row; move a field to a Sequence of its own if it is not aligned"
    )


@dataclass(frozen=True, slots=True)
class Nulls:
    """What becomes of nulls in some rows of a piece. rows, drop: see `DecodedPiece`; `drop` is changed in place."""

    rows: np.ndarray
    drop: np.ndarray
    where: str

    def scalars(
        self, binding: Binding, values: np.ndarray, null: np.ndarray | None, *, checked: bool = False
    ) -> np.ndarray:
        """int64 or float32 [n], with the default in place of nulls and of numbers that are not finite.

        null: bool [n], None without any. checked: all values are finite.

        Raises:
            DataError: where the policy is `error`.
        """
        bad = null if null is not None and null.any() else None
        if values.dtype == np.float32 and not checked:
            finite = np.isfinite(values)
            if not finite.all():
                bad = ~finite if bad is None else bad | ~finite
        if bad is None:
            return values
        if binding.policy == "error":
            n = int(np.flatnonzero(bad)[0])
            raise self.fault(binding, n, "null" if null is not None and null[n] else "NaN or infinite")
        if binding.policy == "drop":
            self.drop[bad] = True  # nobody reads the 0 that stands there
        return np.where(bad, values.dtype.type(binding.value or 0), values)

    def lists(self, binding: Binding, null: np.ndarray) -> None:
        """Of lists that are null, bool [n]. Raises as `scalars`. Under `default` they stay null: only `align` knows how
        long the other lists of the row are."""
        if binding.policy == "error" and null.any():
            raise self.fault(binding, int(np.flatnonzero(null)[0]), "null")
        if binding.policy == "drop":
            self.drop[null] = True

    def fault(self, binding: Binding, n: int, what: str) -> DataError:
        """What is wrong with a field of row n of these."""
        name = binding.field.name
        return DataError(
            f"{self.where}, row {self.rows[n]}: {name} is {what}. Give ParquetSource(defaults={{{name!r}: ...}}) or "
            f"nulls={{{name!r}: 'drop'}}"
        )
