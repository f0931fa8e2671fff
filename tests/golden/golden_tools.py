"""The documents that the command line makes of the golden files, without paths and predicted times."""

import json
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from freescale_tools.cli import app

OWN = ("own/part-0.parquet", "own/part-1.parquet", "own/part-2.parquet")
COMMANDS: dict[str, tuple[str, ...]] = {
    "profile": (
        "profile", *OWN, "--sequence", "item", "--candidates", "candidate", "--time", "at",
        "--ranks", "2", "--batch-size", "4", "--json", "--out", "OUT",
    ),
    "quick": ("profile", *OWN, "--sequence", "item", "--quick", "--json", "--out", "OUT"),
    "collisions": (
        "collisions", *OWN, "--ids", "item", "--batch-size", "4", "--ranks", "2", "--time", "at", "--seed", "3",
        "--dim", "16", "--json", "--out", "OUT",
    ),
    "check": ("check", *OWN, "--schema", "job.py:JOB", "--json"),
}  # fmt: skip
LEFT_OUT = ("paths", "created", "simulation", "answer", "code", "in_order")
"""Where files lie, when the document was made, how fast machines are (the answer hangs on it), how zlib packs, and what
is laid out after the length of a path."""


def documents(folder: Path) -> dict[str, Any]:
    result = {}
    for name, arguments in COMMANDS.items():
        with tempfile.TemporaryDirectory() as out:
            places = {**{path: str(folder / path) for path in (*OWN, "job.py:JOB")}, "OUT": out}
            done = CliRunner().invoke(app, [places.get(each, each) for each in arguments])
        assert done.exit_code in (0, 1), done.output
        result[name] = _kept(json.loads(done.stdout), str(folder))
    return result


def _kept(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {key: _kept(item, folder) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_kept(item, folder) for item in value]
    return value.replace(folder, "FILES") if isinstance(value, str) else value
