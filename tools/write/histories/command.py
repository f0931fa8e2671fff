"""The command `freescale histories`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError, first_line
from freescale_tools.console.terminal import Terminal


def histories(
    events: Annotated[list[str], typer.Argument(help="Event files: files, globs, folders or URLs. One event per row.")],
    by: Annotated[str, typer.Option(help="Column with the key of a history: integers.")],
    time: Annotated[str, typer.Option(help="Column with the time of an event: integers, timestamps or dates.")],
    out: Annotated[Path, typer.Option(help="Folder for the table: local, and replaced as a whole.")],
    buckets: Annotated[
        int | None, typer.Option(help="Files of the table, by a hash of the key. Default: 1, or as the table has.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(help="Columns beside key and time, joined by commas. Default: all.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Add the events to the table in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Build a table of histories from event logs: one row per key, lists in order of time.

    Events may come in any order, and in more files than fit into memory. Events of one key with equal times
    keep their order: files as given or by name, then rows. With --update the table is the same as one built
    from all events at once, the new ones last.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, events, by=by, time=time, out=out, buckets=buckets, fields=fields, update=update)


def _run(
    terminal: Terminal,
    paths: list[str],
    *,
    by: str,
    time: str,
    out: Path,
    buckets: int | None,
    fields: str | None,
    update: bool,
) -> None:
    import pyarrow as pa

    from freescale_tools.scan.files import open_files
    from freescale_tools.write.histories.build import Settings, make_table
    from freescale_tools.write.histories.tables import show
    from fsdata.errors import CorruptFileError

    try:
        named = None if fields is None else tuple(name.strip() for name in fields.split(","))
        settings = Settings(by=by, time=time, fields=named, buckets=buckets, update=update)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    try:
        document = make_table(open_files(paths), out, settings, lambda what, rows: terminal.progress(what, rows=rows))
    except CorruptFileError as error:
        raise CommandFailed(f"{error}. No table was made, {out} is as before") from error
    except (OSError, pa.ArrowException) as error:
        raise CommandFailed(f"no table was made, {out} is as before: {first_line(error)}") from error
    show(terminal, document)
    terminal.result(document)
