"""Estimates the real speed of each rank from the compute times that the ranks report.

A straggler makes all ranks see the same time between batches, so a rank must report its compute time without the
waiting. Planned cost per second gives relative speeds, and the next plans give slow ranks less (PAPER.md section 1,
AutoTune).

The inputs are gathered from all ranks and all arithmetic is in integers, so every rank computes the same speeds.

Letters: W ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsdata.errors import StateError

UNIT = 1_000_000
"""Speeds are integers, in millionths of the mean."""
_VERSION = 1
_SLOWEST, _FASTEST = UNIT // 2, UNIT * 2  # no report can leave a rank nearly idle
_REMEMBERED = 256  # steps whose load is stored; later reports about them are ignored
_PATIENCE = 32  # steps after which a rank without a report is an error


class AutoTune:
    """Estimates the relative speed of W ranks. Pure state machine: no clock, no communication.

    In every step `planned` stores the planned load of every rank, and `observe` takes the new reports. A new
    estimate changes a speed by a quarter of the difference, and speeds stay within 0.5 to 2 times the mean.
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
        # Reports about one step may arrive in different steps. It is used once all ranks have reported it: only times
        # of the same step compare speeds.
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
            return  # a rank without load has no measurable speed
        # 40 fractional bits: integers like everything else here. Python's integers do not overflow.
        rates = [(cost << 40) // time for cost, time in zip(load, nanoseconds, strict=True)]
        total = max(1, sum(rates))
        for rank, rate in enumerate(rates):
            measured = rate * UNIT * len(rates) // total
            smoothed = self._speed[rank] + (measured - self._speed[rank]) // 4
            self._speed[rank] = min(max(smoothed, _SLOWEST), _FASTEST)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able, the same on every rank."""
        return {"version": _VERSION, "speed": list(self._speed), "reported": list(self._reported)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the speeds; on another number of ranks start again, because speeds belong to ranks."""
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
