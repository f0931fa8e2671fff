"""Writes the JSON document and the page of a command, and tells what the command left out."""

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import write_whole
from freescale_tools.console.terminal import Terminal, plain

if TYPE_CHECKING:
    from freescale_tools.report.blocks import Page


DEFAULT = Path("freescale-report")


def write_report(document: Mapping[str, Any], page: "Page", out: Path | None, name: str) -> str:
    """Write `<name>.json` and `<name>.html` into `out`, and say so. Files of other commands in `out` stay.

    If `out` is None, the folder is DEFAULT and no file is replaced: the name gets the first free number from 2 on.
    Raises CommandFailed if the files cannot be written.
    """
    from freescale_tools.report.page import write_page

    if out is None:
        out, name = DEFAULT, _free_name(DEFAULT, name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / f"{name}.json", json.dumps(document, default=plain, allow_nan=False) + "\n")
        write_page(page, out / f"{name}.html")
    except OSError as error:
        raise CommandFailed(f"cannot write to {out}: {error}") from error
    return f"written to {out / name}.html and {out / name}.json"


def check_folder(out: Path | None) -> None:
    """Raise UsageError if a report cannot be written to `out`, before any work is done."""
    folder = out or DEFAULT
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")


def _free_name(folder: Path, name: str) -> str:
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(one for one in names if not any((folder / f"{one}.{kind}").exists() for kind in ("json", "html")))


def tell_skipped(terminal: Terminal, skipped: Iterable[Mapping[str, Any]]) -> None:
    """Show a finding for every file or row group that was left out."""
    for one in skipped:
        group = "" if one["row_group"] is None else f", row group {one['row_group']}"
        rows = f" ({one['rows']:,} rows left out)" if one["rows"] else ""
        terminal.finding(f"{one['file']}{group}: {one['reason']}{rows}")
