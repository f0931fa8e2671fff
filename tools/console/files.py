"""Writes files so that they are whole or not there, and begins and reads all documents alike."""

import datetime
import itertools
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.report.blocks import Report

REPORTS = Path("freescale-report")
"""The folder of reports if the user names none."""


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: an interrupted run leaves the old file or none.

    Makes the folder if it is not there. Raises CommandFailed if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot write to {path}: {error}") from error


def write_report(document: Mapping[str, Any], report: Report, out: Path | None, name: str) -> str:
    """Write `<name>.json` and the page `<name>.html` into `out`, and say so. Files of other commands in `out` stay.

    If `out` is None, the folder is REPORTS and no file is replaced: the name gets the first free number from 2 on.
    Raises CommandFailed as `write_whole`.
    """
    from freescale_tools.report.page import page

    if out is None:
        out = REPORTS
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        name = next(one for one in names if not any((out / f"{one}.{kind}").exists() for kind in ("json", "html")))
    write_whole(out / f"{name}.json", json.dumps(document, default=plain, allow_nan=False) + "\n")
    write_whole(out / f"{name}.html", page(report))
    return f"written to {out / name}.html and {out / name}.json"


def plain(value: Any) -> Any:
    """Turn arrays and numpy numbers into lists and numbers, for `json.dumps`."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")


def check_folder(out: Path | None) -> None:
    """Raise UsageError if a report cannot be written to `out`, before any work is done."""
    folder = out or REPORTS
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")


def read_document(path: Path, kind: str, *, make: str, version: int = 1, needs: Collection[str] = ()) -> dict[str, Any]:
    """The document of a `kind` that begins with `header`. `make`: what to do to have one, for messages.

    Raises UsageError for files that are not there, are no such document, are of another version, or lack a key of
    those that it `needs`.
    """
    name = kind.replace("-", " ")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"no {name} at {path}: {error.strerror}; {make}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON document: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise UsageError(f"{path} is no {name}: {make}")
    if document.get("version") != version:
        raise UsageError(f"{path} has version {document.get('version')!r}, this program reads {version}: {make}")
    if lacking := sorted(set(needs) - document.keys()):
        raise UsageError(f"{path} is no whole {name}, it lacks {', '.join(lacking)}: {make}")
    return document


def header(kind: str, *, version: int = 1) -> dict[str, Any]:
    """{version, kind, created}: how every document begins. `created`: now, in ISO format, UTC, whole seconds."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"version": version, "kind": kind, "created": now}
