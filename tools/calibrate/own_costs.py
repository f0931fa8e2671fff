"""What balancing and fscomm take of a step themselves: the same training measured without and with them.

Pure: steps in, numbers out. A step's seconds beside its samples are what its time is above `scale * cost` of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import Step
from freescale_tools.calibrate.run_costs import interval
from freescale_tools.console.errors import UsageError

Cost = Callable[[Step], float]


def own_costs(
    plain: Sequence[Step], cost: Cost, *, fscomm: Sequence[Step] = (), balanced: Sequence[Step] = (), seed: int = 0
) -> dict[str, Any]:
    """{fscomm, balancing}: seconds of the training thread in a step, {value, low, high}; None where not measured.

    Args:
        plain: the steps of the calibration.
        cost: seconds of the samples of a step, by the fitted model.
        fscomm, balanced: the same training with one of them.

    fscomm: forward and backward longer than their samples explain. balancing: that, and waiting for the loader. Below
    0 where the difference is smaller than the noise. Raises UsageError if a run is not the same training.
    """
    return {
        "fscomm": _over(plain, fscomm, lambda step: step.seconds - cost(step), "--fscomm", seed),
        "balancing": _over(plain, balanced, lambda step: step.seconds + step.data_s - cost(step), "--balanced", seed),
    }


def _over(
    plain: Sequence[Step], other: Sequence[Step], beside: Cost, option: str, seed: int
) -> dict[str, float] | None:
    """How much more `beside` is in `other` than in `plain`."""
    if not other:
        return None
    for what, of in (("ranks", _ranks), ("sequence", _sequence)):
        if of(plain) != of(other):
            raise UsageError(
                f"{option}: its {what}: {of(other)}, those of the calibrated run: {of(plain)}. Give the same training"
            )
    beside_samples = [(run, beside(step)) for run, steps in enumerate((plain, other)) for step in steps]
    low, high = interval(_difference, beside_samples, seed=seed)
    return {"value": float(_difference(beside_samples)[0]), "low": float(low[0]), "high": float(high[0])}


def _difference(given: Sequence[tuple[int, float]]) -> np.ndarray:
    """[median of run 1 - median of run 0]: medians, since a step that the machine disturbed says nothing."""
    of = [[seconds for run, seconds in given if run == number] for number in (0, 1)]
    return np.array([np.median(of[1]) - np.median(of[0])])


def _ranks(steps: Sequence[Step]) -> int:
    return len({step.rank for step in steps})


def _sequence(steps: Sequence[Step]) -> str:
    return steps[0].sequence
