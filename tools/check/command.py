"""`freescale check`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.check.table_scan import Finding

_SHOWN = 20
_ROWS_SHOWN = 5


def check(
    schema: Annotated[
        str, typer.Option(help="A TOML file with a [schema] table (and maybe [[sources]]), or module.py:name.")
    ],
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, globs, folders or URLs. Default: the sources of the schema file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with every row found.")] = False,
) -> None:
    """Read files as a loader with this schema would, and list everything that it would stop at.

    Columns that are missing or of a wrong type, nulls, lists of unequal length, ids outside int64, keys without a
    match, damaged files and row groups. Exit status 0: nothing found, 1: something was, 2: wrong usage.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, schema, paths or [])


def _run(terminal: Terminal, given: str, paths: list[str]) -> None:
    from freescale_tools.check.schema_option import load
    from freescale_tools.check.source_check import SourceCheck, document, label_forms

    schema, sources = load(given, paths)
    checks = [SourceCheck(source, schema, index=index) for index, source in enumerate(sources)]
    try:
        findings = label_forms(checks)
        with terminal.progress("checking", rows=sum(check.rows for check in checks)) as progress:
            for check in checks:
                findings += check.run(progress)
    except OSError as error:
        raise CommandFailed(f"reading failed: {error}") from error
    finally:
        for check in checks:
            check.close()
    answer = document(findings, sources=checks, schema=given)
    _show(terminal, findings, answer)
    for kind, count in answer["counts"].items():
        terminal.finding(f"{kind}: {count:,}")
    terminal.result(answer)


def _show(terminal: Terminal, findings: "Sequence[Finding]", answer: dict[str, Any]) -> None:
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


def _rows(one: "Finding") -> str:
    if one.rows is None:
        return "-"
    some = ", ".join(str(row) for row in one.rows[:_ROWS_SHOWN])
    return some + (f" and {len(one.rows) - _ROWS_SHOWN:,} more" if len(one.rows) > _ROWS_SHOWN else "")
