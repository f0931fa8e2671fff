"""Reads what `freescale profile` wrote."""

from pathlib import Path
from typing import Any

from freescale_tools.console.files import read_document

VERSION = 2
"""Of profile.json."""


def read_profile(path: Path) -> dict[str, Any]:
    """The document of `freescale profile` at `path`, a file or its folder. Raises UsageError for other files."""
    file = path / "profile.json" if path.is_dir() else path
    make = "write one with `freescale profile PATHS --sequence COL --out DIR`"
    return read_document(file, "profile", make=make, version=VERSION, needs=("sequences",))
