"""The errors of fsdata.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.

What is wrong with data is a fault: a loader raises the first that it meets, `freescale check` notes all of them. Every
rule is written once, where data are bound, decoded and joined. It says which rows break it, and goes on as if these
rows had a default: what it makes of them is never used, as the loader has raised, and a check looks at nothing else.
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
            one_of: at least one of the rows has it; which one is not known.

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
