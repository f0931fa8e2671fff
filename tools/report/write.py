"""Writes the JSON document and the page of a command, and tells what the command left out."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.files import write_whole
from freescale_tools.console.terminal import Terminal, plain

if TYPE_CHECKING:
    from freescale_tools.report.blocks import Page


def write_report(document: Mapping[str, Any], page: "Page", out: Path, name: str) -> None:
    """Write `<name>.json` and `<name>.html` into `out`. Files of other commands in `out` stay.

    Raises CommandFailed if the files cannot be written.
    """
    from freescale_tools.report.page import write_page

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / f"{name}.json", json.dumps(document, default=plain, allow_nan=False) + "\n")
        write_page(page, out / f"{name}.html")
    except OSError as error:
        raise CommandFailed(f"cannot write to {out}: {error}") from error


def tell_skipped(terminal: Terminal, skipped: Iterable[Mapping[str, Any]]) -> None:
    """Show a finding for every file or row group that was left out."""
    for one in skipped:
        group = "" if one["row_group"] is None else f", row group {one['row_group']}"
        rows = f" ({one['rows']:,} rows left out)" if one["rows"] else ""
        terminal.finding(f"{one['file']}{group}: {one['reason']}{rows}")
