"""Whether moving nearly all samples takes too much of a step: what `Balance(method="auto")` decides, once.

Balancing freely moves about (W - 1) / W of all tokens. It is hidden behind the step before, but the network that it
uses is then not free for others. So the first steps are balanced freely and timed; where moving took more than a tenth
of the ranks' compute time, the job goes on with a method that leaves most samples where they are.

Everything is computed in integers from what all ranks have gathered, so every rank decides the same.
"""

from collections.abc import Sequence
from typing import Any

from fsdata.errors import StateError

_VERSION = 1
_WARM_UP = 2  # steps that are not counted: kernels are loaded, and buffers grow
_STEPS = 8
_SHARE = 10  # moving may take one part in this many of the compute time
_PATIENCE = 64


class MethodChoice:
    """Pure state machine: no clock, no communication."""

    def __init__(self) -> None:
        self.sparing: bool | None = None
        """Whether to move little; None while that is not known."""
        self._steps = 0
        self._moving: list[int] = []
        self._computing: list[int] = []

    def observe(self, moving_ns: Sequence[int], reports: Sequence[tuple[int, int]]) -> None:
        """One step more, before it is planned.

        moving_ns: how long the samples of the step before were under way, by rank. reports: (step number, compute ns)
        by rank, ns 0 where that rank reported nothing since the last call.

        Raises ValueError, on all ranks alike, if no rank has reported often enough in the first steps.
        """
        if self.sparing is not None:
            return
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
        """JSON-able, the same on every rank. What was timed before the decision is timed again."""
        return {"version": _VERSION, "sparing": self.sparing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a decision. Raises StateError if `state` is none of this version."""
        if state.get("version") != _VERSION or state.get("sparing") not in (None, True, False):
            raise StateError(f"not a state of a choice of method, or of another version than {_VERSION}: {state!r}")
        self.sparing = state["sparing"]


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
