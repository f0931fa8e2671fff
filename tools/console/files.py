"""Writes a file so that it is whole or not there, and says when a document was made."""

import datetime
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: an interrupted run leaves the old file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def created() -> str:
    """The time now, for a document: ISO format, UTC, whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
