"""Where the time of training steps went: pure arithmetic on instants that the ranks noted.

A step's seconds are data + waits + compute. A wait is split in two: as long as some rank had not yet issued its part of
the exchange, bytes could not have arrived, so that part is waiting for a *straggler*; the rest is *exposed*
communication. Letters: W ranks, R rounds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

VERSION = 2
_WAITED_S = 50e-6  # a shorter wait may have found the exchange ended
PASSES = ("forward", "backward", "lookup", "update")
"""Of the model, and inside them of TorchRec's tables."""
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
    size: int | None = None
    """Bytes that this rank gave to the exchange, its own part included; None if not known."""


class Pass(NamedTuple):
    """One run of a part of the model (PASSES) on the training thread, in seconds of its rank's clock."""

    kind: str
    begin: float
    end: float
    rows: int
    """Ids that were looked up or whose rows were updated; 0 for forward and backward."""


class Timeline(NamedTuple):
    """One step of one rank: from `begin`, when the batch was asked for, over `pulled`, when it was there, to `end`."""

    step: int
    begin: float
    pulled: float
    end: float
    waits: tuple[Wait, ...]
    passes: tuple[Pass, ...] = ()
    lengths: Mapping[str, tuple[list[int], list[int]]] = MappingProxyType({})
    """Sequence -> (lengths of the samples, ascending; how many samples have each)."""
    sent: tuple[tuple[str, int], ...] = ()
    """Exchanges of the step: kind, and bytes that this rank gave."""


class Transfer(NamedTuple):
    """One exchange whose end the training thread waited for."""

    kind: str
    size: int
    """Bytes that this rank gave, its own part included."""
    seconds: float
    """From when the last rank had given its part until the wait ended."""


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
    passes: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Kind (PASSES) -> seconds without waits, and rows. The seconds are within `compute`."""
    lengths: Mapping[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    """Sequence -> (lengths of the samples, ascending; how many samples have each)."""
    sent: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Kind (KINDS) -> exchanges, and bytes that this rank gave to them."""
    transfers: tuple[Transfer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "rank": self.rank,
            "seconds": self.seconds,
            "compute_s": self.compute,
            "data_s": self.data,
            "straggler_s": self.straggler,
            "exposed_s": dict(self.exposed),
            "passes_s": {kind: seconds for kind, (seconds, _) in self.passes.items()},
            "rows": {kind: rows for kind, (_, rows) in self.passes.items() if rows},
            "lengths": {
                name: {"lengths": lengths, "counts": counts} for name, (lengths, counts) in self.lengths.items()
            },
            "exchanges": {kind: number for kind, (number, _) in self.sent.items()},
            "bytes": {kind: size for kind, (_, size) in self.sent.items()},
            "transfers": [list(transfer) for transfer in self.transfers],
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
        """For JSON: a list of steps, each with `step`, `rank`, `seconds`, its parts, its lengths and its exchanges."""
        return {"version": VERSION, "world_size": self.world_size, "steps": [step.to_dict() for step in self.steps]}

    def save(self, path: str | Path) -> None:
        """Write `to_dict` as JSON, which `freescale calibrate` reads."""
        Path(path).write_text(json.dumps(self.to_dict(), separators=(",", ":")))

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
            ready: dict[Wait, float] = {}
            if offsets is not None:
                ready = {wait: last[wait.group, wait.issued_in, wait.number] - offsets[rank] for wait in timeline.waits}
            steps.append(_split(rank, timeline, ready if offsets is not None else None))
    return sorted(steps, key=lambda step: (step.step, step.rank))


def _waits(timelines: Iterable[Timeline]) -> Iterable[Wait]:
    return (wait for timeline in timelines for wait in timeline.waits)


def _split(rank: int, timeline: Timeline, ready: Mapping[Wait, float] | None) -> StepTimes:
    """`ready`: when the last rank had given its part, in the clock of this rank."""
    late = None
    if ready is not None:
        late = {wait: max(min(wait.end, ready[wait]) - wait.begin, 0.0) for wait in timeline.waits}
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
        passes=_passes(timeline),
        lengths=timeline.lengths,
        sent=_sums((kind, size) for kind, size in timeline.sent),
        transfers=tuple(_transfers(timeline, ready or {})),
    )


def _passes(timeline: Timeline) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for one in timeline.passes:
        waited = sum(max(min(wait.end, one.end) - max(wait.begin, one.begin), 0.0) for wait in timeline.waits)
        seconds, rows = found.get(one.kind, (0.0, 0))
        found[one.kind] = (seconds + one.end - one.begin - waited, rows + one.rows)
    return found


def _sums(sent: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for kind, size in sent:
        number, before = found.get(kind, (0, 0))
        found[kind] = (number + 1, before + size)
    return found


def _transfers(timeline: Timeline, ready: Mapping[Wait, float]) -> Iterable[Transfer]:
    """Exchanges of known size that ended while the thread waited. Of others, the end is not known."""
    for wait in timeline.waits:
        if wait.size and wait in ready and wait.end - wait.begin > _WAITED_S:
            yield Transfer(wait.kind, wait.size, max(wait.end - max(ready[wait], wait.issued), 0.0))
