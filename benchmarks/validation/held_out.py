"""Predicts the held-out steps of `benchmarks/held_out.py` by `durations.work`, and says how far off it is.

What all-to-alls reach of the links was measured by themselves (`benchmarks/links.py`). Fitted on the sections that are
named so: the time of the plain loop that is not the wire's (taken as look-ups and updates, half and half), and what
prioritized communication takes of the training thread. All
ranks share the cores of one machine, so look-ups, updates and that cost take time in proportion to the number of ranks.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.model.durations import step
from freescale_tools.model.hardware import Hardware, load_hardware
from freescale_tools.model.simulation import FACTORS, MODEL
from freescale_tools.model.workload import METHODS, Workload
from validation.comparison import fitted_row, row

WAY = {"plain": "plain", "sparse dist": "sparse dist", "fscomm": "prioritized"}
MEDIAN, WORST = 0.15, 0.30
"""Goals for the relative errors of exposed time."""
INSIDE = 0.9
"""Goal for the share of measurements inside the 90 % interval."""
_DRAWS = 200
_LEAST_BYTES = 1 << 20  # what loops exchange is larger
_OWN_MS = np.arange(0, 40, 0.5).tolist()
_RANKS = 4  # of the sections that are fitted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    fitted: bool
    ranks: int
    load: Workload
    """Without look-ups and updates."""
    mbit: float
    reached: float
    """Share of the rate that all-to-alls of as many ranks reach: the slowest of 1 MiB or more (`benchmarks/links.py`).
    """
    exposed_ms: Mapping[str, float]

    @property
    def moved(self) -> float:
        """Bytes that leave a rank of a plain loop in a step."""
        return (8 + 8 * self.load.dim) * self.load.events * (self.ranks - 1) / self.ranks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Of `_RANKS` ranks and rows of 128 floats. part_ms: what one more part of a step takes."""

    lookup_ms: float
    own_ms: float
    part_ms: float = 0.0


def against_held_out(measured: Mapping[str, Any], links: Mapping[str, Any]) -> dict[str, Any]:
    """{fits, rows, notes, summary, inside} of two records: every section and mode."""
    sections = list(read_sections(measured, links))
    fit = fitted(sections)
    rows: list[dict[str, Any]] = []
    inside: list[bool] = []
    errors: dict[str, list[float]] = {}
    for section in sections:
        for mode, exposed in section.exposed_ms.items():
            found = predicted(section, mode, fit)
            what = f"exposed, {section.name}, {mode}"
            if section.fitted:
                rows.append(fitted_row(what, "ms", exposed, found))
                continue
            low, high = interval(section, mode, fit)
            inside.append(low <= exposed <= high)
            one = row(what, "ms", exposed, found, within=WORST)
            errors.setdefault(mode, []).append(abs(one["error"]))
            rows.append({**one, "low": low, "high": high})
    summary = {mode: {"median": statistics.median(found), "worst": max(found)} for mode, found in errors.items()}
    return {
        "fits": [
            {"name": "look-ups", "value": fit.lookup_ms, "unit": "ms, updates as much", "on": "plain loops"},
            {"name": "fscomm's own cost", "value": fit.own_ms, "unit": "ms", "on": "fscomm's steps"},
        ],
        "rows": rows,
        "notes": [
            *(
                f"{mode}: error {found['median']:.0%} in the median (goal {MEDIAN:.0%}), {found['worst']:.0%} at worst "
                f"(goal {WORST:.0%})."
                for mode, found in summary.items()
            ),
            f"{statistics.mean(inside):.0%} of the held-out figures are inside their interval (goal {INSIDE:.0%}).",
        ],
        "summary": summary,
        "inside": statistics.mean(inside),
    }


def fitted(sections: Iterable[Section]) -> Fit:
    """By the sections that are for it."""
    sections = [section for section in sections if section.fitted]
    rest = [
        section.exposed_ms["plain"] - 8e-3 * section.moved / (section.reached * section.mbit) for section in sections
    ]
    without = Fit(lookup_ms=max(statistics.median(rest), 0.0) / 2, own_ms=0.0)

    def error(own_ms: float) -> float:
        fit = dataclasses.replace(without, own_ms=own_ms)
        return sum(
            abs(math.log(predicted(section, "fscomm", fit) / section.exposed_ms["fscomm"])) for section in sections
        )

    return dataclasses.replace(without, own_ms=min(_OWN_MS, key=error))


def predicted(section: Section, mode: str, fit: Fit) -> float:
    """Milliseconds of exposed communication."""
    return float(simulated(section, mode, fit)["bubbles"]["exposed_ms"])


