"""What is fitted to measured steps: how well a cost model explains them and will balance, and what else a run tells.

That is exchanges by size, look-ups and updates by row, waits, and what remedies take themselves. Pure: steps in,
numbers out. Seconds and bytes. A number that is fitted is {value, low, high}: `low` and `high` hold 90 % of what other
draws of as many steps give.

Letters: R measured rows (steps times ranks), W ranks; of a fit N rows, C columns, P numbers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import BY_KIND, Step
from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from fsdata.balance.cost import CANDIDATES, Polynomial, counts_differ, fit, fit_columns, non_negative
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share

VERSION = 2
"""Of the document."""
_SIMULATED = 200
_MOST_SAMPLES = 65_536  # of a simulated global batch
_TOKENS = Polynomial(linear=1, quadratic=0)
_CLASSES = {"all_to_all": ("ids", "embeddings", "gradients"), "all_reduce": ("dense",)}
"""Kinds of exchanges that are fitted together."""
_FEWEST_TRANSFERS = 20
_SPREAD = 4  # least ratio of the sizes between which latency and bandwidth can be told apart
_SEED = 0
_DRAWS = 200
_ROUNDS = 4  # until the weights no longer change
_WITHIN = (5, 95)
_TINY = np.finfo(float).tiny

Estimate = dict[str, float]
"""{value, low, high}."""


def calibrate(
    steps: Sequence[Step],
    *,
    ranks: int | None = None,
    fscomm: Sequence[Step] = (),
    balanced: Sequence[Step] = (),
) -> dict[str, Any]:
    """The document of a calibration: a cost model, compared with one that only counts tokens, and all else of a run.

    Args:
        ranks: of the simulated balancing. Default: as many as were measured, at least 2.
        fscomm, balanced: steps of the same training with prioritized communication, or with balanced batches: what
            these take themselves.

    Raises UsageError if no model can be fitted to the steps.
    """
    batches = {(step.lengths.lengths.tobytes(), step.lengths.counts.tobytes(), step.candidates) for step in steps}
    if len(batches) == 1 < len(steps):
        raise UsageError(
            f"all {len(steps)} rows have the same lengths: how time grows with length does not follow from equal "
            "batches. Measure batches that differ, such as those of unbalanced training"
        )
    try:
        model = fit([_arrays(step) for step in steps], [step.seconds for step in steps])
    except ValueError as error:
        raise UsageError(str(error)) from error
    fitted, tokens = explain(model, steps), explain(_TOKENS, steps)
    by_step: dict[int, list[float]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.seconds)
    shares = [straggler_share(np.array(of_ranks)) for of_ranks in by_step.values() if len(of_ranks) > 1]
    rank = np.array([step.rank for step in steps])
    measured_on = np.unique(rank)
    width = ranks or max(len(measured_on), 2)
    return {
        **header("calibrate", version=VERSION),
        "rows": len(steps),
        "steps": len(by_step),
        "ranks": len(measured_on),
        "samples": sum(step.lengths.rows for step in steps),
        "counts_differ": counts_differ([step.lengths.rows for step in steps]),
        "sequence": steps[0].sequence,
        "cost_model": repr(model),
        "seconds_per_cost": fitted.scale,
        "constant_s": fitted.constant,
        "empty_sample_s": fitted.scale * model.sample,
        "intervals": _intervals(model, steps),
        "r2": fitted.r2,
        "r2_tokens": tokens.r2,
        "typical_error": float(np.std(fitted.ratio)),
        "typical_error_tokens": float(np.std(tokens.ratio)),
        "measured_straggler": float(np.mean(shares)) if shares else None,
        "simulated": {"ranks": width, "steps": _SIMULATED, **_straggler_left(fitted, tokens, steps, ranks=width)},
        "speeds": [
            {"rank": int(one), "steps": int((rank == one).sum()), "ratio": float(np.median(fitted.ratio[rank == one]))}
            for one in measured_on
        ],
        "run": _run_costs(steps),
        "own": own_costs(steps, lambda step: fitted.scale * _cost_of(model, step), fscomm=fscomm, balanced=balanced),
    }


def _arrays(step: Step) -> dict[str, np.ndarray]:
    """The lengths of the samples of a batch, as a cost model takes them."""
    lengths = np.repeat(step.lengths.lengths, step.lengths.counts)
    candidates = np.zeros(len(lengths), np.int64)
    candidates[:1] = step.candidates  # only their sum counts
    return {"sequence": lengths, CANDIDATES: candidates}


def _cost_of(model: Polynomial, step: Step) -> float:
    """Of all samples of the batch."""
    return float(model(_arrays(step)).sum())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Measured seconds as scale * cost + constant."""

    model: Polynomial
    scale: float
    constant: float
    r2: float
    """Share of the variance of the seconds that the model explains; at most 1."""
    ratio: np.ndarray
    """float64 [R], measured / predicted seconds."""


