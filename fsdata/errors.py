"""The errors of fsdata, and the checks of options that raise them.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.

What is wrong with data is a fault: a loader raises the first that it meets, `freescale check` notes all of them. Every
rule is written once, where data are bound, decoded and joined. It says which rows break it, and goes on as if these
rows had a default: what it makes of them is never used, as the loader has raised, and a check looks at nothing else.

What options may be is written once, too, in the functions at the end. Scalars of numpy are taken for the numbers and
texts of Python that they stand for, and returned as such, so that states and fingerprints do not depend on which was
given. A bool is no number, and a number no bool. Options of sources and schemas raise SchemaError.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsranks.errors import FreeScaleError, MismatchError, PeerError

__all__ = [
    "CorruptFileError",
    "DataError",
    "Fault",
    "Faults",
    "FreeScaleError",
    "MismatchError",
    "PeerError",
    "SchemaError",
    "StateError",
]


class SchemaError(FreeScaleError, ValueError):
    """A schema that contradicts itself, or sources that cannot be read as that schema."""


class DataError(FreeScaleError, ValueError):
    """Data that disagrees with the schema: ragged aligned fields, forbidden nulls, ids outside int64, ..."""


class CorruptFileError(FreeScaleError, OSError):
    """A file or row group that cannot be decoded, or that changed after its footer was read."""


class StateError(FreeScaleError, ValueError):
    """A saved state that does not belong to this loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault of one field, in a table, a file or a row group.

    Attributes:
        kind: `mismatch`, `corrupt`, `null`, `null element`, `not finite`, `range`, `not text`, `expression`, `ragged`,
            `no match`, `key`, `unsorted`, `data` (see `what`), or `future`, which a loader takes.
        label: how messages call the table.
        what: the fault in words, that of the first of `rows`.
        file, row_group, field: where it is; None where it has no such place.
        rows: int64, numbers in the row group, ascending; None if the fault is not about rows.
    """

    kind: str
    label: str
    what: str
    file: str | None = None
    row_group: int | None = None
    field: str | None = None
    rows: "np.ndarray | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What becomes of faults of one row group, or of a whole table.

    Attributes:
        label, file, row_group: as of `Fault`.
        notes: where they are noted; None to raise the first.
    """

    label: str
    file: str | None = None
    row_group: int | None = None
    notes: list[Fault] | None = field(default=None, compare=False)

    @property
    def where(self) -> str:
        """Table, file and row group, for messages."""
        return self.label if self.file is None else f"{self.label}, {self.file}, row group {self.row_group}"

    def found(
        self,
        kind: str,
        name: str | None,
        rows: "np.ndarray | Sequence[int] | None",
        what: str,
        *,
        todo: str = "",
        one_of: bool = False,
    ) -> None:
        """Raise a fault of the field `name`, or note it.

        Args:
            rows: numbers in the row group; None if the fault is not about rows.
            todo: how to mend it, for the message of a loader; begins as it follows on `what`.
            one_of: at least one of the rows has it, and nobody knows which.

        Raises:
            DataError: faults are not noted.
        """
        import numpy as np  # not where the package is imported

        some = None if rows is None else np.unique(np.asarray(rows, np.int64))
        if self.notes is not None:
            fault = Fault(
                kind=kind,
                label=self.label,
                what=what,
                file=self.file,
                row_group=self.row_group,
                field=name,
                rows=some,
            )
            self.notes.append(fault)
            return
        row = "" if some is None else f", row {some[0]}"
        row += f" or one of the {len(some) - 1} after it" if some is not None and one_of else ""
        raise DataError(f"{self.where}{row}: {what}{todo}")


_LARGEST = 2**63 - 1  # of the numbers that kernels and files have


def plain(value: Any) -> Any:
    """A scalar of numpy as one of Python, a text as a str; anything else as it is."""
    if isinstance(value, str):
        return str.__str__(value)
    return value.item() if isinstance(value, np.generic) else value


def text(option: str, value: Any, *, what: str = "column", optional: bool = False) -> Any:
    """A text that names one `what`; None, too, where it is `optional`."""
    if optional and value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SchemaError(f"{option} names one {what}, got {value!r}")
    return plain(value)


def names(option: str, value: Any) -> tuple[str, ...]:
    """Some names in order."""
    if isinstance(value, str):
        raise SchemaError(
            f"{option} takes a tuple of names, got the string {plain(value)!r}; write ({plain(value)!r},)"
        )
    if not isinstance(value, Iterable) or isinstance(value, Mapping | set | frozenset):  # those have no order
        raise SchemaError(f"{option} takes a tuple of names, got {value!r}")
    found = tuple(map(plain, value))
    if not all(isinstance(each, str) and each for each in found):
        raise SchemaError(f"{option} takes names, got {found!r}")
    return found


def is_number(value: Any) -> bool:
    return isinstance(plain(value), int | float) and not isinstance(plain(value), bool)


def is_integer(value: Any, least: int, most: int = _LARGEST) -> bool:
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def integer(
    option: str, value: Any, least: int, *, optional: bool = False, error: type[ValueError] = ValueError
) -> Any:
    """The int; None, too, where it is `optional`."""
    if optional and value is None:
        return None
    if not is_integer(value, least):
        too_large = " and at most 2**63 - 1" if is_integer(value, least, most=value) else ""
        or_none = " or None" if optional else ""
        raise error(f"{option} must be an integer of at least {least}{too_large}{or_none}, got {value!r}")
    return int(value)


def boolean(option: str, value: Any, *, error: type[ValueError] = ValueError) -> bool:
    if not isinstance(plain(value), bool):
        raise error(f"{option} must be True or False, got {value!r}")
    return bool(value)


def positive(option: str, value: Any, *, finite: bool = True, error: type[ValueError] = ValueError) -> float:
    """The number, above 0."""
    if not is_number(value) or not value > 0 or (finite and value == float("inf")):
        raise error(f"{option} must be a positive number, got {value!r}")
    number: float = plain(value)
    return number


def one_of(option: str, value: Any, allowed: Collection[Any], *, error: type[ValueError] = ValueError) -> Any:
    """One of some texts, or None where it is among them."""
    if not (value is None or isinstance(value, str)) or value not in allowed:
        raise error(f"{option} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return plain(value)
