"""What a check has found, as the JSON document: where each fault is, and what to do about it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freescale_tools.console.files import header
from fsdata.errors import Fault

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
    "key": "a joined table needs one row per key and no null key: filter or repair it",
    "unsorted": "sort the lists, or make the table of histories with `freescale histories`",
    "future": "look whether the clock or the unit of the times is right",
    "expression": "mend the expression, or the rows that it fails on",
    "data": "see the message",
}
_OF_A_TIME = "leave such rows out with filter=..., or repair them: the time of a row has no default"


def merged(notes: Iterable[Fault]) -> list[Fault]:
    """One fault of each kind and field in a row group, whatever batches it was decoded in; in order of the first."""
    found: dict[tuple[Any, ...], Fault] = {}
    for one in notes:
        key = one.kind, one.label, one.file, one.row_group, one.field, one.what if one.rows is None else None
        before = found.setdefault(key, one)
        if before.rows is not None and one.rows is not None and before is not one:
            found[key] = replace(before, rows=np.union1d(before.rows, one.rows))
    return list(found.values())


def document(
    found: Sequence[Fault],
    columns: Sequence[str | None],
    *,
    rows: Mapping[str, int | None],
    schema: str,
    times: Collection[str] = (),
) -> dict[str, Any]:
    """The JSON document: all faults with all rows, and counts by kind.

    columns: of each fault, the column of the file that its field is read from. rows: of each source; None where its
    tables are of no use before they are mended. times: fields that are times of rows.
    """
    listed = [_entry(one, column, times) for one, column in zip(found, columns, strict=True)]
    counts: Counter[str] = Counter()
    for entry in listed:
        counts[entry["kind"]] += entry["count"]
    return {
        **header("check"),
        "schema": schema,
        "sources": [{"source": label, "rows": count} for label, count in rows.items()],
        "rows": sum(filter(None, rows.values())),
        "counts": dict(counts),
        "found": listed,
    }


def _entry(one: Fault, column: str | None, times: Collection[str]) -> dict[str, Any]:
    of_a_time = one.field in times and one.kind in ("null", "range")
    return {
        "kind": one.kind,
        "source": one.label,
        "file": one.file,
        "row_group": one.row_group,
        "field": one.field,
        "column": column,
        "count": 1 if one.rows is None else len(one.rows),
        "rows": None if one.rows is None else one.rows.tolist(),
        "what": one.what,
        "todo": _OF_A_TIME if of_a_time else REMEDIES[one.kind].format(field=one.field),
    }