def simulated(section: Section, mode: str, fit: Fit) -> dict[str, Any]:
    """A steady step, as `timeline` gives it."""
    shared = section.ranks / _RANKS
    lookup = shared * fit.lookup_ms * section.load.dim / 128
    part = shared * fit.part_ms
    alone = (section.load.compute_ms or 0.0) - part  # which was measured in one part
    load = dataclasses.replace(section.load, lookup_ms=lookup, apply_ms=lookup, compute_ms=alone, fixed_ms=part)
    hardware = dataclasses.replace(
        _HARDWARE, network=section.reached * section.mbit / 8e3, own_cost=shared * fit.own_ms
    )
    way, parts = way_of(mode)
    return step(hardware, load, way, ranks=section.ranks, parts=parts)


def way_of(mode: str) -> tuple[str, int]:
    """Of a mode such as "fscomm in 4 parts": the way that predicts it, and the number of parts."""
    kind, _, parts = mode.partition(" in ")
    return WAY[kind], int(parts.removesuffix(" parts") or 1)


def interval(section: Section, mode: str, fit: Fit, *, seed: int = 0) -> tuple[float, float]:
    """90 % of draws that move what was measured, fitted or assumed within the factors of a verdict."""
    generator = np.random.default_rng(seed)
    model = MODEL[way_of(mode)[0] == "prioritized"]

    def within(factor: float) -> float:
        return float(factor ** generator.uniform(-1, 1))

    drawn = []
    for _ in range(_DRAWS):
        changed = Fit(
            lookup_ms=fit.lookup_ms * within(FACTORS["assumed"]),  # the split, and the share of the cores
            own_ms=fit.own_ms * within(FACTORS["assumed"]),
        )
        measured = within(FACTORS["measured"])
        rates = {at: min(rate * measured, 1.0) for at, rate in section.load.collisions.items()}
        other = dataclasses.replace(
            section,
            load=dataclasses.replace(section.load, collisions=rates),
            reached=section.reached * within(FACTORS["measured"]),
        )
        drawn.append(predicted(other, mode, changed) * within(model))
    low, high = np.percentile(drawn, (5, 95))
    return float(low), float(high)


def _hardware() -> Hardware:
    nothing = dict.fromkeys(
        ("exchange_latency", "peer_latency", "id_metadata", "kernel_floor", "contention", "memory_contention"), 0.0
    )
    return dataclasses.replace(
        load_hardware("h100-ib"), gpus_per_host=1, gpus_per_nvlink=1, gpus_per_leaf=1, loader=1e9, host_network=1e9,
        exchange_efficiency=1.0, **nothing,
    )  # fmt: skip


_HARDWARE = _hardware()


def _shares_reached(links: Mapping[str, Any]) -> dict[tuple[int, float], float]:
    """(ranks, Mbit/s) -> share of the rate."""
    found: dict[tuple[int, float], float] = {}
    for line in links["rows"]:
        if line["bytes a rank gives"] >= _LEAST_BYTES:
            at = line["ranks"], line["Mbit/s"]
            found[at] = min(found.get(at, 1.0), line["share of the rate"])
    return found


def read_sections(measured: Mapping[str, Any], links: Mapping[str, Any]) -> Iterator[Section]:
    """Of a record of `benchmarks/held_out.py` or `benchmarks/exposed.py`, and one of `benchmarks/links.py`."""
    reached = _shares_reached(links)
    for block in measured["extra"]["blocks"]:
        condition, data = block["condition"], block["data"]
        shape, ranks = condition["shape"], condition["ranks"]
        alone = _steps_ms(block["answers"]["compute"])
        rate = data["by occurrence"]
        load = Workload(
            batch_size=shape["samples"],
            events=len(shape["sharding"]) * shape["samples"] * shape["ids_per_sample"],
            flops=1.0,
            dim=shape["width"],
            dense_parameters=0,
            time_lost={(ranks, method): 0.0 for method in METHODS},
            compute_ms=statistics.median(alone.values()),
            collisions={ranks: rate},
            distinct=data["distinct"],
            colliding_distinct=min(data["distinct"] * data["by distinct row"] / rate, 1.0) if rate else 1.0,
        )
        yield Section(
            name=condition["name"],
            fitted=condition["name"].startswith("fitted on"),
            ranks=ranks,
            load=load,
            mbit=condition["rate_mbit"],
            reached=reached[ranks, condition["rate_mbit"]],
            exposed_ms={
                mode: statistics.median(step - alone[at] for at, step in _steps_ms(block["answers"][mode]).items())
                for mode in block["answers"]
                if mode != "compute"
            },
        )


def _steps_ms(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Round -> mean over ranks."""
    return {at: statistics.mean(1e3 * answer["step_s"] for answer in ranks) for at, ranks in rounds.items()}
