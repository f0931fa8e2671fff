"""Decides once for `Balance(method="auto")` whether moving nearly all samples takes too much of a step.

Free balancing moves about (W - 1) / W of all tokens. The transfer overlaps with the previous step, but it takes network
bandwidth from other traffic. The first steps are therefore balanced freely and timed. Where moving took more than a
tenth of the compute time, the job continues with a method that leaves most samples where they are.

The inputs are gathered from all ranks and all arithmetic is in integers, so every rank makes the same decision.
"""

from collections.abc import Sequence
from typing import Any

from fsdata.errors import StateError

_VERSION = 1
_WARM_UP = 2  # first steps, not counted: kernels are loaded, and buffers grow
_STEPS = 8  # timed steps that a decision needs
_SHARE = 10  # moving may take 1 / _SHARE of the compute time
_PATIENCE = 64  # steps after which missing reports are an error: without it the job would never decide


class MethodChoice:
    """Pure state machine: no clock, no communication."""

    def __init__(self) -> None:
        self.sparing: bool | None = None
        """Whether to use a method that moves few samples; None before the decision."""
        self._steps = 0
        self._moving: list[int] = []
        self._computing: list[int] = []

    def observe(self, moving_ns: Sequence[int], reports: Sequence[tuple[int, int]]) -> None:
        """Record one more step, before it is planned.

        moving_ns: duration of the previous step's transfer, by rank. reports: (step number, compute ns) by rank, ns 0
        where that rank reported nothing since the last call.

        Raises ValueError, on all ranks alike, if no rank has reported often enough in the first steps.
        """
        if self.sparing is not None:
            return
        # ">": `moving_ns` belongs to the previous step. The maximum over ranks: the slowest rank delays all others.
        if self._steps > _WARM_UP:
            self._moving.append(max(moving_ns))
        computing = [nanoseconds for number, nanoseconds in reports if nanoseconds > 0 and number >= _WARM_UP]
        if computing:
            self._computing.append(max(computing))
        self._steps += 1
        if min(len(self._moving), len(self._computing)) >= _STEPS:
            self.sparing = _median(self._moving) * _SHARE > _median(self._computing)
        elif self._steps > _PATIENCE:
            raise ValueError(
                f'method="auto", but the ranks reported the compute time of {len(self._computing)} steps of '
                f"{self._steps}: {_STEPS} are needed. Call loader.report_step(compute_seconds) after every step, or "
                "name a method"
            )

    def state_dict(self) -> dict[str, Any]:
        """JSON-able, the same on every rank. It has the decision only: a resumed job repeats unfinished timing."""
        return {"version": _VERSION, "sparing": self.sparing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a decision. Raises StateError if `state` is not of this version."""
        if state.get("version") != _VERSION or state.get("sparing") not in (None, True, False):
            raise StateError(f'not a state of method="auto" in version {_VERSION}: {state!r}')
        self.sparing = state["sparing"]


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
