"""The command `freescale check`: reads its options, runs it, and shows the result."""

from typing import Annotated

import typer

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal


def check(
    schema: Annotated[
        str, typer.Option(help="A TOML file with a [schema] table (optional: [[sources]]), or module.py:name.")
    ],
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, globs, folders or URLs. Default: the sources of the schema file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every faulty row.")] = False,
) -> None:
    """Read files as a loader with this schema does, and list everything that the loader would stop at.

    Finds columns that are missing or of a wrong type, nulls, lists of unequal length, ids outside int64, keys
    without a match, and damaged files and row groups. Exit status: 0 if nothing is found, 1 if something is,
    2 for wrong usage.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, schema, paths or [])


def _run(terminal: Terminal, given: str, paths: list[str]) -> None:
    from freescale_tools.check.report import check_blocks
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
    terminal.show(check_blocks(findings, answer))
    if not findings:
        terminal.say(f"{answer['rows']:,} rows of {len(answer['sources'])} source(s) fit the schema")
    for kind, count in answer["counts"].items():
        terminal.finding(f"{kind}: {count:,}")
    terminal.result(answer)
