"""How fast each rank really is, from what the ranks report of their steps.

A straggler makes all ranks see the same time between batches, so a rank must report its compute time without the
waiting. Seconds per planned cost then give relative speeds, and the next plans give slow ranks less (PAPER.md
section 1, AutoTune).

Everything is computed in integers from what all ranks have gathered, so every rank comes to the same speeds.

Letters: W ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsdata.errors import StateError

UNIT = 1_000_000
"""Speeds are kept in millionths of the mean."""
_VERSION = 1
_SLOWEST, _FASTEST = UNIT // 2, UNIT * 2
_REMEMBERED = 256
_PATIENCE = 32


class AutoTune:
    """Estimates the relative speed of W ranks. Pure state machine: no clock, no communication.

    Per step, `planned` remembers every rank's planned load, and `observe` takes the reports that came in since. A new
    estimate moves a speed by a quarter of the difference, and speeds stay within 0.5 to 2 times the mean.
    """

    def __init__(self, world_size: int) -> None:
        self._speed = [UNIT] * world_size
        self._reported = [False] * world_size
        self._steps = 0
        self._loads: dict[int, list[int]] = {}
        self._pending: dict[int, list[int]] = {}

    @property
    def speed(self) -> np.ndarray:
        """float64 [W], mean about 1."""
        return np.array(self._speed, np.float64) / UNIT

    def planned(self, number: int, load: Sequence[int]) -> None:
        """Step `number` was planned with `load` [W], in units of cost."""
        self._steps += 1
        self._loads[number] = [int(value) for value in load]
        for old in [key for key in self._loads if key <= number - _REMEMBERED]:
            del self._loads[old]
            self._pending.pop(old, None)

    def observe(self, reports: Sequence[tuple[int, int]]) -> None:
        """One (step number, compute ns) per rank, ns 0 where that rank reported nothing since the last call.

        Raises ValueError, on all ranks alike, if some rank has not reported once within the first steps: without
        reports nothing can be tuned.
        """
        for rank, (number, nanoseconds) in enumerate(reports):
            if nanoseconds > 0 and number in self._loads:
                self._reported[rank] = True
                self._pending.setdefault(number, [0] * len(self._speed))[rank] = nanoseconds
        for number in sorted(self._pending):
            if all(self._pending[number]):
                self._learn(self._loads.pop(number), self._pending.pop(number))
        silent = [rank for rank, reported in enumerate(self._reported) if not reported]
        if silent and self._steps >= _PATIENCE:
            raise ValueError(
                f"autotune=True, but rank(s) {', '.join(map(str, silent))} reported no compute time in {self._steps} "
                "steps. Call loader.report_step(compute_seconds) after every step, on every rank, with the time this "
                "rank computed without waiting for others; or use autotune=False"
            )

    def _learn(self, load: list[int], nanoseconds: list[int]) -> None:
        """Move the speeds towards load / time of one step that all ranks reported."""
        if not all(load):
            return  # an idle rank shows no speed
        rates = [(cost << 40) // time for cost, time in zip(load, nanoseconds, strict=True)]
        total = max(1, sum(rates))
        for rank, rate in enumerate(rates):
            seen = rate * UNIT * len(rates) // total
            moved = self._speed[rank] + (seen - self._speed[rank]) // 4
            self._speed[rank] = min(max(moved, _SLOWEST), _FASTEST)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able, the same on every rank."""
        return {"version": _VERSION, "speed": list(self._speed), "reported": list(self._reported)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the speeds; on another number of ranks start anew, because speeds belong to ranks."""
        try:
            version, speed = state["version"], [int(value) for value in state["speed"]]
            reported = [bool(value) for value in state["reported"]]
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a state of AutoTune: {state!r}") from error
        if version != _VERSION:
            raise StateError(f"the AutoTune state has version {version!r}, this fsdata reads {_VERSION}")
        if len(speed) != len(self._speed):
            return
        self._speed = [min(max(value, _SLOWEST), _FASTEST) for value in speed]
        self._reported = reported
