"""The position of a job in its data, and the check of a saved state.

A state belongs to the job, not to a rank: every rank knows how many rows every rank has passed, from the plan or from
the status words of every step. The states of all ranks are equal, and any number of ranks can load one.
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
    """The segment of a followed folder to which positions refer: `fsdata.growing.segment`."""

    def state(self) -> dict[str, Any]:
        """JSON-able."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A position in the data.

    Attributes:
        epoch, step: the epoch, and the batches already yielded in it.
        history: earlier runs of this epoch on other numbers of ranks: the rows that each rank had passed when the
            rest was dealt again.
        positions: rows that each rank has passed since then.
        tuning: state of the planner (AutoTune, the choice of a method), or None.
        segment: the segment that `history` and `positions` refer to; None unless a folder is followed.
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
        """The position after `steps` more steps and `passed` more rows of each rank."""
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
        """The same position for `world_size` ranks."""
        if len(self.positions) == world_size:
            return self
        # Positions that are all 0 are left out: the rest is dealt as if the job had not run on these ranks.
        history = (*self.history, self.positions) if any(self.positions) else self.history
        return replace(self, history=history, positions=(0,) * world_size, tuning=None)

    def extended(self, segment: SegmentState, world_size: int) -> "Progress":
        """The same epoch and step, at the start of a further segment."""
        return replace(self, segment=segment, history=(), positions=(0,) * world_size)

    def streams(self, first: Sequence[Stream], world_size: int) -> list[Stream]:
        """The streams that `positions` refer to. first: the epoch dealt to the ranks of its first run."""
        streams = list(first)
        # The rest after run i is dealt to the ranks of run i + 1, the last one to those of now.
        sizes = [*(len(positions) for positions in self.history[1:]), world_size]
        for positions, size in zip(self.history, sizes, strict=False):
            streams = deal_again(streams, positions, size)
        return streams

    @property
    def first_world_size(self) -> int:
        return len((*self.history, self.positions)[0])


def to_state(progress: Progress, fingerprint: dict[str, str]) -> dict[str, Any]:
    """A small JSON-able dict, the same on every rank. fingerprint: that of `Dataset`."""
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
    """Read a state back; StateError if it has another version or belongs to other data or another order.

    segment_of: reads the segment, where a folder is followed.
    """
    if not isinstance(state, dict) or "version" not in state:
        raise StateError(f"not a loader state: {_short(state)}. Pass what state_dict() returned")
    if state["version"] != VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this fsdata reads version {VERSION}: "
            "resume with the release that wrote it, or restart the epoch"
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
    # Items of both sides: one that only this run has (an option of a newer release) must be reported, too.
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
