"""How well `freescale profile` predicts: its errors on measurements that it was not fitted to.

    python benchmarks/adviser.py

Four comparisons. `benchmarks/held_out.py`: `durations.py` as `profile` uses it, links measured by
`benchmarks/links.py`, two numbers fitted on three conditions, the other twelve held out.
`benchmarks/exposed.py --parts`: the same two numbers, and the cost of a part fitted where the fewest rows are shared.
What others published: nothing is fitted. `benchmarks/time_lost.py`: `freescale profile` predicts the time that ranks
lose to waiting, from the files and a cost model that was fitted to other steps. Nothing is measured here; the records
are read.
"""

from collections.abc import Iterator
from typing import Any

from common.table import argument_parser, emit, read_record
from validation.held_out import against_held_out
from validation.parts import against_parts
from validation.published import published
from validation.time_lost import against_time_lost

COLUMNS = ("against", "what", "fitted", "predicted", "measured", "unit", "error", "90 %", "verdict")
RECORDS = ("held_out", "links", "exposed_parts", "time_lost")


def main() -> None:
    results = argument_parser(__doc__).parse_args().results
    held_out, links, parts, time_lost = map(read_record, RECORDS)
    reports = {
        "held_out.py": against_held_out(held_out, links),
        "exposed.py --parts": against_parts(parts, held_out, links),
        "published": published(),
        "time_lost.py": against_time_lost(time_lost),
    }
    rows = [line for name, report in reports.items() for line in _lines(name, report)]
    notes = []
    for name, report in reports.items():
        fits = report["fits"]
        notes += [f"{name}: {fit['name']} = {fit['value']:.4g} {fit['unit']}, fitted on {fit['on']}." for fit in fits]
        notes += [f"{name}: {note}" for note in report["notes"]]
    data = ", ".join(["figures of other published runs", *(f"{name}.json" for name in RECORDS)])
    emit("adviser", "Predictions against measurements", COLUMNS, rows, notes, reports, data=data, results=results)


def _lines(name: str, report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for row in report["rows"]:
        error, goal = _amounts(row)
        verdict = row["verdict"] + goal
        interval = f"{row['low']:.3g} to {row['high']:.3g}" if "low" in row else None
        yield (
            name, row["what"], row["fitted"], row["predicted"], row["measured"], row["unit"], error, interval, verdict,
        )  # fmt: skip


def _amounts(row: dict[str, Any]) -> tuple[str | None, str]:
    """The error, and the goal in brackets."""
    if row["unit"] == "points":
        return f"{row['error']:+.1f} points", f" ({row['within']:g} points)"
    return (None, "") if row["error"] is None else (f"{row['error']:+.1%}", f" ({row['within']:.0%})")


if __name__ == "__main__":
    main()
