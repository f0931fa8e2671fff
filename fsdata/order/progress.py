"""Where a job stands in its data, and what a saved state must agree with.

The state is that of the job, not of a rank: every rank knows how many rows every rank has passed, because the plan says
so or because the ranks tell each other at every step. So any rank's state will do, and any number of ranks can load it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fsdata.errors import StateError
from fsdata.order.deal import deal_again
from fsdata.order.stream import Stream
from fsranks.errors import shown

VERSION = 1

Positions = tuple[int, ...]


class SegmentState(Protocol):
    """What a place in data that is followed counts in: `fsdata.growing.segment`."""

    def state(self) -> dict[str, Any]:
        """JSON-able."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A place in the data.

    Attributes:
        epoch, step: the epoch, and the batches already yielded in it.
        history: the stretches of this epoch that ran on other numbers of ranks: the rows each rank had passed when the
            rest was dealt again.
        positions: rows that each rank has passed since.
        tuning: state of the planner (AutoTune, the choice of a method), or None.
        segment: of data that is followed, what `history` and `positions` count in.
    """

    epoch: int
    step: int
    history: tuple[Positions, ...]
    positions: Positions
    tuning: dict[str, Any] | None = None
    segment: Any = None

    @classmethod
    def start(cls, epoch: int, world_size: int, tuning: dict[str, Any] | None = None) -> "Progress":
        return cls(epoch=epoch, step=0, history=(), positions=(0,) * world_size, tuning=tuning)

    def moved(self, passed: Sequence[int], steps: int = 0, tuning: dict[str, Any] | None = None) -> "Progress":
        """The place after so many rows more of every rank, and so many steps."""
        positions = tuple(before + more for before, more in zip(self.positions, passed, strict=True))
        return Progress(
            epoch=self.epoch,
            step=self.step + steps,
            history=self.history,
            positions=positions,
            tuning=tuning,
            segment=self.segment,
        )

    def on(self, world_size: int) -> "Progress":
        """The same place, seen by `world_size` ranks."""
        if len(self.positions) == world_size:
            return self
        history = (*self.history, self.positions) if any(self.positions) else self.history
        return replace(self, history=history, positions=(0,) * world_size, tuning=None)

    def extended(self, segment: SegmentState, world_size: int) -> "Progress":
        """The same place, the first of a further segment."""
        return replace(self, segment=segment, history=(), positions=(0,) * world_size)

    def streams(self, first: Sequence[Stream], world_size: int) -> list[Stream]:
        """The streams that `positions` count in; `first` are the epoch's, dealt to the first stretch's ranks."""
        streams = list(first)
        sizes = [*(len(positions) for positions in self.history[1:]), world_size]
        for positions, size in zip(self.history, sizes, strict=False):
            streams = deal_again(streams, positions, size)
        return streams

    @property
    def first_world_size(self) -> int:
        return len((*self.history, self.positions)[0])


def to_state(progress: Progress, fingerprint: dict[str, str]) -> dict[str, Any]:
    """A small JSON-able dict, the same on every rank.

    tuning: `StepPlanner.state_dict`. fingerprint: that of `Dataset`. follow: `Segment.state`, of data that is followed.
    """
    return {
        "version": VERSION,
        "epoch": progress.epoch,
        "step": progress.step,
        "history": [list(positions) for positions in progress.history],
        "positions": list(progress.positions),
        "tuning": progress.tuning,
        "fingerprint": dict(fingerprint),
        **({} if progress.segment is None else {"follow": progress.segment.state()}),
    }


def from_state(
    state: dict[str, Any],
    fingerprint: dict[str, str],
    segment_of: Callable[[dict[str, Any]], SegmentState] | None = None,
) -> Progress:
    """Read a state back; StateError if it is of another version or belongs to other data or another order.

    segment_of: reads the segment of data that is followed.
    """
    if not isinstance(state, dict) or "version" not in state:
        raise StateError(f"not a loader state: {_short(state)}. Pass what state_dict() returned")
    if state["version"] != VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this fsdata reads version {VERSION}: "
            "resume with the release that wrote it, or start the epoch anew"
        )
    try:
        saved = dict(state["fingerprint"])
        progress = Progress(
            epoch=int(state["epoch"]),
            step=int(state["step"]),
            history=tuple(tuple(map(int, positions)) for positions in state["history"]),
            positions=tuple(map(int, state["positions"])),
            tuning=state["tuning"],
            segment=segment_of(state["follow"]) if segment_of is not None and "follow" in state else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state is damaged ({error!r}): {_short(state)}") from error
    items = [(item, saved.get(item, "nothing"), fingerprint.get(item, "nothing")) for item in {**saved, **fingerprint}]
    different = [
        f"{item}: saved {shown(str(old), new)}, now {shown(new, str(old))}"
        for item, old, new in sorted(items)
        if old != new
    ]
    if different:
        raise StateError(
            "the state belongs to another run; resuming would repeat or miss samples:\n  "
            + "\n  ".join(different)
            + "\nUse the same sources, schema, seed and order, or start a new epoch without the state"
        )
    if not progress.positions or min(progress.positions) < 0 or progress.epoch < 0:
        raise StateError(f"the state is damaged: {_short(state)}")
    return progress


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
