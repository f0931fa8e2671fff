"""Where the time of training steps went: pure arithmetic on instants that the ranks noted.

A step's seconds are data + waits + compute. A wait is split in two: as long as some rank had not yet issued its part of
the exchange, bytes could not have arrived, so that part is waiting for a *straggler*; the rest is *exposed*
communication. Letters: W ranks, R rounds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VERSION = 1
KINDS = ("ids", "embeddings", "gradients", "dense", "other")
"""ids, embeddings forward, embedding gradients backward, dense gradients, and what the loop itself exchanges."""


class Wait(NamedTuple):
    """One wait of the training thread, in seconds of its rank's clock."""

    kind: str
    group: str
    """Exchanges of one `group` are issued in the same order on all ranks that take part."""
    issued_in: int
    """The step in which the exchange was issued, and its number among those of `group` in that step."""
    number: int
    issued: float
    begin: float
    end: float
    in_pull: bool
    """While the next batch was being fetched."""


class Timeline(NamedTuple):
    """One step of one rank: from `begin`, when the batch was asked for, over `pulled`, when it was there, to `end`."""

    step: int
    begin: float
    pulled: float
    end: float
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step on one rank; all parts add up to `seconds`."""

    step: int
    rank: int
    seconds: float
    compute: float
    """Everything that is not one of the others."""
    data: float
    """Waiting for the loader."""
    exposed: Mapping[str, float]
    """Waiting for bytes, by kind (KINDS)."""
    straggler: float | None
    """Waiting for a rank that came later; None where ranks were not compared, and then within `exposed`."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "rank": self.rank,
            "seconds": self.seconds,
            "compute_s": self.compute,
            "data_s": self.data,
            "straggler_s": self.straggler,
            "exposed_s": dict(self.exposed),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleReport:
    """The steps of every rank, or of one. `str()` is a table of means per rank."""

    world_size: int
    steps: tuple[StepTimes, ...]

    @property
    def ranks(self) -> list[int]:
        return sorted({step.rank for step in self.steps})

    def mean(self, *, rank: int | None = None) -> dict[str, float]:
        """Mean seconds per step of each part over the steps of `rank`, or of all: `seconds`, `compute`, `data`,
        `straggler`, and the kinds. ValueError if there is no such step.
        """
        steps = [step for step in self.steps if rank is None or step.rank == rank]
        if not steps:
            of = "" if rank is None else f" of rank {rank}; there are those of {self.ranks}"
            raise ValueError(f"no measured step{of}")
        parts = {
            "seconds": [step.seconds for step in steps],
            "compute": [step.compute for step in steps],
            "data": [step.data for step in steps],
            **{kind: [step.exposed.get(kind, 0.0) for step in steps] for kind in KINDS},
            "straggler": [step.straggler or 0.0 for step in steps],
        }
        return {part: float(np.mean(values)) for part, values in parts.items()}

    @property
    def bubble(self) -> float:
        """Share of all ranks' time that is not compute, 0..1."""
        mean = self.mean()
        return 1 - mean["compute"] / mean["seconds"] if mean["seconds"] else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: a list of steps, each with `step`, `rank`, `seconds` and its parts."""
        return {"version": VERSION, "world_size": self.world_size, "steps": [step.to_dict() for step in self.steps]}

    def save(self, path: str | Path) -> None:
        """Write `to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict()))

    def __str__(self) -> str:
        if not self.steps:
            return "bubble meter: no complete step"
        means = {str(rank): self.mean(rank=rank) for rank in self.ranks}
        if len(means) > 1:
            means["all"] = self.mean()
        lines = [
            f"milliseconds per step, mean of {len(self.steps) // len(self.ranks)} steps",
            "rank".ljust(6) + "".join(f"{part if part != 'seconds' else 'step':>12}" for part in self.mean()),
        ]
        lines += [name.ljust(6) + "".join(f"{s * 1e3:>12.2f}" for s in mean.values()) for name, mean in means.items()]
        lines.append(f"not compute: {self.bubble:.1%}")
        if self.world_size > 1 and any(step.straggler is None for step in self.steps):
            lines.append("of one rank: waiting for late ranks is within the kinds")
        return "\n".join(lines)


def align(begins: np.ndarray, ends: np.ndarray) -> list[float]:
    """Seconds to add to each rank's clock to get rank 0's, from when ranks entered and left the same barriers.

    Args:
        begins, ends: float64 [W, R], each in the clock of its rank.

    Nobody leaves a barrier before the last has entered: that bounds the offset from both sides, and the middle is at
    most half a barrier wrong. A bound that holds 0 means the same clock (same machine), which is then exact.
    """
    offsets = []
    for begin, end in zip(begins, ends, strict=True):
        highest = float((ends[0] - begin).min())
        lowest = float((begins[0] - end).max())
        offsets.append(0.0 if lowest <= 0 <= highest else (lowest + highest) / 2)
    return offsets


def attribute(ranks: Mapping[int, Sequence[Timeline]], offsets: Sequence[float] | None) -> list[StepTimes]:
    """Split every step of every rank, in order of step and rank; without `offsets`, stragglers are not told apart."""
    last: dict[tuple[str, int, int], float] = {}
    if offsets is not None:
        for rank, timelines in ranks.items():
            for wait in _waits(timelines):
                key = (wait.group, wait.issued_in, wait.number)
                last[key] = max(last.get(key, -np.inf), wait.issued + offsets[rank])
    steps = []
    for rank, timelines in ranks.items():
        for timeline in timelines:
            late = {}
            if offsets is not None:
                for wait in timeline.waits:
                    ready = last[wait.group, wait.issued_in, wait.number] - offsets[rank]
                    late[wait] = max(min(wait.end, ready) - wait.begin, 0.0)
            steps.append(_split(rank, timeline, late if offsets is not None else None))
    return sorted(steps, key=lambda step: (step.step, step.rank))


def _waits(timelines: Iterable[Timeline]) -> Iterable[Wait]:
    return (wait for timeline in timelines for wait in timeline.waits)


def _split(rank: int, timeline: Timeline, late: Mapping[Wait, float] | None) -> StepTimes:
    exposed = dict.fromkeys(KINDS, 0.0)
    waited = {True: 0.0, False: 0.0}
    for wait in timeline.waits:
        exposed[wait.kind] += wait.end - wait.begin - (late[wait] if late is not None else 0.0)
        waited[wait.in_pull] += wait.end - wait.begin
    seconds = timeline.end - timeline.begin
    data = timeline.pulled - timeline.begin - waited[True]
    return StepTimes(
        step=timeline.step,
        rank=rank,
        seconds=seconds,
        compute=seconds - data - waited[True] - waited[False],
        data=data,
        exposed=exposed,
        straggler=sum(late.values()) if late is not None else None,
    )
