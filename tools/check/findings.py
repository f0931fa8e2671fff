"""The findings of a check: kinds of faults, where they are, and what to do about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsdata.errors import SchemaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of fault in one place.

    Attributes:
        kind: see `REMEDIES`.
        source: the name of the table in messages.
        what: the fault in words, or that of the first of `rows`.
        file, row_group, field, column: where the fault is; None if the fault has no such place. `column` is
            the column of the file that the field is read from.
        rows: int64, rows of the row group with the fault; None if the fault is not about rows.
    """

    kind: str
    source: str
    what: str
    file: str | None = None
    row_group: int | None = None
    field: str | None = None
    column: str | None = None
    rows: np.ndarray | None = None

    @property
    def count(self) -> int:
        return 1 if self.rows is None else len(self.rows)

    @property
    def todo(self) -> str:
        """What the user can do about the fault."""
        return REMEDIES[self.kind].format(field=self.field)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "source": self.source,
            "file": self.file,
            "row_group": self.row_group,
            "field": self.field,
            "column": self.column,
            "count": self.count,
            "rows": None if self.rows is None else self.rows.tolist(),
            "what": self.what,
            "todo": self.todo,
        }


_NULLS = "ParquetSource(defaults={{'{field}': ...}}), nulls={{'{field}': 'drop'}}, or repair the rows"
REMEDIES = {
    "mismatch": "change the schema or the source's columns and defaults",
    "corrupt": "write it again from its origin, remove it, or leave it out with on_error='skip'",
    "null": _NULLS,
    "null element": _NULLS,
    "not finite": _NULLS,
    "range": "map the column to int64 with an expression in columns, such as a hash",
    "not text": "write the column as UTF-8, or leave the rows out with filter=...",
    "ragged": "repair the rows, or move a field that is not aligned to a Sequence of its own",
    "no match": "add the keys to the side table, or give its ParquetSource defaults or nulls='drop'",
    "key": "a side table needs one row per key and no null key: filter or repair it",
    "unsorted": "sort the lists, or make the table of histories with `freescale histories`",
    "future": "look whether the clock or the unit of the times is right",
    "expression": "mend the expression, or the rows that it fails on",
    "data": "see the message",
}


def mismatches(error: SchemaError, label: str) -> list[Finding]:
    """One finding for each field that does not fit, from the lines of fsdata's message."""
    lines = [line for line in str(error).splitlines() if line.startswith("  ") and not line.startswith("  columns of ")]
    found = []
    for line in lines or [str(error)]:
        field, colon, _ = line.strip().partition(": ")
        name = field if lines and colon else None
        found.append(Finding(kind="mismatch", source=label, what=line.strip(), field=name))
    return found


def merged(found: Sequence[Finding]) -> list[Finding]:
    """Join findings of one row group so that each kind and field has one, independent of the batches."""
    merged: dict[tuple[str, str | None], Finding] = {}
    for one in found:
        key = one.kind, one.field
        before = merged.get(key)
        if before is None or before.rows is None or one.rows is None:
            merged[key] = one
        else:
            merged[key] = replace(before, rows=np.concatenate([before.rows, one.rows]))
    return list(merged.values())
