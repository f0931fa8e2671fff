"""What a run tells beside the cost of its samples: exchanges by size, look-ups and updates by row, waits, remedies.

Pure: steps in, numbers out. Seconds and bytes. A number that is fitted is {value, low, high}: `low` and `high` hold
90 % of what other draws of as many steps give. Letters: N rows, C columns, P fitted numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import BY_KIND, Step
from freescale_tools.console.errors import UsageError
from fsdata.balance.cost import non_negative

CLASSES = {"all_to_all": ("ids", "embeddings", "gradients"), "all_reduce": ("dense",)}
"""Kinds of exchanges that are fitted together."""
FEWEST_TRANSFERS = 20
_SPREAD = 4  # least ratio of the sizes between which latency and bandwidth can be told apart
_DRAWS = 200
_ROUNDS = 4  # until the weights no longer change
_WITHIN = (5, 95)

Estimate = dict[str, float]
"""{value, low, high}."""


def run_costs(steps: Sequence[Step], *, seed: int = 0) -> dict[str, Any]:
    """Means of a step, {all_to_all, all_reduce} by size, {lookup, update} by row; None where there were too few."""
    return {
        **_means(steps),
        **{name: _exchanges(steps, kinds, seed) for name, kinds in CLASSES.items()},
        **{kind: _per_row(steps, kind, seed) for kind in ("lookup", "update")},
    }


def _means(steps: Sequence[Step]) -> dict[str, Any]:
    """Mean seconds per step of waits and of the parts of the model; exchanges and bytes."""
    found: dict[str, Any] = {
        "events": float(np.mean([step.lengths.events for step in steps])),
        "data_s": float(np.mean([step.data_s for step in steps])),
    }
    for name in BY_KIND:
        given = [step.of_kind[name] for step in steps]
        kinds = sorted({kind for one in given for kind in one})
        found[name] = {kind: float(np.mean([one.get(kind, 0) for one in given])) for kind in kinds}
    return found


def _exchanges(steps: Sequence[Step], kinds: Sequence[str], seed: int) -> dict[str, Any] | None:
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
    if len(found) < FEWEST_TRANSFERS:
        return None
    groups, size, seconds = np.array(found, np.float64).T
    alike = bool(size.max() < _SPREAD * size.min())

    def fitted(rows: np.ndarray) -> np.ndarray:
        return latency_and_inverse(*rows.T, alike=alike)

    latency, inverse = estimates(fitted, np.column_stack([size, seconds]), groups, seed=seed)
    return {
        "latency_s": latency,
        "bytes_per_s": {
            "value": over(inverse["value"]), "low": over(inverse["high"]), "high": over(inverse["low"]),
        },
        "alike": alike,
        "error": relative_error(size, seconds, latency["value"], inverse["value"]),
        "transfers": len(found),
        "sizes": _by_size(size, seconds),
    }  # fmt: skip


def _by_size(size: np.ndarray, seconds: np.ndarray) -> list[dict[str, Any]]:
    power = np.floor(np.log2(size)).astype(int)
    return [
        {
            "bytes": float(np.median(size[power == one])),
            "transfers": int((power == one).sum()),
            "seconds": float(np.median(seconds[power == one])),
            "bytes_per_s": float(np.median(size[power == one] / seconds[power == one])),
        }
        for one in np.unique(power)
    ]


def _per_row(steps: Sequence[Step], kind: str, seed: int) -> dict[str, Any] | None:
    """{seconds, call_s, r2, rows}: time of `kind` (lookup, update) = call + rows * seconds; None if it did not run."""
    both = [(step.of_kind["rows"].get(kind, 0), step.of_kind["passes_s"].get(kind)) for step in steps]
    found = np.array([(rows, seconds) for rows, seconds in both if rows and seconds is not None], np.float64)
    if len(found) < FEWEST_TRANSFERS:
        return None
    call, each = estimates(lambda drawn: line(*drawn.T), found, np.arange(len(found)), seed=seed)
    rows, seconds = found.T
    return {
        "seconds": each,
        "call_s": call,
        "r2": r2(seconds, call["value"] + each["value"] * rows),
        "rows": int(rows.sum()),
    }


def own_costs(
    plain: Sequence[Step],
    cost: Callable[[Step], float],
    *,
    fscomm: Sequence[Step] = (),
    balanced: Sequence[Step] = (),
    seed: int = 0,
) -> dict[str, Estimate | None]:
    """{fscomm, balancing}: seconds of the training thread in a step; None where not measured.

    Args:
        plain: the steps of the calibration.
        cost: seconds of the samples of a step, by the fitted model.
        fscomm, balanced: the same training with one of them.

    fscomm: forward and backward longer than their samples explain. balancing: that, and waiting for the loader. Below
    0 where the difference is smaller than the noise. Raises UsageError if a run is not the same training.
    """
    return {
        "fscomm": _more(plain, fscomm, lambda step: step.seconds - cost(step), "--fscomm", seed),
        "balancing": _more(plain, balanced, lambda step: step.seconds + step.data_s - cost(step), "--balanced", seed),
    }


def _more(
    plain: Sequence[Step], other: Sequence[Step], beside: Callable[[Step], float], option: str, seed: int
) -> Estimate | None:
    """How much more `beside` is in `other` than in `plain`: of medians, as a step that was disturbed says nothing."""
    if not other:
        return None
    of_plain, of_other = _training(plain), _training(other)
    for what, given in of_other.items():
        if given != of_plain[what]:
            raise UsageError(
                f"{option}: its {what}: {given}, those of the calibrated run: {of_plain[what]}. Give the same training"
            )

    def difference(rows: np.ndarray) -> np.ndarray:
        return np.array([np.median(rows[rows[:, 0] == 1, 1]) - np.median(rows[rows[:, 0] == 0, 1])])

    rows = np.array([(run, beside(step)) for run, steps in enumerate((plain, other)) for step in steps])
    (found,) = estimates(difference, rows, np.arange(len(rows)), seed=seed)
    return found


def _training(steps: Sequence[Step]) -> dict[str, Any]:
    """What has to be the same in two runs of one training."""
    return {"ranks": len({step.rank for step in steps}), "sequence": steps[0].sequence}


def estimates(
    fitted: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, groups: np.ndarray, *, seed: int
) -> list[Estimate]:
    """What `fitted` makes of rows: of all, and within the 5th and the 95th percentile over draws of as many groups.

    fitted: float64 [N, C] -> [P]. rows: float64 [N, C]. groups: [N]; rows of one group are drawn together. Draws are
    with replacement.
    """
    generator = np.random.default_rng(seed)
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
        found = line(size, seconds, weights=1 / np.maximum(found[0] + found[1] * size, np.finfo(float).tiny))
    return found


def relative_error(size: np.ndarray, seconds: np.ndarray, latency: float, inverse: float) -> float:
    """Median over the exchanges."""
    return float(np.median(np.abs((latency + inverse * size) / seconds - 1)))


def over(inverse: float) -> float | None:
    """Bytes per second; None where more bytes took no longer."""
    return 1 / inverse if inverse > 0 else None


def line(x: np.ndarray, y: np.ndarray, *, weights: np.ndarray | None = None) -> np.ndarray:
    """[constant, slope], both 0 or more, of least weighted squares."""
    return least_squares(np.column_stack([np.ones(len(x)), x]), y, weights=weights)


def least_squares(columns: np.ndarray, wanted: np.ndarray, *, weights: np.ndarray | None = None) -> np.ndarray:
    """float64 [C], 0 or more: what the columns, float64 [N, C], are multiplied by to be nearest to `wanted`."""
    whole = np.column_stack([columns, wanted])
    weighted = whole if weights is None else whole * weights[:, None]
    # C + 1 rows have the same solutions, and are tried in no time.
    few = np.asarray(np.linalg.qr(weighted, mode="r"))
    return non_negative(few[:, :-1], few[:, -1])


def r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance of `measured` that `predicted` explains; 0 where nothing varies."""
    error, spread = measured - predicted, measured - measured.mean()
    return 1 - float(error @ error) / float(spread @ spread) if spread.any() else 0.0
