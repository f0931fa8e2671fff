"""Writes a file so that it is whole or not there, and begins and reads all documents alike."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: an interrupted run leaves the old file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_document(path: Path, kind: str, *, make: str, version: int = 1) -> dict[str, Any]:
    """The document of a `kind` that begins with `header`. `make`: what to do to have one, for messages.

    Raises UsageError for files that are not there, are no such document, or are of another version.
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
    return document


def header(kind: str, *, version: int = 1) -> dict[str, Any]:
    """{version, kind, created}: how every document begins. `created`: now, in ISO format, UTC, whole seconds."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"version": version, "kind": kind, "created": now}
