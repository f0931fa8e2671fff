"""Where the time of training steps went: pure arithmetic on instants that the ranks noted.

A step's seconds are data + waits + compute. A wait is split in two: as long as some rank had not yet issued its part of
the exchange, bytes could not have arrived, so that part is waiting for a *straggler*; the rest is *exposed*
communication. Letters: W ranks, R rounds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VERSION = 2
_WAITED_S = 50e-6  # a shorter wait may have found the exchange ended
PASSES = ("forward", "backward", "lookup", "update")
"""Of the model, and inside them of TorchRec's tables."""
KINDS = ("ids", "embeddings", "gradients", "dense", "other")
"""ids, embeddings forward, embedding gradients backward, dense gradients, and what the loop itself exchanges."""


class Exchange(NamedTuple):
    """One exchange, which ranks know again: those of one `group` are issued in the same order on all that take part."""

    group: str
    step: int
    """In which it was issued."""
    number: int
    """Among those of `group` in that step."""
    issued: float
    """In seconds of its rank's clock."""
    size: int | None = None
    """Bytes that this rank gave to it, its own part included; None if not known."""


class Wait(NamedTuple):
    """One wait of the training thread, in seconds of its rank's clock."""

    kind: str
    exchange: Exchange
    begin: float
    end: float
    in_pull: bool
    """While the next batch was being fetched."""


class Pass(NamedTuple):
    """One run of a part of the model (PASSES) on the training thread, in seconds of its rank's clock."""

    kind: str
    begin: float
    end: float
    rows: int
    """Ids that were looked up or whose rows were updated; 0 for forward and backward."""


@dataclass(slots=True)
class Timeline:
    """One step of one rank, in seconds of its clock; while the step runs, instants are marks of that clock."""

    step: int
    begin: Any
    """The batch was asked for."""
    pulled: Any = None
    """The batch was there."""
    end: Any = None
    waits: list[Wait] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)
    """Exchanges of the step: kind, and bytes that this rank gave."""
    lengths: Mapping[str, Any] = field(default_factory=dict)
    """Sequence -> (lengths of the samples, ascending; how many samples have each); while the step runs, of each."""


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
        for rank, lines in ranks.items():
            for wait in (wait for line in lines for wait in line.waits):
                key = wait.exchange[:3]
                last[key] = max(last.get(key, -np.inf), wait.exchange.issued + offsets[rank])
    steps = []
    for rank, lines in ranks.items():
        for line in lines:
            ready = None
            if offsets is not None:
                ready = [last[wait.exchange[:3]] - offsets[rank] for wait in line.waits]
            steps.append(_split(rank, line, ready))
    return sorted(steps, key=lambda step: (step.step, step.rank))


def _split(rank: int, line: Timeline, ready: Sequence[float] | None) -> StepTimes:
    """`ready`: when the last rank had given its part of each wait, in the clock of this rank."""
    exposed = dict.fromkeys(KINDS, 0.0)
    late, in_pull, in_step = 0.0, 0.0, 0.0
    for i, wait in enumerate(line.waits):
        seconds = wait.end - wait.begin
        late_here = 0.0 if ready is None else max(min(wait.end, ready[i]) - wait.begin, 0.0)
        exposed[wait.kind] += seconds - late_here
        late += late_here
        if wait.in_pull:
            in_pull += seconds
        else:
            in_step += seconds
    seconds = line.end - line.begin
    data = line.pulled - line.begin - in_pull
    return StepTimes(
        step=line.step,
        rank=rank,
        seconds=seconds,
        compute=seconds - data - in_pull - in_step,
        data=data,
        exposed=exposed,
        straggler=None if ready is None else late,
        passes=_passes(line),
        lengths=line.lengths,
        sent=_sums(line.sent),
        transfers=() if ready is None else tuple(_transfers(line, ready)),
    )


def _passes(line: Timeline) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for one in line.passes:
        waited = sum(max(min(wait.end, one.end) - max(wait.begin, one.begin), 0.0) for wait in line.waits)
        seconds, rows = found.get(one.kind, (0.0, 0))
        found[one.kind] = (seconds + one.end - one.begin - waited, rows + one.rows)
    return found


def _sums(sent: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for kind, size in sent:
        number, before = found.get(kind, (0, 0))
        found[kind] = (number + 1, before + size)
    return found


def _transfers(line: Timeline, ready: Sequence[float]) -> Iterable[Transfer]:
    """Exchanges of known size that ended while the thread waited. Of others, the end is not known."""
    for wait, complete in zip(line.waits, ready, strict=True):
        if wait.exchange.size and wait.end - wait.begin > _WAITED_S:
            seconds = wait.end - max(complete, wait.exchange.issued)
            yield Transfer(wait.kind, wait.exchange.size, max(seconds, 0.0))
