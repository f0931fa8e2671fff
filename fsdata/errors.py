"""The errors of fsdata.

Every class takes one message and has no other state, so an error keeps its text when it is passed from a background
thread or from another rank.

A violation of a rule by data is a fault: a loader raises the first one, `freescale check` records all of them. Every
rule is implemented once, in the code that binds, decodes or joins. That code reports the rows of a fault, and continues
as if these rows had a default value. The result is never used: a loader has raised, and a check uses only the faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsranks.errors import FreeScaleError, MismatchError, PeerError

if TYPE_CHECKING:
    import numpy as np

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
    """A schema that contradicts itself, or sources that cannot be read as this schema."""


class DataError(FreeScaleError, ValueError):
    """Data that contradict the schema: ragged aligned fields, forbidden nulls, ids outside int64, ..."""


class CorruptFileError(FreeScaleError, OSError):
    """A file or row group that cannot be decoded, or that changed after its footer was read."""


class StateError(FreeScaleError, ValueError):
    """A saved state that does not belong to this loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault of one field, in a table, a file or a row group.

    Attributes:
        kind: `mismatch`, `corrupt`, `null`, `null element`, `not finite`, `range`, `not text`, `expression`, `ragged`,
            `no match`, `key`, `unsorted`, `data` (see `what`), or `future`, which a loader accepts.
        label: the name of the table in messages.
        what: the description, for the first of `rows`.
        file, row_group, field: its location; None if it is not in one file, row group or field.
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
    """The destination of the faults of one row group, or of a whole table.

    Attributes:
        label, file, row_group: see `Fault`.
        notes: the list to which faults are added; None to raise the first.
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
        """Raise or record a fault of the field `name`.

        Args:
            rows: numbers in the row group; None if the fault is not about rows.
            todo: the remedy, for the message of a loader; text that continues `what`.
            one_of: whether at least one of the rows has the fault, but it is unknown which.

        Raises:
            DataError: `notes` is None.
        """
        import numpy as np  # here, as this module is imported with the package

        numbers = None if rows is None else np.unique(np.asarray(rows, np.int64))
        if self.notes is not None:
            fault = Fault(
                kind=kind,
                label=self.label,
                what=what,
                file=self.file,
                row_group=self.row_group,
                field=name,
                rows=numbers,
            )
            self.notes.append(fault)
            return
        row = "" if numbers is None else f", row {numbers[0]}"
        row += f" or one of the {len(numbers) - 1} after it" if numbers is not None and one_of else ""
        raise DataError(f"{self.where}{row}: {what}{todo}")
