"""Plans and cost models: pure functions of integers."""

from functools import cache
from pathlib import Path
from typing import Any

import golden_digest as digest
import numpy as np
from golden_data import number

from fsdata import Plan, Polynomial, Power, pack

METHODS = ("fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")
SHAPES = ((2, 11), (3, 40), (4, 4), (8, 203), (64, 1500), (6, 3), (16, 0), (1, 9))
"""Ranks, samples."""
WITH_HOME = ("repair", "hierarchical")
WITH_CAP = ("fbs+swap", "vbs", "repair", "hierarchical")


def plans(folder: Path) -> dict[str, Any]:
    return {
        "plans": {
            f"{method}, {ranks} ranks, {samples} samples, seed {seed}": _plans(method, ranks, samples, seed)
            for method in METHODS
            for ranks, samples in SHAPES
            for seed in range(2 if ranks == 3 else 1)
        },
        "costs": _costs(),
    }


@cache
def lengths_of(samples: int, seed: int) -> np.ndarray:
    """Many short ones, some of 0, few long ones."""
    powers = [number("power", seed, n, below=12) for n in range(samples)]
    return np.array([number("length", seed, n, below=2**power) for n, power in enumerate(powers)], np.int64)


@cache
def _homes(ranks: int, samples: int, seed: int) -> np.ndarray:
    return np.array([number("home", seed, n, below=ranks) for n in range(samples)], np.int64)


def _plans(method: str, ranks: int, samples: int, seed: int) -> dict[str, str]:
    """A plan without options, and one for every option that the method has."""
    tokens = lengths_of(samples, seed)
    home = _homes(ranks, samples, seed)
    required: dict[str, Any] = {"method": method}
    if method in WITH_HOME:
        required["home"] = home
    if method == "hierarchical":
        required["ranks_per_node"] = 2 if ranks % 2 == 0 else 1
    options: dict[str, dict[str, Any]] = {"plain": {}, "home": {"home": home, "tokens": tokens}}
    if method != "fbs":
        options["speed"] = {"speed": [1 + number("speed", seed, rank, below=5) / 4 for rank in range(ranks)]}
    if method in WITH_HOME:
        options["tolerance"] = {"tolerance": 0.05, "tokens": tokens}
    if method == "vbs":
        options["counts"] = {"min_count": samples // ranks // 2, "max_count": samples // ranks + 3}
    if method in WITH_CAP:
        options["cap"] = {"tokens": tokens, "max_tokens": int(tokens.sum()) // ranks * 5 // 4 + 1}
        options["tight cap"] = {"tokens": tokens, "max_tokens": int(max(tokens.max(initial=0), tokens.sum() / ranks))}
    costs = Polynomial()({"uih": tokens})
    return {name: _outcome(costs, ranks, {**required, **more}) for name, more in options.items()}


def _outcome(costs: np.ndarray, ranks: int, options: dict[str, Any]) -> str:
    try:
        return _text(pack(costs, ranks, **options))
    except ValueError as error:
        return f"ValueError: {error}"


def _text(plan: Plan) -> str:
    """Written out where it is short, else a digest; dtypes are part of it."""
    arrays = (plan.rank, plan.counts, plan.load)
    shown = f"straggler {plan.straggler!r} bound {plan.lower_bound!r} moved {plan.moved!r}"
    if len(plan.rank) > 12:
        return f"{shown} {digest.of_parts([[str(array.dtype), array.tolist()] for array in arrays])}"
    rank, counts, load = (f"{digest.words(array)} ({array.dtype})" for array in arrays)
    return f"{shown} rank {rank} counts {counts} load {load}"


def _costs() -> dict[str, str]:
    lengths = {"uih": lengths_of(12, 7), "recent": lengths_of(12, 8), "candidates": lengths_of(12, 9) % 5}
    models = [
        Polynomial(),
        Polynomial(linear=3, quadratic=0, candidate=11),
        *(Power(alpha=alpha) for alpha in (0.3, 1, 1.37, 2, 2.9)),
    ]
    return {repr(model): digest.words(model(lengths)) for model in models}
