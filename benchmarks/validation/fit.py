"""Fits the few unknown numbers, each on plain training alone."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from freescale_tools.model import durations
from freescale_tools.model.batches import PACKED, UNPACKED, Waits, rank_share
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.workload import DENSE_PARAMETERS, PAPER_COLLISION, Workload, flops
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial
from fsdata.balance.packing import pack

RANKS, BATCH_SIZE, MEDIAN, LONGEST = 64, 128, 4000, 21_000
SIGMA = 0.55
"""Width of the lengths of the paper-like set."""
_PACKED = {UNPACKED: UNPACKED, PACKED: "fbs+swap"}
_SAMPLED = 400
_PAPER_STEPS = 50
_SPREAD = 0.1
_TRIES = 12
_BINS = 1024


def paper_like(
    sigma: float, *, longest: int = LONGEST, ranks: int = RANKS, steps: int = _SAMPLED
) -> Iterator[np.ndarray]:
    """int64[ranks * BATCH_SIZE] per step: lognormal lengths.

    Each step has its own seed, the same for every sigma.
    """
    for step in range(steps):
        drawn = np.random.default_rng((ranks, step)).standard_normal(ranks * BATCH_SIZE)
        yield np.clip(np.rint(MEDIAN * np.exp(sigma * drawn)), 1, longest).astype(np.int64)


def straggler(lengths: Iterable[np.ndarray], method: str, *, ranks: int = RANKS) -> float:
    """Mean straggler share of global batches under cost L^2 + 2000 L."""
    cost = Polynomial()
    return float(np.mean([_packed(cost({"sequence": step}), ranks, method) for step in lengths]))


def time_lost(lengths: Iterable[np.ndarray], method: str, *, ranks: int = RANKS) -> float:
    """Time lost in the same global batches."""
    costs = [Polynomial()({"sequence": step}) for step in lengths]
    mean = np.array([float(cost.sum()) / ranks for cost in costs])
    even = np.array([1 - _packed(cost, ranks, method) for cost in costs])
    return Waits(mean=mean, most=mean / even, weight=np.ones(len(costs))).time_lost()[0]


def _packed(costs: np.ndarray, ranks: int, method: Any) -> float:
    home = np.repeat(np.arange(ranks), len(costs) // ranks)
    return rank_share(costs, home if method == UNPACKED else pack(costs, ranks, method=method).rank, ranks)


def expected_straggler(sigma: float, *, ranks: int = RANKS, batch_size: int = BATCH_SIZE) -> float:
    """The expected `straggler` of the paper-like set without balancing, computed without drawing.

    The load of a rank is a sum of independent costs, so its distribution is the convolution of the
    distribution of one cost with itself. If the largest load is m, the other loads are distributed as loads
    of at most m.
    """
    lengths = np.arange(1, LONGEST + 1)
    ends = (np.log(np.arange(1, LONGEST) + 0.5) - math.log(MEDIAN)) / (sigma * math.sqrt(2))
    below = np.concatenate([[0.0], [0.5 + 0.5 * math.erf(end) for end in ends], [1.0]])
    place = Polynomial()({"sequence": lengths}) * (_BINS / Polynomial()({"sequence": lengths[-1:]}))
    floor = np.minimum(place.astype(np.int64), _BINS - 1)
    chance, upper = np.diff(below), place - floor
    one = np.bincount(floor, chance * (1 - upper), _BINS + 1) + np.bincount(floor + 1, chance * upper, _BINS + 1)
    size = 1 << math.ceil(math.log2(batch_size * _BINS + 1))
    load = np.maximum(np.fft.irfft(np.fft.rfft(one, size) ** batch_size, size), 0.0)
    load /= load.sum()
    most, part = np.cumsum(load), np.cumsum(load * np.arange(size))
    largest = np.diff(most**ranks, prepend=0.0)
    at = np.flatnonzero(largest > 0)
    at = at[at > 0]
    mean = (at + (ranks - 1) * part[at] / most[at]) / ranks
    return float(1 - largest[at] @ (mean / at))


def fit_sigma(share: float) -> float:
    """The smallest sigma at which ranks wait for `share` of a step without balancing.

    A larger sigma can give the same share again, because more histories reach the maximum length. Raises
    ValueError if no sigma up to 2 gives the share.
    """
    for step in range(1, 21):
        if expected_straggler(step * _SPREAD) >= share:
            near = (step * _SPREAD, (step - 0.5) * _SPREAD)
            return _secant(lambda sigma: expected_straggler(sigma) - share, near, rounding=1e-6)
    raise ValueError(f"no paper-like set has a straggler share of {share:.1%}")


def _secant(function: Callable[[float], float], near: tuple[float, float], *, rounding: float) -> float:
    """The root of `function` within `rounding`; `function` is close to a line around `near`."""
    before, at = near
    value_before, value = function(before), function(at)
    for _ in range(_TRIES):
        if abs(value) <= rounding:
            return at
        before, at = at, at - value * (at - before) / (value - value_before)
        value_before, value = value, function(at)
    raise ValueError(f"no fit after {_TRIES} tries: {value:g} is left at {at:g}")


def paper_workload(sigma: float, *, longest: int, dim: float, ranks: int) -> Workload:
    """The paper-like set as a workload, with the time that it loses without balancing and by fbs+swap."""
    lengths = list(paper_like(sigma, longest=longest, ranks=ranks, steps=_PAPER_STEPS))
    histogram = LengthHistogram.of(np.concatenate(lengths))
    return Workload(
        batch_size=BATCH_SIZE,
        events=BATCH_SIZE * histogram.mean,
        flops=BATCH_SIZE * flops(histogram.lengths, histogram.counts),
        dim=dim,
        dense_parameters=DENSE_PARAMETERS,
        time_lost={(ranks, name): time_lost(lengths, method, ranks=ranks) for name, method in _PACKED.items()},
        collisions={ranks: PAPER_COLLISION},
    )


def fit_dim(exposed_ms: float, load: Workload, hardware: Hardware, *, ranks: int) -> float:
    """Floats per event at which plain training has `exposed_ms` of exposed communication.

    Raises ValueError if latencies alone take longer.
    """

    def missing(dim: float) -> float:
        return exposed(dataclasses.replace(load, dim=dim), hardware, "plain", ranks=ranks) - exposed_ms

    if missing(1.0) >= 0:
        raise ValueError(f"{exposed_ms:g} ms of exposed communication are less than {hardware.name} takes for no rows")
    return _secant(missing, (500.0, 1000.0), rounding=1e-3)


def exposed(load: Workload, hardware: Hardware, name: str, *, ranks: int) -> float:
    """Milliseconds of exposed communication of one way."""
    return durations.step(hardware, load, name, ranks=ranks)["bubbles"]["exposed_ms"]
