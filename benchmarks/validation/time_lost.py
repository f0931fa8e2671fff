"""Compares the time lost that `freescale profile` predicts with the time lost that `benchmarks/time_lost.py` measured.

The profiles are those of the files that were measured, with the cost model that was fitted there; the record holds
them. Nothing is fitted here. A prediction is asked to be within 3 points, or its interval to hold the measurement.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from validation.comparison import points_row

WITHIN = 3.0
"""Points."""
_BATCHES = {"plain": "none", "balanced": "balanced"}
"""As measured -> as a profile names it."""


def against_time_lost(record: Mapping[str, Any]) -> dict[str, Any]:
    """{fits, rows, notes}: a row per set, ranks, order and batches, in points."""
    rows = [_row(one, record["extra"]["profiles"][one["set"]][str(one["ranks"])]) for one in record["rows"]]
    return {"fits": [], "rows": rows, "notes": list(_notes(rows))}


def _row(measured: dict[str, Any], balance: dict[str, Any]) -> dict[str, Any]:
    what = ", ".join((measured["set"], f"{measured['ranks']} ranks", measured["order"], measured["batches"]))
    name = _BATCHES[measured["batches"]]
    low, high = balance["interval"]["time_lost"][name]
    predicted = balance["orders"][measured["order"]]["time_lost"][name]
    lost = 100 * measured["time lost"]
    return points_row(what, lost, 100 * predicted, low=100 * low, high=100 * high, within=WITHIN)


def _notes(rows: list[dict[str, Any]]) -> Iterator[str]:
    for name in _BATCHES:
        known = [row for row in rows if row["what"].endswith(name)]
        near = [row for row in known if abs(row["error"]) <= WITHIN]
        inside = [row for row in known if row["low"] <= row["measured"] <= row["high"]]
        either = [row for row in known if row["verdict"] == "within"]
        yield (
            f"{name}: {len(either)} of {len(known)} as asked: {len(near)} within {WITHIN:g} points, {len(inside)} "
            f"inside the interval; error {statistics.median(abs(row['error']) for row in known):.1f} points in the "
            "median."
        )
