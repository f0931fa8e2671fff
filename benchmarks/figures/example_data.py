"""Files that examples read, written into the current folder: `examples.given` takes the names of these functions."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


def impressions() -> None:
    """300 requests."""
    draw = np.random.default_rng(0)
    rows = {"user_id": draw.integers(0, 50, 300), "click": draw.integers(0, 2, 300)}
    _write({"impressions/a.parquet": rows})


def histories() -> None:
    """The histories of 30 users, 200 requests with three candidates each, and the artists of the items."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 600, 30)

    def lists(least: int, most: int) -> list[list[int]]:
        return [draw.integers(least, most, length).tolist() for length in lengths]

    tables = {
        "histories/a.parquet": {
            "user_id": np.arange(30),
            "item_id": lists(0, 999),
            "action": lists(0, 5),
            "event_ts": [sorted(times) for times in lists(0, 1000)],
            "percent": lists(0, 101),
        },
        "items.parquet": {"item_id": range(999), "artist": range(1, 1000)},
        "requests/a.parquet": {
            "user_id": draw.integers(0, 30, 200),
            "request_ts": draw.integers(0, 1000, 200),
            "click": [1] * 200,
            "candidate_id": [[7, 8, 9]] * 200,
            "clicks": [[0.0, 1.0, 0.0]] * 200,
        },
    }
    _write(tables)


def _write(tables: dict[str, dict[str, Any]]) -> None:
    for name, table in tables.items():
        Path(name).parent.mkdir(exist_ok=True)
        pl.DataFrame(table).write_parquet(name)
