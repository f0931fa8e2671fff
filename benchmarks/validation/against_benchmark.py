"""Compares the simulation with `benchmarks/exposed.py`: real exchanges of four ranks over rate-limited links.

Two numbers are fitted on the plain loop over slow and fast links: the loop's own time besides the wire
(look-ups, permutes, updates, thread switches), and the share of the link rate that the payload reaches. The
compute time is the step of the compute-only rows.
"""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import UsageError
from freescale_tools.model.durations import FLOAT, FORWARD, ID
from freescale_tools.model.step import BY_NAME, Moves, Way, Work, timeline
from validation.comparison import row
from validation.fit import fit_line

TOLERANCE = 0.25
ASKED = ("400 ms", "270 ms")
COMPUTE, PLAIN = "compute", "plain"
PREDICTED = {"sparse dist": "sparse dist", "fscomm": "prioritized"}
TITLES = {"sparse dist": "TorchRec SparseDist", "fscomm": "fscomm"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One condition of the benchmark: bytes per rank and step, steps in ms by mode."""

    name: str
    rate_mbit: float | None
    after_ms: float
    collision: float
    ids_bytes: float
    row_bytes: float
    """Bytes of all rows that leave a rank. Gradients are as large."""
    collision_row_bytes: float
    collision_gradient_bytes: float
    """Bytes on the busiest link."""
    steps_ms: Mapping[str, float]

    def exposed(self, mode: str) -> float:
        return self.steps_ms[mode] - self.steps_ms[COMPUTE]

    def wire_ms(self, size: float) -> float:
        """Milliseconds at the full rate of the link; 0 if the link has no limit."""
        return 8e-3 * size / self.rate_mbit if self.rate_mbit else 0.0


def against_benchmark(path: Path) -> dict[str, Any]:
    """{fits, rows, notes} for the results file of `benchmarks/exposed.py`.

    Raises UsageError if it is not one, or lacks the rows that the fit needs.
    """
    try:
        sections = list(_sections(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result of benchmarks/exposed.py: {type(error).__name__}: {error}") from error
    plain = [section for section in sections if PLAIN in section.steps_ms and not section.after_ms]
    try:
        own, efficiency = fit_line(
            [section.wire_ms(section.ids_bytes + 2 * section.row_bytes) for section in plain],
            [section.exposed(PLAIN) for section in plain],
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    rows = list(_rows(sections, plain, own, efficiency))
    return {
        "fits": [
            {"name": "the loop's own time", "value": own, "unit": "ms", "on": "plain rows"},
            {"name": "payload over link rate", "value": efficiency, "unit": "share", "on": "plain rows"},
        ],
        "rows": rows,
        "notes": [
            f"Measured: {path.name}.",
            "Exposed ms: a step minus the compute-only step. Assumed: the loop's own time goes half to look-ups and "
            "half to updates, and in proportion to the rows of a class; nothing is added for threads or agreement.",
            "Lines without a goal show where the model ends. Without slow links or without collisions a fixed part of "
            "the step is left, of which the model has none; with more collisions it counts too much of the loop's own "
            "time, which then runs beside the wire.",
        ],
    }


def _rows(
    sections: Sequence[Section], plain: Sequence[Section], own: float, efficiency: float
) -> Iterator[dict[str, Any]]:
    for section in sections:
        for mode in (PLAIN, *PREDICTED):
            if mode not in section.steps_ms:
                continue
            way = BY_NAME[PREDICTED.get(mode, mode)]
            found = _predicted(section, way, own, efficiency)
            what = f"exposed, {section.name}, {TITLES.get(mode, 'plain loop')}"
            if mode == PLAIN and section in plain:
                yield row(what, "ms", section.exposed(mode), fitted=found)
            else:
                asked = section.name in ASKED and mode != PLAIN
                yield row(what, "ms", section.exposed(mode), predicted=found, within=TOLERANCE, asked=asked)


def _predicted(section: Section, way: Way, own: float, efficiency: float) -> float:
    def wire(size: float) -> float:
        return section.wire_ms(size) / efficiency

    def moves(share: float, row_bytes: float, gradient_bytes: float) -> Moves:
        half = share * own / 2
        return Moves(lookup=half, rows=wire(row_bytes), gradients=wire(gradient_bytes), apply=half)

    dense, rest = section.steps_ms[COMPUTE] - section.after_ms, 1 - section.collision
    step = Work(
        data=0.0, redistribute=0.0, forward=dense * FORWARD, backward=dense * (1 - FORWARD),
        optimizer=section.after_ms, id_metadata=0.0, ids=wire(section.ids_bytes), all_reduce=0.0,
        whole=moves(1.0, section.row_bytes, section.row_bytes),
        collision=moves(section.collision, section.collision_row_bytes, section.collision_gradient_bytes),
        exclusive=moves(rest, rest * section.row_bytes, rest * section.row_bytes),
        straggler=0.0, contention=0.0,
    )  # fmt: skip
    return timeline(step, way)["bubbles"]["exposed_ms"]


def _sections(document: Mapping[str, Any]) -> Iterator[Section]:
    """The sections with the model and emulated compute of those in ASKED. The fit holds only for these."""
    blocks = document["extra"]["blocks"]
    usual = next((block["condition"] for block in blocks if block["condition"]["name"] in ASKED), None)
    if usual is None:
        raise ValueError(f"no section {' or '.join(ASKED)}")
    for block in blocks:
        condition = block["condition"]
        if any(condition[key] != usual[key] for key in ("ranks", "shape", "real", "skew")):
            continue
        shape, ranks, data = condition["shape"], condition["ranks"], block["data"]
        events = len(shape["sharding"]) * shape["samples"] * shape["ids_per_sample"] * (ranks - 1) / ranks
        yield Section(
            name=condition["name"],
            rate_mbit=condition["rate_mbit"],
            after_ms=condition["after_ms"],
            collision=data["by occurrence"],
            ids_bytes=ID * events,
            row_bytes=FLOAT * shape["width"] * events,
            collision_row_bytes=data["row bytes"],
            collision_gradient_bytes=data["gradient bytes"],
            steps_ms={mode: _median_ms(rounds) for mode, rounds in block["answers"].items()},
        )


def _median_ms(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """The median over rounds of the mean over ranks."""
    return statistics.median(statistics.mean(1e3 * answer["step_s"] for answer in ranks) for ranks in rounds.values())
