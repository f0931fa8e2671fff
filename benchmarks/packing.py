"""How even are the plans of each packing method, what do they cost, how much do they move?

128 samples a rank, lognormal lengths (median 2000, sigma 0.55, clipped to 1-21,000), cost L^2 + 2000 L. The yardstick
is one stable numpy argsort of the same costs, timed in turn with the methods. Run: python benchmarks/packing.py
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common.lengths import lognormal
from common.table import argument_parser, emit

from fsdata.balance.cost import Polynomial
from fsdata.balance.packing import Plan, pack
from fsdata.balance.packing.plan import straggler_share

MEDIAN = 2000
PER_RANK = 128
NODE = 8
SEEDS = range(10)
REPEATS = {64: 40, 256: 20, 1024: 8}
METHODS: dict[str, str] = {
    "fbs": "the paper's zig-zag",
    "fbs+swap": "default",
    "vbs": "counts within 25 %, tokens within 1.25x",
    "vbs-contiguous": "the paper's cut",
    "repair": "tolerance 0.1 %",
    "hierarchical": "nodes of 8, tolerance 0.1 %",
}


def arguments(method: str, length: np.ndarray, ranks: int) -> dict[str, Any]:
    given: dict[str, Any] = {"method": method, "tokens": length, "home": np.repeat(np.arange(ranks), PER_RANK)}
    if method == "vbs":
        given |= {"min_count": 96, "max_count": 160, "max_tokens": int(1.25 * length.sum() / ranks)}
    if method == "hierarchical":
        given["ranks_per_node"] = NODE
    return given


def once(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def crossing(plan: Plan, length: np.ndarray, ranks: int) -> float:
    home = np.repeat(np.arange(ranks), PER_RANK)
    return float(length[plan.rank // NODE != home // NODE].sum() / length.sum())


def measure(ranks: int) -> list[list[Any]]:
    """The rows of one number of ranks; times are the best of several, methods and yardstick in turn."""
    batches = [lognormal(ranks * PER_RANK, seed, median=MEDIAN) for seed in SEEDS]
    costs = [Polynomial()({"uih": length}) for length in batches]
    plans = {
        m: [pack(c, ranks, **arguments(m, n, ranks)) for c, n in zip(costs, batches, strict=True)] for m in METHODS
    }
    calls: dict[str, Callable[[], Any]] = {"": lambda: np.argsort(costs[0], kind="stable")}
    for method in METHODS:
        calls[method] = functools.partial(pack, costs[0], ranks, **arguments(method, batches[0], ranks))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEATS[ranks]):
        for method, call in calls.items():
            best[method] = min(best[method], once(call))
    loads = [cost.reshape(ranks, PER_RANK).sum(axis=1) for cost in costs]
    idle = [100 * straggler_share(load) for load in loads]
    rows: list[list[Any]] = [[ranks, "none", "", None, best[""], None, np.mean(idle), max(idle), 0.0, 0.0, None]]
    for method, what in METHODS.items():
        found = plans[method]
        share = [plan.straggler * 100 for plan in found]
        moved = np.mean([plan.moved for plan in found]) * 100
        crossed = np.mean([crossing(plan, n, ranks) for plan, n in zip(found, batches, strict=True)]) * 100
        counts = f"{min(int(plan.counts.min()) for plan in found)}-{max(int(plan.counts.max()) for plan in found)}"
        ms = best[method]
        rows.append(
            [ranks, method, what, ms, best[""], ms / best[""], np.mean(share), max(share), moved, crossed, counts]
        )
    return [[float(value) if isinstance(value, np.floating) else value for value in row] for row in rows]


def main() -> None:
    results = argument_parser(__doc__).parse_args().results
    rows = [row for ranks in REPEATS for row in measure(ranks)]
    emit(
        "packing",
        "Packing 128 samples a rank, cost L^2 + 2000 L",
        [
            "ranks",
            "method",
            "setting",
            "ms",
            "argsort ms",
            "ratio",
            "straggler %",
            "worst %",
            "moved %",
            "crossing %",
            "counts",
        ],
        rows,
        notes=[
            f"Straggler, moved, crossing: mean over {len(SEEDS)} global batches, worst %: the worst of them. Crossing: "
            f"share of tokens that leave their node of {NODE} ranks.",
            "ms: best time of one complete pack() call, with its checks, sort and report; ratio: to the argsort.",
        ],
        data="lognormal lengths, simulated",
        results=results,
    )


if __name__ == "__main__":
    main()
