"""What commands leave behind and say alike: files that are whole or not there, and what was left out."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal, plain


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name first, so that an interrupted run leaves none or the one before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_report(document: Mapping[str, Any], out: Path, name: str) -> None:
    """`<name>.json` and `<name>.html` in `out`, beside those of other commands.

    Raises CommandFailed where they cannot be written.
    """
    from freescale_tools.report.page import write_page

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / f"{name}.json", json.dumps(document, default=plain, allow_nan=False) + "\n")
        write_page(document, out / f"{name}.html")
    except OSError as error:
        raise CommandFailed(f"cannot write to {out}: {error}") from error


def tell_skipped(terminal: Terminal, skipped: Iterable[Mapping[str, Any]]) -> None:
    """A finding for every file or row group that was left out."""
    for one in skipped:
        group = "" if one["row_group"] is None else f", row group {one['row_group']}"
        rows = f" ({one['rows']:,} rows left out)" if one["rows"] else ""
        terminal.finding(f"{one['file']}{group}: {one['reason']}{rows}")
