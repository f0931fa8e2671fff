"""Shows findings to people: one table for each kind, and what to do about it."""

from collections.abc import Sequence
from typing import Any

from freescale_tools.check.findings import Finding
from freescale_tools.console.terminal import Terminal

_SHOWN = 20
_ROWS_SHOWN = 5


def show(terminal: Terminal, findings: Sequence[Finding], answer: dict[str, Any]) -> None:
    if not findings:
        terminal.say(f"{answer['rows']:,} rows of {len(answer['sources'])} source(s) fit the schema")
        return
    named = len(answer["sources"]) > 1
    for kind, count in answer["counts"].items():
        of_kind = [one for one in findings if one.kind == kind]
        notes = [f"To do: {todo}" for todo in dict.fromkeys(one.todo for one in of_kind[:_SHOWN])]
        if len(of_kind) > _SHOWN:
            notes.insert(0, f"{len(of_kind) - _SHOWN:,} more places; --json lists all.")
        rows = [
            [one.file or one.source, _number(one.row_group), _rows(one), one.column or one.field or "-", one.what]
            for one in of_kind[:_SHOWN]
        ]
        if named:
            rows = [[one.source, *row] for one, row in zip(of_kind, rows, strict=False)]
        columns = [*(["source"] if named else []), "file", "row group", "rows", "column", "what"]
        if kind == "mismatch":
            terminal.say(
                "\n".join([f"mismatch: {count:,}", *(f"  {one.source}: {one.what}" for one in of_kind), *notes])
            )
        else:
            terminal.table(f"{kind}: {count:,}", columns, rows, notes=notes)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _rows(one: Finding) -> str:
    if one.rows is None:
        return "-"
    some = ", ".join(str(row) for row in one.rows[:_ROWS_SHOWN])
    return some + (f" and {len(one.rows) - _ROWS_SHOWN:,} more" if len(one.rows) > _ROWS_SHOWN else "")