def explain(model: Polynomial, steps: Sequence[Step]) -> Explained:
    """Fit the scale and the constant, both 0 or more, of a given model."""
    cost = np.array([_cost_of(model, step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    constant, scale = line(cost, seconds).tolist()
    predicted = scale * cost + constant
    ratio = seconds / np.maximum(predicted, _TINY)
    return Explained(model=model, scale=scale, constant=constant, r2=_r2(seconds, predicted), ratio=ratio)


def _intervals(model: Polynomial, steps: Sequence[Step]) -> dict[str, list[float]]:
    """[low, high] of the two numbers, of the seconds of a mean and of an empty sample: over draws of whole steps.

    Each draw is fitted anew. Its `seconds_per_cost` is that of a mean sample over the cost by `model`.
    """
    columns = fit_columns([_arrays(step) for step in steps])
    samples = sum(step.lengths.rows for step in steps)
    mean_sample = columns.sum(0) / samples
    mean_sample[3] = 0  # the constant belongs to the step
    mean_cost = sum(_cost_of(model, step) for step in steps) / samples

    def fit_again(drawn: np.ndarray) -> np.ndarray:
        coefficients = _least_squares(drawn[:, :-1], drawn[:, -1])
        *_, constant, empty = coefficients.tolist()
        sample = float(mean_sample @ coefficients)
        return np.array([sample / mean_cost, constant, sample, empty])

    rows = np.column_stack([columns, [step.seconds for step in steps]])
    found = estimates(fit_again, rows, np.array([step.step for step in steps]))
    names = ("seconds_per_cost", "constant_s", "sample_s", "empty_sample_s")
    return {name: [one["low"], one["high"]] for name, one in zip(names, found, strict=True)}


def _straggler_left(fitted: Explained, tokens: Explained, steps: Sequence[Step], *, ranks: int) -> dict[str, float]:
    """Mean straggler shares (1 - mean / max of rank time) of simulated steps.

    Global batches are drawn from the measured samples. The time of a rank is the prediction of the fitted
    model for its samples, times the ratio of measured to predicted seconds of a randomly drawn row. The ratio
    keeps the error of the model as large as it was measured. `as_dealt`: samples stay on the rank that drew
    them. `by_tokens`, `by_model`: `pack` plans with that model. `model_alone`: as `by_model`, but without the
    ratios.
    """
    generator = np.random.default_rng(_SEED)
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


def _run_costs(steps: Sequence[Step]) -> dict[str, Any]:
    """Means of a step, {all_to_all, all_reduce} by size, {lookup, update} by row; None where there were too few.

    Means: seconds of waits and of the parts of the model; exchanges and bytes.
    """
    found: dict[str, Any] = {
        "events": float(np.mean([step.lengths.events for step in steps])),
        "data_s": float(np.mean([step.data_s for step in steps])),
    }
    for name in BY_KIND:
        given = [step.of_kind.get(name, {}) for step in steps]
        kinds = sorted({kind for one in given for kind in one})
        found[name] = {kind: float(np.mean([one.get(kind, 0) for one in given])) for kind in kinds}
    return {
        **found,
        **{name: _exchanges(steps, kinds) for name, kinds in _CLASSES.items()},
        **{kind: _per_row(steps, kind) for kind in ("lookup", "update")},
    }


def _exchanges(steps: Sequence[Step], kinds: Sequence[str]) -> dict[str, Any] | None:
    """{latency_s, bytes_per_s, alike, error, transfers, sizes}: seconds = latency + bytes / bandwidth.

    Bytes are those that a rank gives, its own part included, so the fit holds for the measured number of ranks.
    `error`: median relative error. The fit minimises relative errors. Where sizes differ by less than 4 times, the
    latency is 0 and `alike` is true. `sizes`: what was measured, by power of two of the bytes.
    """
    found = [
        (number, size, seconds)
        for number, step in enumerate(steps)
        for kind, size, seconds in step.transfers
        if kind in kinds and seconds > 0
    ]
    if len(found) < _FEWEST_TRANSFERS:
        return None
    groups, size, seconds = np.array(found, np.float64).T
    alike = bool(size.max() < _SPREAD * size.min())

    def fitted(rows: np.ndarray) -> np.ndarray:
        return latency_and_inverse(*rows.T, alike=alike)

    latency, inverse = estimates(fitted, np.column_stack([size, seconds]), groups)
    power = np.floor(np.log2(size))
    return {
        "latency_s": latency,
        "bytes_per_s": {
            "value": over(inverse["value"]), "low": over(inverse["high"]), "high": over(inverse["low"]),
        },
        "alike": alike,
        "error": relative_error(size, seconds, latency["value"], inverse["value"]),
        "transfers": len(found),
        "sizes": [
            {
                "bytes": float(np.median(size[at])),
                "transfers": int(at.sum()),
                "seconds": float(np.median(seconds[at])),
                "bytes_per_s": float(np.median(size[at] / seconds[at])),
            }
            for at in (power == one for one in np.unique(power))
        ],
    }  # fmt: skip


def _per_row(steps: Sequence[Step], kind: str) -> dict[str, Any] | None:
    """{seconds, call_s, r2, rows}: time of `kind` (lookup, update) = call + rows * seconds; None if it did not run."""
    of_rows, of_seconds = ([step.of_kind.get(name, {}).get(kind) for step in steps] for name in ("rows", "passes_s"))
    both = zip(of_rows, of_seconds, strict=True)
    found = np.array([(rows, seconds) for rows, seconds in both if rows and seconds is not None], np.float64)
    if len(found) < _FEWEST_TRANSFERS:
        return None
    call, each = estimates(lambda drawn: line(*drawn.T), found, np.arange(len(found)))
    rows, seconds = found.T
    return {
        "seconds": each,
        "call_s": call,
        "r2": _r2(seconds, call["value"] + each["value"] * rows),
        "rows": int(rows.sum()),
    }


def own_costs(
    plain: Sequence[Step],
    cost: Callable[[Step], float],
    *,
    fscomm: Sequence[Step] = (),
    balanced: Sequence[Step] = (),
) -> dict[str, Estimate | None]:
    """{fscomm, balancing}: seconds of the training thread in a step; None where not measured.

    `plain`: the steps of the calibration. `cost`: seconds of the samples of a step, by the fitted model. `fscomm`,
    `balanced`: the same training with one of them.

    fscomm: forward and backward longer than their samples explain. balancing: that, and waiting for the loader. Below
    0 where the difference is smaller than the noise. Raises UsageError if a run is not the same training.
    """

    def difference(rows: np.ndarray) -> np.ndarray:
        """Of medians, as a step that was disturbed says nothing."""
        return np.array([np.median(rows[rows[:, 0] == 1, 1]) - np.median(rows[rows[:, 0] == 0, 1])])

    found: dict[str, Estimate | None] = {"fscomm": None, "balancing": None}
    for name, option, other in (("fscomm", "--fscomm", fscomm), ("balancing", "--balanced", balanced)):
        if not other:
            continue
        of_plain, of_other = (
            {"ranks": len({step.rank for step in run}), "sequence": run[0].sequence} for run in (plain, other)
        )
        for what, given in of_other.items():
            if given != of_plain[what]:
                raise UsageError(
                    f"{option}: its {what}: {given}, those of the calibrated run: {of_plain[what]}. Give the same "
                    "training"
                )
        rows = np.array([
            (number, step.seconds + (step.data_s if name == "balancing" else 0.0) - cost(step))
            for number, run in enumerate((plain, other))
            for step in run
        ])  # fmt: skip
        (found[name],) = estimates(difference, rows, np.arange(len(rows)))
    return found


def estimates(fitted: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, groups: np.ndarray) -> list[Estimate]:
    """What `fitted` makes of rows: of all, and within the 5th and the 95th percentile over draws of as many groups.

    fitted: float64 [N, C] -> [P]. rows: float64 [N, C]. groups: [N]; rows of one group are drawn together. Draws are
    with replacement.
    """
    generator = np.random.default_rng(_SEED)
    names, group = np.unique(groups, return_inverse=True)
    drawn = []
    for _ in range(_DRAWS):
        times = np.bincount(generator.integers(0, len(names), len(names)), minlength=len(names))
        drawn.append(fitted(np.repeat(rows, times[group], axis=0)))
    low, high = np.nanpercentile(np.array(drawn), _WITHIN, axis=0).tolist()
    values = zip(fitted(rows).tolist(), low, high, strict=True)
    return [dict(zip(("value", "low", "high"), one, strict=True)) for one in values]


def latency_and_inverse(size: np.ndarray, seconds: np.ndarray, *, alike: bool = False) -> np.ndarray:
    """[latency, seconds per byte], both 0 or more, of least relative errors; `alike`: sizes that tell no latency."""
    found = np.array([0.0, float(np.median(seconds / size))])
    for _ in range(0 if alike else _ROUNDS):
        # Weights by what was measured would favour what came out short by chance.
        found = line(size, seconds, weights=1 / np.maximum(found[0] + found[1] * size, _TINY))
    return found


def relative_error(size: np.ndarray, seconds: np.ndarray, latency: float, inverse: float) -> float:
    """Median over the exchanges."""
    return float(np.median(np.abs((latency + inverse * size) / seconds - 1)))


def over(inverse: float) -> float | None:
    """Bytes per second; None where more bytes took no longer."""
    return 1 / inverse if inverse > 0 else None


def line(x: np.ndarray, y: np.ndarray, *, weights: np.ndarray | None = None) -> np.ndarray:
    """[constant, slope], both 0 or more, of least weighted squares."""
    return _least_squares(np.column_stack([np.ones(len(x)), x]), y, weights=weights)


def _least_squares(columns: np.ndarray, wanted: np.ndarray, *, weights: np.ndarray | None = None) -> np.ndarray:
    """float64 [C], 0 or more: what the columns, float64 [N, C], are multiplied by to be nearest to `wanted`."""
    whole = np.column_stack([columns, wanted])
    weighted = whole if weights is None else whole * weights[:, None]
    # C + 1 rows have the same solutions, and are tried in no time.
    few = np.asarray(np.linalg.qr(weighted, mode="r"))
    return non_negative(few[:, :-1], few[:, -1])


def _r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance of `measured` that `predicted` explains; 0 where nothing varies."""
    error, spread = measured - predicted, measured - measured.mean()
    return 1 - float(error @ error) / float(spread @ spread) if spread.any() else 0.0
