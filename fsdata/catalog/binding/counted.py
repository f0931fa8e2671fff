"""Checks the units of integer fields: values that are compared or mixed must have the same unit.

Keys of joined tables are compared as integers, and so are times; ids of several sources are mixed in one field. A date
and a timestamp of the same day, or timestamps of two units, are different integers: without this check they would
silently match nothing, or be mixed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fsdata.catalog.binding.arrow_types import item_type
from fsdata.catalog.binding.bind import Binding, same_unit
from fsdata.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Counted:
    """The unit of a field's integers in one table.

    Attributes:
        unit: see `fsdata.catalog.binding.arrow_types.unit_of`.
        what: the column and its type; where: the table and one of its files. Both are for messages.
    """

    unit: str
    what: str
    where: str

    @classmethod
    def from_binding(cls, binding: Binding, where: str) -> Self:
        assert binding.unit is not None
        what = f"the {binding.origin}" + (f" {binding.column!r}" if binding.column else "")
        kind = "" if binding.type is None else f" is {item_type(binding.type)}"
        return cls(binding.unit, what + kind, where)

    def __str__(self) -> str:
        return f"{self.what} in {self.where}"


def check_key(on: str, own: Counted | None, other: Counted | None) -> None:
    """Raise SchemaError if the key of a joined table has another unit than that of the rows. None: unknown."""
    if own is not None and other is not None and own.unit != other.unit:
        raise SchemaError(
            f"the key {on!r} has two types: {own}, and {other}. Keys are compared as integers, {own.unit} with "
            f"{other.unit}, and would match nothing, or the wrong rows" + same_unit(on, own.unit, other.unit)
        )


def check_times(at: str, own: Counted | None, time: str, other: Counted | None) -> None:
    """Raise SchemaError if times of a table of histories have another unit than those of the rows."""
    if own is not None and other is not None and own.unit != other.unit:
        raise SchemaError(
            f"{at} and {time} cannot be compared, {own.unit} with {other.unit}: {own}, and {other}"
            + same_unit(at, own.unit, other.unit)
        )


def mixed(counts: Sequence[Mapping[str, Counted]]) -> Iterator[tuple[str, int, str]]:
    """(field, number of a source, message) for fields with another unit in this source than in an earlier one.

    counts: of every source, by field.
    """
    first: dict[str, Counted] = {}
    for number, of_source in enumerate(counts):
        for name, own in of_source.items():
            before = first.setdefault(name, own)
            if own.unit != before.unit:
                what = f"{name!r} has two types: {before}, and {own}: {before.unit} and {own.unit} would be mixed"
                yield name, number, what + same_unit(name, before.unit, own.unit)
