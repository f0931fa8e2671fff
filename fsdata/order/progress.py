"""The position of a job in its data, and its saved state. What a state is compared with: `fsdata.order.changes`.

A state belongs to the job, not to a rank: every rank knows how many rows every rank has passed, from the plan or from
the status words of every step. The states of all ranks are equal, and any number of ranks can load one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fsdata.errors import StateError
from fsdata.order.deal import deal_again
from fsdata.order.mixture import Weights
from fsdata.order.stream import Stream

VERSION = 1

Positions = tuple[int, ...]

Remix = Callable[[Sequence[Stream], Weights, int], list[Stream]]
"""(the rest of every rank, new weights, number of ranks) -> the streams of the rest, see `fsdata.order.mixture`."""


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
        mixes: if the mix changed within the epoch: (0, the weights at its begin), then for every change (how many
            entries of `history` precede it, the weights since then).
    """

    epoch: int
    step: int
    history: tuple[Positions, ...]
    positions: Positions
    tuning: dict[str, Any] | None = None
    segment: Any = None
    mixes: tuple[tuple[int, Weights], ...] = ()

    @classmethod
    def start(cls, epoch: int, world_size: int, tuning: dict[str, Any] | None = None) -> "Progress":
        return cls(epoch=epoch, step=0, history=(), positions=(0,) * world_size, tuning=tuning)

    def moved(self, passed: Sequence[int], steps: int = 0, tuning: dict[str, Any] | None = None) -> "Progress":
        """The position after `steps` more steps and `passed` more rows of each rank."""
        positions = tuple(before + more for before, more in zip(self.positions, passed, strict=True))
        return replace(self, step=self.step + steps, positions=positions, tuning=tuning)

    def skipped(self, left: np.ndarray, steps: int, *, batch_size: int, drop_last: bool) -> tuple["Progress", int]:
        """(the position after at most `steps` more steps, how many these are), where no row drops out.

        left: int64 [W], rows of every rank behind this position.
        """
        # As `Steps.counts`: every rank has `batch_size` rows, fewer in the last step.
        of_epoch = int(left.min()) // batch_size if drop_last else -(-int(left.max()) // batch_size)
        taken = min(steps, of_epoch)
        return self.moved(np.minimum(left, taken * batch_size).tolist(), taken, self.tuning), taken

    def on(self, world_size: int) -> "Progress":
        """The same position for `world_size` ranks."""
        if len(self.positions) == world_size:
            return self
        return replace(self._dealt_again(world_size), tuning=None)

    def _dealt_again(self, world_size: int) -> "Progress":
        # Positions that are all 0 are left out: the rest is dealt as if the job had not run on these ranks.
        history = (*self.history, self.positions) if any(self.positions) else self.history
        return replace(self, history=history, positions=(0,) * world_size)

    def extended(self, segment: SegmentState, world_size: int) -> "Progress":
        """The same epoch and step, at the start of a further segment."""
        return replace(self, segment=segment, history=(), positions=(0,) * world_size)

    def mixed(self, before: Weights, weights: Weights) -> "Progress":
        """The same position, from which on the rows left are mixed by other weights. before: those until now."""
        if self.at_begin:
            return replace(self, mixes=())
        dealt = self._dealt_again(len(self.positions))
        at = len(dealt.history)
        # A mix of which no row was read leaves nothing behind.
        earlier = tuple(each for each in self.mixes or ((0, before),) if each[0] < at)
        return replace(dealt, mixes=(*earlier, (at, weights)))

    @property
    def at_begin(self) -> bool:
        """Whether no row of the epoch was passed."""
        return not self.history and not any(self.positions)

    @property
    def passed(self) -> int:
        """Rows of the epoch that all ranks have passed."""
        return sum(map(sum, (*self.history, self.positions)))

    def streams(self, first: Sequence[Stream], world_size: int, remix: Remix | None = None) -> list[Stream]:
        """The streams that `positions` refer to. first: the epoch dealt to the ranks of its first run."""
        streams, mixes = list(first), dict(self.mixes)
        # The rest after run i is dealt to the ranks of run i + 1, the last one to those of now.
        sizes = [*(len(positions) for positions in self.history[1:]), world_size]
        for number, (positions, size) in enumerate(zip(self.history, sizes, strict=False), start=1):
            if number in mixes:
                assert remix is not None
                rest = [stream.after(position) for stream, position in zip(streams, positions, strict=True)]
                streams = remix(rest, mixes[number], size)
            else:
                streams = deal_again(streams, positions, size)
        return streams

    @property
    def first_world_size(self) -> int:
        return len((*self.history, self.positions)[0])


def to_state(progress: Progress, fingerprint: dict[str, str], run: dict[str, Any] | None = None) -> dict[str, Any]:
    """A small JSON-able dict, the same on every rank.

    fingerprint: that of `Dataset`. run: what the fingerprint has only a digest of, or nothing: the `weights`, the
    `batch_size`, the `rows` of an epoch whose mix has changed.
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
        **({} if run is None else {"run": run}),
        **({"mixes": [[at, list(weights)] for at, weights in progress.mixes]} if progress.mixes else {}),
    }


def parsed(
    state: dict[str, Any], segment_of: Callable[[dict[str, Any]], SegmentState] | None = None
) -> tuple[Progress, dict[str, str], dict[str, Any]]:
    """(position, fingerprint, `run` of `to_state`) of a state. StateError if it is none, or has another version.

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
        progress = Progress(
            epoch=int(state["epoch"]),
            step=int(state["step"]),
            history=tuple(tuple(map(int, positions)) for positions in state["history"]),
            positions=tuple(map(int, state["positions"])),
            tuning=state["tuning"],
            segment=segment_of(state["follow"]) if segment_of is not None and "follow" in state else None,
            mixes=tuple((int(at), weights_of(weights)) for at, weights in state.get("mixes", ())),
        )
        fingerprint, run = dict(state["fingerprint"]), dict(state.get("run", {}))
        if "weights" in run:
            run["weights"] = weights_of(run["weights"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state is damaged ({error!r}): {_short(state)}") from error
    if not progress.positions or min(progress.positions) < 0 or progress.epoch < 0:
        raise StateError(f"the state is damaged: {_short(state)}")
    return progress, fingerprint, run


def weights_of(weights: Sequence[Any]) -> Weights:
    """Raises TypeError or ValueError unless these are weights."""
    found = tuple(weights)  # numbers stay as they are: the fingerprint of a source tells 2 from 2.0
    if any(weight is not None and not 0 <= weight < float("inf") for weight in found):
        raise ValueError(f"weights {found}")
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
