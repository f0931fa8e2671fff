"""The options of a benchmark, the table that it prints, and the record that keeps its numbers.

Every benchmark ends in one call of `emit`: the reader sees a table, `results/<name>.json` keeps the same rows below a
head that says how they were measured. `make figures` writes the figures of README and docs from these files.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.environment import head

RESULTS = Path(__file__).parents[1] / "results"


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Of a benchmark. Its help is the docstring; `--results` says where the record goes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the JSON goes")
    return parser


def read_record(name: str) -> dict[str, Any]:
    """`results/<name>.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def emit(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    *,
    data: str,
    results: Path = RESULTS,
) -> Path:
    """Print one table and write `<name>.json` into the folder `results`; returns the path of the JSON.

    `data` says in a few words what was measured on. Floats are shown with four significant digits and stored whole;
    None is shown as a dash. `extra` is stored as it is (raw runs, settings). ValueError if a row has not one value per
    column.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{name}: a row of {len(row)} values for {len(columns)} columns: {row}")
    print(text_table(title, columns, rows))
    for note in notes:
        print(note)
    path = results / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "title": title,
        **head(data),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "notes": list(notes),
        "extra": dict(extra or {}),
    }
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n")
    return path


def text_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns of numbers are aligned on the right."""
    right = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    lines = [list(columns), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    lines.insert(1, ["-" * width for width in widths])
    aligned = [
        "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([title, *aligned])


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
