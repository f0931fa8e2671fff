"""Shows what was rewritten: row groups, size and decoding time of every file, before and after."""

from typing import Any

from freescale_tools.console.terminal import Terminal
from freescale_tools.write.optimize.layout import joined

_SHOWN = 20
_MEANING = {"required": "no nulls, now required", "delta": "stored as deltas"}


def show(terminal: Terminal, document: dict[str, Any]) -> None:
    total = {"file": "all", "status": "", **document["totals"]}
    shown = document["files"][:_SHOWN]
    rows = [_row(one) for one in ([*shown, total] if len(document["files"]) > 1 else shown)]
    notes = []
    if len(shown) < len(document["files"]):
        notes.append(f"{len(document['files']) - len(shown)} more files; --json lists all.")
    seconds, size = total["decode_s"], total["bytes"]
    if seconds and seconds["before"]:
        notes.append("decode s: processor time for all columns, taken while the new file was compared with its source.")
        notes.append(f"Decoding {seconds['after'] / seconds['before'] - 1:+.0%}, size {_change(size):+.0%}.")
    for what, names in document["layout"].items():
        notes += [f"{_MEANING[what]}: {joined(names, 12)}"] if names else []
    terminal.table(
        f"Written to {document['out']}", ["file", "", "rows", "row groups", "MB", "decode s"], rows, notes=notes
    )


def _row(one: dict[str, Any]) -> list[Any]:
    groups, size, seconds = one["row_groups"], one["bytes"], one["decode_s"]
    megabytes = {when: None if count is None else f"{count / 1e6:,.1f}" for when, count in size.items()}
    decode = "-" if seconds is None else _arrow({when: f"{value:.3g}" for when, value in seconds.items()})
    return [one["file"], one["status"], f"{one['rows']:,}", _arrow(groups), _arrow(megabytes), decode]


def _arrow(values: dict[str, Any]) -> str:
    return f"{values['before']} > {'-' if values['after'] is None else values['after']}"


def _change(values: dict[str, int]) -> float:
    return values["after"] / values["before"] - 1 if values["before"] else 0.0
