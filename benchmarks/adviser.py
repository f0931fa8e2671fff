"""How well `freescale profile` predicts: its errors on measurements that it was not fitted to.

    python benchmarks/adviser.py [--held-out FILE] [--links FILE] [--parts FILE] [--time-lost FILE]

Five comparisons. The paper: two numbers are fitted to its plain loop, the others are predicted, which tests relations
between its own numbers and no length of time. `benchmarks/held_out.py`: `durations.py` as `profile` uses it, links
measured by `benchmarks/links.py`, two numbers fitted on three conditions, the other twelve held out.
`benchmarks/exposed.py --parts`: the same two numbers, and the cost of a part fitted where the fewest rows are shared.
What others published: nothing is fitted. `benchmarks/time_lost.py`: `freescale profile` predicts the time that ranks
lose to waiting, from the files and a cost model that was fitted to other steps. Nothing is measured here; results are
read.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.table import RESULTS, add_results_option, emit
from validation.against_paper import against_paper
from validation.held_out import against_held_out
from validation.parts import against_parts
from validation.published import published
from validation.time_lost import against_time_lost

from freescale_tools.model.hardware import load_hardware

COLUMNS = ("against", "what", "fitted", "predicted", "measured", "unit", "error", "90 %", "verdict")
NOTE = "In brackets: lines that no goal was set for."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", type=Path, default=RESULTS / "held_out.json", help="results of held_out.py")
    parser.add_argument("--links", type=Path, default=RESULTS / "links.json", help="results of links.py")
    parser.add_argument("--parts", type=Path, default=RESULTS / "exposed_parts.json", help="of exposed.py --parts")
    parser.add_argument("--time-lost", type=Path, default=RESULTS / "time_lost.json", help="results of time_lost.py")
    add_results_option(parser)
    given = parser.parse_args()
    # The paper measured on its own cluster.
    reports = {
        "paper": against_paper(load_hardware("h100-ib")),
        "held_out.py": against_held_out(given.held_out, given.links),
        "exposed.py --parts": against_parts(given.parts, given.held_out, given.links),
        "published": published(),
        "time_lost.py": against_time_lost(given.time_lost),
    }
    rows = [line for name, report in reports.items() for line in _lines(name, report)]
    notes = []
    for name, report in reports.items():
        fits = report["fits"]
        notes += [f"{name}: {fit['name']} = {fit['value']:.4g} {fit['unit']}, fitted on {fit['on']}." for fit in fits]
        notes += [f"{name}: {note}" for note in report["notes"]]
    emit(
        "adviser",
        "Predictions against measurements",
        COLUMNS,
        rows,
        [*notes, NOTE],
        reports,
        results=given.results,
        data="figures of the paper and of other published runs, held_out.json, links.json, "
        "exposed_parts.json, time_lost.json",
    )


def _lines(name: str, report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for row in report["rows"]:
        error, goal = _amounts(row)
        verdict = f"{row['verdict'] or 'not predicted'}{goal}" if row["asked"] else f"[{row['verdict']}{goal}]"
        interval = f"{row['low']:.3g} to {row['high']:.3g}" if "low" in row else None
        yield (
            name, row["what"], row["fitted"], row["predicted"], row["measured"], row["unit"], error, interval, verdict,
        )  # fmt: skip


def _amounts(row: dict[str, Any]) -> tuple[str | None, str]:
    """The error, and the goal in brackets."""
    if row["unit"] == "points":
        return None if row["error"] is None else f"{row['error']:+.1f} points", f" ({row['within']:g} points)"
    error = None if row["error"] is None else f"{row['error']:+.1%}"
    return error, "" if row["within"] is None else f" ({row['within']:.0%})"


if __name__ == "__main__":
    main()
