"""Shows what a table of histories holds."""

from typing import Any

from freescale_tools.console.terminal import Terminal


def show(terminal: Terminal, document: dict[str, Any]) -> None:
    lengths, ties, future = document["lengths"], document["ties"], document["future"]
    new = document["new_events"]
    rows = [
        ["events", f"{document['events']:,}" + ("" if new is None else f", {new:,} of them new")],
        ["users", f"{document['users']:,}"],
        ["events of a user", f"mean {lengths['mean']:,.4g}, " + ", ".join(_lengths(lengths))],
        ["times", _range(document["time"]) if document["events"] else "-"],
        ["ties", f"{ties['events']:,} events ({ties['share']:.2%}) have the time of the event before them"],
        ["written", f"{document['bytes'] / 1e6:,.1f} MB in {len(document['files']):,} file(s)"],
        ["seconds", f"{document['seconds']:,.1f}"],
    ]
    notes = []
    if future:
        notes.append(
            f"warning: {future:,} events ({future / document['events']:.2%}) are later than now. Check the clock that "
            f"wrote {document['time_column']}, and its unit"
        )
    title = f"Histories by {document['by']} in order of {document['time_column']}, in {document['out']}"
    terminal.table(title, ["what", "value"], rows, notes=notes)


def _lengths(lengths: dict[str, Any]) -> list[str]:
    return [f"{name} {lengths[name]:,}" for name in ("p50", "p99", "max")]


def _range(time: dict[str, Any]) -> str:
    first, last = (time[f"{end}_utc"] or f"{time[end]:,}" for end in ("first", "last"))
    unit = f" ({time['unit']} since 1970)" if time["unit"] and "int" in time["type"] else ""
    return f"{first} to {last}{unit}"
