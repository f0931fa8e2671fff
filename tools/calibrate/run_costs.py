"""What a run tells beside the cost of its samples: exchanges by size, look-ups and updates by row, waits.

Pure: steps in, numbers out. Seconds and bytes; intervals hold 90 % of what other draws of as many steps give.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.measured_steps import Step

CLASSES = {"all_to_all": ("ids", "embeddings", "gradients"), "all_reduce": ("dense",)}
"""Kinds of exchanges that are fitted together."""
FEWEST_TRANSFERS = 20
_SPREAD = 4  # least ratio of the sizes between which latency and bandwidth can be told apart
_DRAWS = 200
_ROUNDS = 4  # until the weights no longer change
_WITHIN = (5, 95)


def exchanges(steps: Sequence[Step], kinds: Sequence[str], *, seed: int = 0) -> dict[str, Any] | None:
    """{latency_s, bytes_per_s, error, transfers, sizes}: seconds = latency + bytes / bandwidth; None without transfers.

    Bytes are those that a rank gives, its own part included, so the fit holds for the measured number of ranks.
    `error`: median relative error. The fit minimises relative errors. Where sizes differ by less than 4 times, the
    latency is 0 and `alike` is true. `sizes`: what was measured, by power of two of the bytes.
    """
    found = [[(size, s) for kind, size, s in step.transfers if kind in kinds and s > 0] for step in steps]
    pairs = np.array(list(itertools.chain.from_iterable(found)), np.float64).reshape(-1, 2)
    if len(pairs) < FEWEST_TRANSFERS:
        return None
    size, seconds = pairs.T
    alike = bool(size.max() < _SPREAD * size.min())

    def fitted(chosen: Sequence[Sequence[tuple[int, float]]]) -> np.ndarray:
        drawn = np.array(list(itertools.chain.from_iterable(chosen)), np.float64).reshape(-1, 2)
        return latency_and_inverse(*drawn.T, alike=alike) if len(drawn) else np.full(2, np.nan)

    latency, inverse = fitted(found)
    low, high = interval(fitted, found, seed=seed)
    return {
        "latency_s": {"value": latency, "low": low[0], "high": high[0]},
        "bytes_per_s": {"value": _over(inverse), "low": _over(high[1]), "high": _over(low[1])},
        "alike": alike,
        "error": float(np.median(np.abs((latency + inverse * size) / seconds - 1))),
        "transfers": len(pairs),
        "sizes": _by_size(size, seconds),
    }


def per_row(steps: Sequence[Step], kind: str, *, seed: int = 0) -> dict[str, Any] | None:
    """{seconds, call_s, r2, rows}: time of `kind` (lookup, update) = call + rows * seconds; None if it did not run."""
    given = [(step.rows[kind], step.passes_s[kind]) for step in steps if step.rows.get(kind) and kind in step.passes_s]
    if len(given) < FEWEST_TRANSFERS:
        return None

    def fitted(chosen: Sequence[tuple[int, float]]) -> np.ndarray:
        rows, seconds = np.array(chosen, np.float64).T
        return _line(rows, seconds)

    call, each = fitted(given)
    low, high = interval(fitted, given, seed=seed)
    rows, seconds = np.array(given, np.float64).T
    return {
        "seconds": {"value": each, "low": low[1], "high": high[1]},
        "call_s": {"value": call, "low": low[0], "high": high[0]},
        "r2": r2(seconds, call + each * rows),
        "rows": int(rows.sum()),
    }


def means(steps: Sequence[Step]) -> dict[str, Any]:
    """Mean seconds per step of waits and of the parts of the model; exchanges and bytes."""
    every = {name: sorted({key for step in steps for key in getattr(step, name)}) for name in _BY_KIND}
    return {
        "events": float(np.mean([step.lengths.events for step in steps])),
        "data_s": float(np.mean([step.data_s for step in steps])),
        **{
            name: {key: float(np.mean([getattr(step, name).get(key, 0) for step in steps])) for key in keys}
            for name, keys in every.items()
        },
    }


_BY_KIND = ("exposed_s", "passes_s", "rows", "exchanges", "bytes")


def interval(
    fitted: Callable[[Sequence[Any]], np.ndarray], given: Sequence[Any], *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The 5th and the 95th percentile of `fitted` over draws, with replacement, of as many of `given`."""
    generator = np.random.default_rng(seed)
    drawn = [fitted([given[place] for place in generator.integers(0, len(given), len(given))]) for _ in range(_DRAWS)]
    low, high = np.nanpercentile(np.array(drawn), _WITHIN, axis=0)
    return low, high


def r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance of `measured` that `predicted` explains; 0 where nothing varies."""
    error, spread = measured - predicted, measured - measured.mean()
    return 1 - float(error @ error) / float(spread @ spread) if spread.any() else 0.0


def latency_and_inverse(size: np.ndarray, seconds: np.ndarray, *, alike: bool = False) -> np.ndarray:
    """[latency, seconds per byte], both 0 or more, of least relative errors; `alike`: sizes that tell no latency."""
    if alike:
        return np.array([0.0, float(np.median(seconds / size))])
    found = np.array([0.0, float(np.median(seconds / size))])
    for _ in range(_ROUNDS):
        # Weights by what was measured would favour what came out short by chance.
        found = _line(size, seconds, weights=1 / np.maximum(found[0] + found[1] * size, np.finfo(float).tiny))
    return found


def _line(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """[constant, slope], both 0 or more, of least weighted squares."""
    of = np.ones(len(x)) if weights is None else weights
    scale = float(np.abs(x).max()) or 1.0
    columns = np.column_stack([of, of * x / scale])
    constant, slope = np.linalg.lstsq(columns, of * y, rcond=None)[0]
    if slope < 0:
        constant, slope = float((of * of) @ y / (of @ of)), 0.0
    if constant < 0:
        constant, slope = 0.0, float(columns[:, 1] @ (of * y) / (columns[:, 1] @ columns[:, 1]))
    return np.array([constant, slope / scale])


def _over(inverse: float) -> float | None:
    return 1 / inverse if inverse > 0 else None


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
