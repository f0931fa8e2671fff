"""The two pictures of "How it works": what ranks compute, send and wait for in one step, with and without a remedy.

Balancing: the plans of `fsdata.pack` for a small global batch, in the time that the default cost model gives samples.
Communication: simulated steps of the model that `freescale profile` predicts with (`freescale_tools.model.step`), for
conditions that `benchmarks/exposed.py --parts` has measured, beside what was measured.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from validation.held_out import Fit, Section, simulated
from validation.parts import fitted_sections

from figures.records import listed, percent, record, table
from figures.svg import canvas, legend
from fsdata import Polynomial, pack

RANKS, SAMPLES, GIANT = 4, 4, 12_000  # ranks, samples of each, events of the one giant sample
_LEAST_MS = 0.05  # shorter waits are rounding
_MS = 1e-6  # of a unit of cost: a rank computes 2,000 events in 8 ms

COMPUTES, WAITS, COMPUTES_GIANT = "computes", "waits", "computes the giant sample"
ALL, SHARED, OTHERS = "ids, all rows, all gradients", "shared rows, their gradients", "other rows, their gradients"
_COLORS = {
    COMPUTES: "#90a4ae",
    WAITS: "#ffcdd2",
    COMPUTES_GIANT: "#8d6e63",
    ALL: "#5c6bc0",
    SHARED: "#ffb300",
    OTHERS: "#00897b",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """`label`: in the picture, where there is room."""

    what: str
    start_ms: float
    ms: float
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """One case: lane -> its pieces, in order of time."""

    title: str
    lanes: Mapping[str, tuple[Piece, ...]]

    @property
    def end_ms(self) -> float:
        return max(piece.start_ms + piece.ms for pieces in self.lanes.values() for piece in pieces)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """`docs/images/<name>.svg`: strips below each other, on one scale of time."""

    name: str
    strips: tuple[Strip, ...]

    def written(self) -> str:
        """Its numbers, as they stand in the file; of milliseconds one digit, which does not depend on the machine."""
        exact = json.dumps([asdict(strip) for strip in self.strips])
        return json.dumps(json.loads(exact, parse_float=lambda ms: round(float(ms), 1)), sort_keys=True)


@cache
def lengths() -> np.ndarray:
    """Events of the samples of a global batch [RANKS * SAMPLES], by the rank that reads them."""
    draw = np.random.default_rng(1)
    return draw.lognormal(np.log(2000), 0.8, RANKS * SAMPLES).astype(np.int64)


def balancing() -> Timeline:
    read, giant = lengths(), lengths().copy()
    giant[giant.argmax()] = GIANT
    home = np.repeat(np.arange(RANKS), SAMPLES)
    strips = (
        ("as the ranks read them", read, home),
        ("balanced", read, _planned(read)),
        (f"balanced, with one sample of {GIANT:,} events", giant, _planned(giant)),
    )
    return Timeline(name="how-balancing-works", strips=tuple(_ranks(*strip) for strip in strips))


def _costs(events: np.ndarray) -> np.ndarray:
    return Polynomial()({"events": events})


def _planned(events: np.ndarray) -> np.ndarray:
    return pack(_costs(events), RANKS).rank


def _ranks(title: str, events: np.ndarray, rank: np.ndarray) -> Strip:
    computes = np.bincount(rank, _costs(events) * _MS, RANKS)
    end = computes.max()
    lanes = {}
    for lane in range(RANKS):
        pieces, at = [], 0.0
        for length, cost in zip(events[rank == lane].tolist(), _costs(events)[rank == lane] * _MS, strict=True):
            what = COMPUTES_GIANT if length == GIANT else COMPUTES
            pieces.append(Piece(what=what, start_ms=at, ms=float(cost), label=f"{length:,}"))
            at += cost
        if end > at:
            pieces.append(Piece(what=WAITS, start_ms=float(at), ms=float(end - at)))
        lanes[f"rank {lane}"] = tuple(pieces)
    waits = 1 - computes.mean() / end
    return Strip(title=f"{title}: {end:.0f} ms, ranks wait for {100 * waits:.1f} % of it", lanes=lanes)


def communication() -> Timeline:
    few, many, fit = _conditions()
    strips = (
        ("plain loop", few, "plain"),
        ("TrainPipelineSparseDist", few, "sparse dist"),
        ("prioritized", few, "fscomm"),
        ("prioritized", many, "fscomm"),
        ("prioritized, in 4 parts", many, "fscomm in 4 parts"),
    )
    return Timeline(
        name="how-communication-works",
        strips=tuple(_step(title, section, mode, fit) for title, section, mode in strips),
    )


@cache
def _conditions() -> tuple[Section, Section, Fit]:
    """Those with the fewest and with the most shared rows, and what their predictions are fitted to."""
    records = (record(name).document for name in ("exposed_parts", "held_out", "links"))
    (few, *_, many), fit = fitted_sections(*records)
    return few, many, fit


_SENT = {
    "collision gradients": "gradients",
    "collision rows": "rows",
    "exclusive gradients": "gradients",
    "exclusive rows": "rows",
    "rows": "rows",
    "gradients": "gradients",
}


def _step(title: str, section: Section, mode: str, fit: Fit) -> Strip:
    step = simulated(section, mode, fit)
    compute, link = [], []
    for piece in step["timeline"]:
        if piece["lane"] == "compute" and piece["what"] != "own work":
            compute.append(Piece(what=COMPUTES, start_ms=piece["start_ms"], ms=piece["ms"], label=piece["what"]))
        elif piece["lane"] in ("network", "memory"):
            link.append(_sent(piece))
    lanes = {
        "compute": tuple(_with_waits(compute, step["step_ms"])),
        "link, tables": tuple(sorted(link, key=lambda each: each.start_ms)),
    }
    shared, exposed = section.load.collision(section.ranks), step["bubbles"]["exposed_ms"]
    of_ids = f", {percent(shared)} of the ids shared" if mode.startswith("fscomm") else ""
    waits = f"waits for {exposed:.0f} ms of it (measured: {section.exposed_ms[mode]:.0f} ms)"
    return Strip(title=f"{title}{of_ids}: {step['step_ms']:.0f} ms, {waits}", lanes=lanes)


def _sent(piece: Mapping[str, Any]) -> Piece:
    what = piece["what"]
    kind = SHARED if what.startswith("collision") else OTHERS if what.startswith("exclusive") else ALL
    return Piece(what=kind, start_ms=piece["start_ms"], ms=piece["ms"], label=_SENT.get(what, ""))


def _with_waits(pieces: list[Piece], end_ms: float) -> Iterator[Piece]:
    """From 0 to the end. What fscomm itself takes of the training thread counts as waiting, as it does where steps are
    measured."""
    at = 0.0
    for piece in (*sorted(pieces, key=lambda piece: piece.start_ms), Piece(what=WAITS, start_ms=end_ms, ms=0.0)):
        if piece.start_ms - at > _LEAST_MS:
            yield Piece(what=WAITS, start_ms=at, ms=piece.start_ms - at)
        if piece.ms:
            yield piece
        at = piece.start_ms + piece.ms


def batch() -> None:
    """The batch of the first picture."""
    costs, events = _costs(lengths()) * _MS, lengths()
    listed([
        f"{RANKS} ranks read {SAMPLES} samples each, of {events.min():,} to {events.max():,} events. With the default "
        f"cost model a sample of 2,000 events takes {_costs(np.array([2000]))[0] * _MS:.0f} ms, one of 4,000 "
        f"{_costs(np.array([4000]))[0] * _MS:.0f} ms.",
        f"A mean rank has {costs.sum() / RANKS:.1f} ms of work, so no plan is shorter than that.",
        f"One sample of {GIANT:,} events takes {_costs(np.array([GIANT]))[0] * _MS:.0f} ms: more than the work of a "
        "mean rank, so that all others wait for it, whatever the plan.",
    ])  # fmt: skip


def links() -> None:
    """The conditions of the second picture, and how far its predictions are off."""
    few, many, fit = _conditions()
    names = {"plain": "plain loop", "sparse dist": "TrainPipelineSparseDist", "fscomm": "prioritized"}
    rows = []
    for mode in ("plain", "sparse dist", "fscomm", "fscomm in 4 parts"):
        found = (
            f"{simulated(section, mode, fit)['bubbles']['exposed_ms']:.0f} ({section.exposed_ms[mode]:.0f})"
            for section in (few, many)
        )
        rows.append([names.get(mode, "prioritized, in 4 parts"), *found])
    shares = (f"{percent(section.load.collision(section.ranks))} of the ids shared" for section in (few, many))
    table(["waits of a step, ms: predicted (measured)", *shares], rows, record("exposed_parts"))


def draw(timeline: Timeline) -> None:
    shown = {piece.what for strip in timeline.strips for pieces in strip.lanes.values() for piece in pieces}
    lines = sum(len(strip.lanes) + 1.4 for strip in timeline.strips)
    with canvas(timeline.name, timeline.written(), panels=1, width=10, height=lines * 0.29 + 0.9) as (figure, (axis,)):
        end = max(strip.end_ms for strip in timeline.strips)
        at, ticks = 0.0, {}
        for strip in timeline.strips:
            axis.annotate(strip.title, (0, at), va="center", fontsize=10, fontweight="bold")
            at += 1
            for lane, pieces in strip.lanes.items():
                ticks[at] = lane
                for piece in pieces:
                    _piece(axis, piece, at, end)
                at += 1
            axis.vlines(strip.end_ms, at - len(strip.lanes) - 0.5, at - 0.5, color="black", linewidth=1.5)
            at += 0.4
        axis.set_yticks(list(ticks), list(ticks.values()))
        axis.set_ylim(at - 0.6, -0.7)
        axis.set_xlim(0, 1.02 * end)
        axis.set_xlabel("ms of a step")
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        legend(figure, {what: color for what, color in _COLORS.items() if what in shown})


def _piece(axis: Any, piece: Piece, at: float, end_ms: float) -> None:
    axis.barh(at, piece.ms, 0.8, left=piece.start_ms, color=_COLORS[piece.what], edgecolor="white", linewidth=0.6)
    label = piece.label or (f"{piece.ms:.0f}" if piece.what == WAITS else "")
    if label and piece.ms > 0.0085 * end_ms * len(label):
        axis.annotate(label, (piece.start_ms + piece.ms / 2, at), ha="center", va="center", fontsize=8)
