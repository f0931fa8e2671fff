"""What `freescale check` shows: one table for each kind of fault, and what to do about it."""

from collections.abc import Iterator

from freescale_tools.report.blocks import Block, Column, Document, Points, Table
from freescale_tools.report.numbers import COUNT, WORDS, count

_SHOWN = 20
_ROWS_SHOWN = 5


def check_blocks(answer: Document) -> Iterator[Block]:
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
    rows = one["rows"]
    if rows is None:
        return None
    some = ", ".join(str(row) for row in rows[:_ROWS_SHOWN])
    return some + (f" and {count(len(rows) - _ROWS_SHOWN)} more" if len(rows) > _ROWS_SHOWN else "")
