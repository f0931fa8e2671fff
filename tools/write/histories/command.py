"""The command `freescale histories`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated, Any

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
        import pyarrow as pa

        from freescale_tools.scan.files import open_files
    with Terminal(json=json) as terminal:
        import pyarrow as pa

        from freescale_tools.scan.files import open_files
        from freescale_tools.write.histories.build import make_table
        from freescale_tools.write.histories.table import MOST_BUCKETS
        from fsdata.errors import CorruptFileError

        if buckets is not None and not 1 <= buckets <= MOST_BUCKETS:
            raise UsageError(f"--buckets must be 1 to {MOST_BUCKETS:,}, got {buckets}")
        try:
            document = make_table(
                open_files(events),
                out,
                by=by,
                time=time,
                fields=None if fields is None else [name.strip() for name in fields.split(",")],
                buckets=buckets,
                update=update,
                terminal=terminal,
            )
        except CorruptFileError as error:
            raise CommandFailed(f"{error}. No table was made, {out} is as before") from error
        except (OSError, pa.ArrowException) as error:
            raise CommandFailed(f"no table was made, {out} is as before: {first_line(error)}") from error
        _show(terminal, document)
        terminal.result(document)


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    events, lengths, time, ties, future = (document[key] for key in ("events", "lengths", "time", "ties", "future"))
    new = "" if document["new_events"] is None else f", {document['new_events']:,} of them new"
    times = "-"
    if events:
        first, last = (time[f"{end}_utc"] or f"{time[end]:,}" for end in ("first", "last"))
        unit = f" ({time['unit']} since 1970)" if time["unit"] and "int" in time["type"] else ""
        times = f"{first} to {last}{unit}"
    rows = [
        ["events", f"{events:,}{new}"],
        ["users", f"{document['users']:,}"],
        [
            "events of a user",
            f"mean {lengths['mean']:,.4g}, p50 {lengths['p50']:,}, p99 {lengths['p99']:,}, max {lengths['max']:,}",
        ],
        ["times", times],
        ["ties", f"{ties['events']:,} events ({ties['share']:.2%}) have the time of the event before them"],
        ["written", f"{document['bytes'] / 1e6:,.1f} MB in {len(document['files']):,} file(s)"],
        ["seconds", f"{document['seconds']:,.1f}"],
    ]
    notes = []
    if future:
        notes.append(
            f"warning: {future:,} events ({future / events:.2%}) are later than now. Check the clock that wrote "
            f"{document['time_column']}, and its unit"
        )
    title = f"Histories by {document['by']} in order of {document['time_column']}, in {document['out']}"
    terminal.table(title, ["what", "value"], rows, notes=notes)
