"""What a check has found: as the JSON document, with what to do about each fault, and as tables for the terminal."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from freescale_tools.console.files import header
from freescale_tools.report.blocks import Block, Column, Document, Points, Table
from freescale_tools.report.numbers import COUNT, WORDS, count
from fsdata.errors import Fault

_SHOWN = 20
_ROWS_SHOWN = 5
_NULLS = "ParquetSource(defaults={{'{field}': ...}}), nulls={{'{field}': 'drop'}}, or repair the rows"
REMEDIES = {
    "mismatch": "change the schema or the source's columns and defaults",
    "corrupt": "write it again from its origin, remove it, or leave it out with on_error='skip'",
    "null": _NULLS,
    "null element": _NULLS,
    "not finite": _NULLS,
    "range": "map the column to int64 with an expression in columns: .reinterpret(signed=True) keeps a hash whole",
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


def document(
    found: Sequence[tuple[Fault, str | None]],
    *,
    rows: Mapping[str, int | None],
    schema: str,
    times: Collection[str] = (),
) -> dict[str, Any]:
    """The JSON document: all faults with all rows, and counts by kind.

    found: with each fault the column of the file that its field is read from. rows: of each source; None where its
    tables are of no use before they are mended. times: fields that are times of rows.
    """
    counts: Counter[str] = Counter()
    listed = []
    for one, column in found:
        number = 1 if one.rows is None else len(one.rows)
        counts[one.kind] += number
        of_a_time = one.field in times and one.kind in ("null", "range")
        listed.append(
            {
                "kind": one.kind,
                "source": one.label,
                "file": one.file,
                "row_group": one.row_group,
                "field": one.field,
                "column": column,
                "count": number,
                "rows": None if one.rows is None else one.rows.tolist(),
                "what": one.what,
                "todo": _OF_A_TIME if of_a_time else REMEDIES[one.kind].format(field=one.field),
            }
        )
    return {
        **header("check"),
        "schema": schema,
        "sources": [{"source": label, "rows": read} for label, read in rows.items()],
        "rows": sum(filter(None, rows.values())),
        "counts": dict(counts),
        "found": listed,
    }


def check_blocks(answer: Document) -> Iterator[Block]:
    """One table for each kind of fault, and what to do about it."""
    for kind, number in answer["counts"].items():
        found = [one for one in answer["found"] if one["kind"] == kind]
        notes = [f"To do: {todo}" for todo in dict.fromkeys(one["todo"] for one in found[:_SHOWN])]
        if len(found) > _SHOWN:
            notes.insert(0, f"{count(len(found) - _SHOWN)} more places; --json lists all.")
        if kind == "mismatch":  # of a whole source, and with expressions to copy in one piece
            said = [f"{one['source']}: {one['what']}" for one in found]
            yield Points(title=f"{kind}: {count(number)}", sentences=[*said, *notes])
            continue
        yield Table(
            title=f"{kind}: {count(number)}",
            columns=(
                *([Column("source", WORDS, "source")] if len(answer["sources"]) > 1 else []),
                Column("file", WORDS, lambda one: one["file"] or one["source"]),
                Column("row group", COUNT, "row_group"),
                Column("rows", WORDS, _rows),
                Column("column", WORDS, lambda one: one["column"] or one["field"]),
                Column("what", WORDS, lambda one: one["what"].splitlines()[0]),  # messages of polars tell a story
            ),
            rows=found[:_SHOWN],
            notes=notes,
        )


def _rows(one: Document) -> str | None:
    if (rows := one["rows"]) is None:
        return None
    some = ", ".join(str(row) for row in rows[:_ROWS_SHOWN])
    return some + (f" and {count(len(rows) - _ROWS_SHOWN)} more" if len(rows) > _ROWS_SHOWN else "")
