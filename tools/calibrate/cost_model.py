"""How well a cost model explains measured steps, how sure that is, and how well it will balance.

Pure: steps in, numbers out. Letters: R measured rows (steps times ranks), W ranks, B samples of a rank.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import Step
from freescale_tools.calibrate.run_costs import estimates, least_squares, line, r2
from fsdata.balance.cost import CANDIDATES, Polynomial, step_sums
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share

SIMULATED = 200
_MOST_SAMPLES = 65_536  # of a simulated global batch

TOKENS = Polynomial(linear=1, quadratic=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Measured seconds as scale * cost + constant.

    Attributes:
        r2: share of the variance of the seconds that the model explains; at most 1.
        ratio: float64 [R], measured / predicted seconds.
    """

    model: Polynomial
    scale: float
    constant: float
    r2: float
    ratio: np.ndarray


def intervals(steps: Sequence[Step], model: Polynomial, *, seed: int) -> dict[str, list[float]]:
    """[low, high] of the two numbers, and of the seconds of a mean sample: over draws of whole steps.

    Each draw is fitted anew. Its `seconds_per_cost` is that of a mean sample over the cost by `model`.
    """
    rows = np.array([(*step_sums(arrays(step)), 1.0, step.seconds) for step in steps])
    samples = sum(step.lengths.rows for step in steps)
    mean_sample = rows[:, :3].sum(0) / samples
    mean_cost = sum(cost_of(model, step) for step in steps) / samples

    def fit_again(drawn: np.ndarray) -> np.ndarray:
        *coefficients, constant = least_squares(drawn[:, :4], drawn[:, 4])
        sample = float(mean_sample @ np.array(coefficients))
        return np.array([sample / mean_cost, constant, sample])

    found = estimates(fit_again, rows, np.array([step.step for step in steps]), seed=seed)
    names = ("seconds_per_cost", "constant_s", "sample_s")
    return {name: [one["low"], one["high"]] for name, one in zip(names, found, strict=True)}


def explain(model: Polynomial, steps: Sequence[Step]) -> Explained:
    """Fit the scale and the constant, both 0 or more, of a given model."""
    cost = np.array([cost_of(model, step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    constant, scale = line(cost, seconds).tolist()
    predicted = scale * cost + constant
    return Explained(
        model=model,
        scale=scale,
        constant=constant,
        r2=r2(seconds, predicted),
        ratio=seconds / np.maximum(predicted, np.finfo(float).tiny),
    )


def straggler_left(
    fitted: Explained, tokens: Explained, steps: Sequence[Step], *, ranks: int, seed: int
) -> dict[str, float]:
    """Mean straggler shares (1 - mean / max of rank time) of simulated steps.

    Global batches are drawn from the measured samples. The time of a rank is the prediction of the fitted
    model for its samples, times the ratio of measured to predicted seconds of a randomly drawn row. The ratio
    keeps the error of the model as large as it was measured. `as_dealt`: samples stay on the rank that drew
    them. `by_tokens`, `by_model`: `pack` plans with that model. `model_alone`: as `by_model`, but without the
    ratios.
    """
    generator = np.random.default_rng(seed)
    lengths = np.concatenate([np.repeat(step.lengths.lengths, step.lengths.counts) for step in steps])
    per_sample = np.concatenate(
        [np.full(step.lengths.rows, step.candidates // max(step.lengths.rows, 1)) for step in steps]
    )
    size = min(max(len(lengths) // len(steps), 1), max(_MOST_SAMPLES // ranks, 1))
    home = np.repeat(np.arange(ranks), size)
    shares: dict[str, list[float]] = {"as_dealt": [], "by_tokens": [], "by_model": [], "model_alone": []}
    for _ in range(SIMULATED):
        drawn = generator.integers(0, len(lengths), ranks * size)
        given = {"sequence": lengths[drawn], CANDIDATES: per_sample[drawn]}
        cost = fitted.model(given)
        ratio = generator.choice(fitted.ratio, ranks)
        plans = {
            "as_dealt": home,
            "by_tokens": pack(tokens.model(given), ranks).rank,
            "by_model": pack(cost, ranks).rank,
        }
        for name, rank in plans.items():
            alone = fitted.scale * np.bincount(rank, cost, ranks) + fitted.constant
            shares[name].append(straggler_share(alone * ratio))
        shares["model_alone"].append(straggler_share(alone))
    return {name: float(np.mean(of)) for name, of in shares.items()}


def measured_straggler(steps: Sequence[Step]) -> float | None:
    """Mean straggler share of the steps that several ranks measured; None if there are none."""
    by_step: dict[int, list[float]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.seconds)
    shares = [straggler_share(np.array(seconds)) for seconds in by_step.values() if len(seconds) > 1]
    return float(np.mean(shares)) if shares else None


def speeds(fitted: Explained, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """For every rank: its steps, and the median ratio of measured to predicted seconds."""
    rank = np.array([step.rank for step in steps])
    return [
        {"rank": int(one), "steps": int((rank == one).sum()), "ratio": float(np.median(fitted.ratio[rank == one]))}
        for one in np.unique(rank)
    ]


def arrays(step: Step) -> dict[str, np.ndarray]:
    """The lengths of the samples of a batch, as a cost model takes them."""
    lengths = np.repeat(step.lengths.lengths, step.lengths.counts)
    candidates = np.zeros(len(lengths), np.int64)
    candidates[:1] = step.candidates  # only their sum counts
    return {"sequence": lengths, CANDIDATES: candidates}


def cost_of(model: Polynomial, step: Step) -> float:
    """Of all samples of the batch."""
    return float(model(arrays(step)).sum())
