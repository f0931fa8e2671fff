"""Fits a cost model to measured steps and predicts how well it will balance.

Pure: steps in, a document out. Letters: R measured rows (steps times ranks), W ranks, B samples of a rank.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import Step
from freescale_tools.calibrate.run_costs import estimates, least_squares, line, own_costs, r2, run_costs
from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from fsdata.balance.cost import CANDIDATES, Polynomial, fit, step_sums
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share

VERSION = 2
FEWEST = 4
_SIMULATED = 200
_MOST_SAMPLES = 65_536  # of a simulated global batch
_SLOW = 0.03
_EXPLAINED = 0.9  # R2 of a model that is worth planning with

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


def calibrate(
    steps: Sequence[Step],
    *,
    ranks: int | None = None,
    skip: int = 0,
    fscomm: Sequence[Step] = (),
    balanced: Sequence[Step] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Fit a cost model and compare it with one that only counts tokens.

    Args:
        ranks: of the simulated balancing. Default: as many as were measured, at least 2.
        skip: how many steps to leave out at the start (warm-up), also of `fscomm` and `balanced`.
        fscomm, balanced: steps of the same training with prioritized communication, or with balanced batches: what
            these take themselves.

    Raises UsageError if no model can be fitted to the steps.
    """
    kept = _without_first(steps, skip)
    _check(kept, len(steps), skip)
    try:
        model = fit([_arrays(step) for step in kept], [step.seconds for step in kept])
    except ValueError as error:
        raise UsageError(str(error)) from error
    fitted, tokens = explain(model, kept), explain(TOKENS, kept)
    measured_on = sorted({step.rank for step in kept})
    width = ranks or max(len(measured_on), 2)
    left = straggler_left(fitted, tokens, kept, ranks=width, seed=seed)
    return {
        **header("calibrate", version=VERSION),
        "rows": len(kept),
        "steps": len({step.step for step in kept}),
        "ranks": len(measured_on),
        "samples": sum(step.lengths.rows for step in kept),
        "sequence": kept[0].sequence,
        "cost_model": repr(model),
        "seconds_per_cost": fitted.scale,
        "constant_s": fitted.constant,
        "intervals": _intervals(kept, model, seed=seed),
        "r2": fitted.r2,
        "r2_tokens": tokens.r2,
        "typical_error": float(np.std(fitted.ratio)),
        "typical_error_tokens": float(np.std(tokens.ratio)),
        "measured_straggler": measured_straggler(kept),
        "simulated": {"ranks": width, "steps": _SIMULATED, **left},
        "speeds": speeds(fitted, kept),
        "run": run_costs(kept, seed=seed),
        "own": own_costs(
            kept,
            lambda step: fitted.scale * _cost(model, step),
            fscomm=_without_first(fscomm, skip),
            balanced=_without_first(balanced, skip),
            seed=seed,
        ),
    }


def _without_first(steps: Sequence[Step], skip: int) -> list[Step]:
    numbers = sorted({step.step for step in steps})
    return [step for step in steps if step.step in set(numbers[skip:])]


def _intervals(steps: Sequence[Step], model: Polynomial, *, seed: int) -> dict[str, list[float]]:
    """[low, high] of the two numbers, and of the seconds of a mean sample: over draws of whole steps.

    Each draw is fitted anew. Its `seconds_per_cost` is that of a mean sample over the cost by `model`.
    """
    rows = np.array([(*step_sums(_arrays(step)), 1.0, step.seconds) for step in steps])
    samples = sum(step.lengths.rows for step in steps)
    mean_sample = rows[:, :3].sum(0) / samples
    mean_cost = sum(_cost(model, step) for step in steps) / samples

    def fit_again(drawn: np.ndarray) -> np.ndarray:
        *coefficients, constant = least_squares(drawn[:, :4], drawn[:, 4])
        sample = float(mean_sample @ np.array(coefficients))
        return np.array([sample / mean_cost, constant, sample])

    found = estimates(fit_again, rows, np.array([step.step for step in steps]), seed=seed)
    names = ("seconds_per_cost", "constant_s", "sample_s")
    return {name: [one["low"], one["high"]] for name, one in zip(names, found, strict=True)}


def explain(model: Polynomial, steps: Sequence[Step]) -> Explained:
    """Fit the scale and the constant, both 0 or more, of a given model."""
    cost = np.array([_cost(model, step) for step in steps])
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
    for _ in range(_SIMULATED):
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


def advice(document: dict[str, Any]) -> list[str]:
    """Warnings for the user of the model."""
    said = []
    if document["rows"] < 50:
        said.append(f"Only {document['rows']} rows: 50 or more give a steadier fit.")
    slow = [one for one in document["speeds"] if one["ratio"] > 1 + _SLOW and one["steps"] >= FEWEST]
    if slow:
        named = ", ".join(f"{one['rank']} (+{one['ratio'] - 1:.0%})" for one in slow)
        said.append(f"Slower than the model says: rank {named}. Balance(autotune=True) gives such ranks less.")
    return said


def doubt(document: dict[str, Any]) -> str | None:
    """Why the model is not reliable; None if it explains the measured seconds."""
    if document["r2"] >= _EXPLAINED:
        return None
    return (
        f"R2 is {document['r2']:.2f}, below {_EXPLAINED}: time does not follow from lengths alone, and plans made with "
        "this model leave ranks waiting. Measure compute without waiting for other ranks, leave warm-up out (--skip), "
        "keep other work off the machine"
    )


def _check(kept: Sequence[Step], given: int, skip: int) -> None:
    if len(kept) < FEWEST:
        left_out = f" ({given} without --skip {skip})" if skip else ""
        raise UsageError(f"{len(kept)} rows{left_out}: at least {FEWEST}, better 50, are needed to fit a model")
    batches = {(step.lengths.lengths.tobytes(), step.lengths.counts.tobytes(), step.candidates) for step in kept}
    if len(batches) == 1:
        raise UsageError(
            f"all {len(kept)} rows have the same lengths: how time grows with length does not follow from equal "
            "batches. Measure batches that differ, such as those of unbalanced training"
        )
    if len({step.seconds for step in kept}) == 1:
        raise UsageError(f"all {len(kept)} rows took {kept[0].seconds} s: nothing can be learnt from that")


def _arrays(step: Step) -> dict[str, np.ndarray]:
    lengths = np.repeat(step.lengths.lengths, step.lengths.counts)
    candidates = np.zeros(len(lengths), np.int64)
    candidates[:1] = step.candidates  # only their sum counts
    return {"sequence": lengths, CANDIDATES: candidates}


def _cost(model: Polynomial, step: Step) -> float:
    """Of all samples of the batch."""
    return float(model(_arrays(step)).sum())
