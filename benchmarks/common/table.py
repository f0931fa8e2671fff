"""Print the table of a benchmark and keep its numbers.

Every benchmark ends in one call of `emit`: the reader sees a table, `results/<name>.json` keeps the same rows with the
date, the machine and the versions they were measured with.
"""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parents[1] / "results"
_VERSIONS = ("torch", "torchrec", "torchdata", "numba", "numpy", "pyarrow", "polars", "datasets")


def emit(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Print one table and write `benchmarks/results/<name>.json`; returns the path of the JSON.

    Floats are shown with four significant digits and stored whole; None is shown as a dash. `extra` is stored as it is
    (raw runs, settings). ValueError if a row has not one value per column.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{name}: a row of {len(row)} values for {len(columns)} columns: {row}")
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        numeric = all(isinstance(row[i], int | float | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    document = {
        "name": name,
        "title": title,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": _versions(),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "notes": list(notes),
        "extra": dict(extra or {}),
    }
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n")
    return path


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _plain(value: Any) -> Any:
    """JSON of numpy scalars and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} to JSON: {value!r}")


def _versions() -> dict[str, str]:
    found = {}
    for package in _VERSIONS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
