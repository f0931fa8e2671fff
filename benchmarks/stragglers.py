"""What balancing leaves of the straggler share in simulation, over ranks, batch size, and costs that are wrong.

Straggler share = 1 - mean / max of rank time (the paper's Figures 2 and 8). No training: the time of a rank is the cost
of its samples. Run: python benchmarks/stragglers.py
"""

import dataclasses
from typing import Any

import numpy as np
from common.lengths import LONGEST, PAPER_LIKE, lognormal
from common.table import argument_parser, emit

from fsdata.balance.cost import CostModel, Polynomial, Power
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share

NODE = 8
METHODS = ("fbs", "fbs+swap", "vbs", "repair", "hierarchical")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table."""

    name: str
    ranks: int = 64
    per_rank: int = 128
    steps: int = 40
    planned_by: CostModel = dataclasses.field(default_factory=Polynomial)


CASES = [
    Case(name="true cost"),
    Case(name="planned by tokens", planned_by=Power(alpha=1)),
    *(Case(name="ranks", ranks=ranks, steps=max(2560 // ranks, 4)) for ranks in (8, 16, 32, 128, 256, 512, 1024)),
    *(Case(name="batch size", per_rank=size) for size in (16, 32, 64, 256, 512)),
]


def simulate(case: Case) -> list[Any]:
    """Mean straggler share per method in percent, and the share that no equal-count plan gets below."""
    ranks, n = case.ranks, case.ranks * case.per_rank
    home = np.repeat(np.arange(ranks), case.per_rank)
    shares: dict[str, list[float]] = {method: [] for method in ("none", *METHODS, "floor")}
    for step in range(case.steps):
        length = lognormal(n, step, median=PAPER_LIKE)
        true = Polynomial()({"uih": length})
        planned = case.planned_by({"uih": length})
        shares["none"].append(straggler_share(np.bincount(home, true, ranks)))
        for method in METHODS:
            given: dict[str, Any] = {"method": method, "home": home, "tokens": length}
            if method == "vbs":
                given |= {"min_count": case.per_rank * 3 // 4, "max_count": case.per_rank * 5 // 4}
            if method == "hierarchical":
                given["ranks_per_node"] = NODE
            plan = pack(planned, ranks, **given)
            shares[method].append(straggler_share(np.bincount(plan.rank, true, ranks)))
            if method == "fbs+swap":
                shares["floor"].append(plan.lower_bound)
    values = [float(np.mean(found)) * 100 for found in shares.values()]
    return [case.name, ranks, case.per_rank, LONGEST, *values]


def main() -> None:
    results = argument_parser(__doc__).parse_args().results
    emit(
        "stragglers",
        "Straggler %, simulated: lognormal lengths (median 4000, sigma 0.55), cost L^2 + 2000 L",
        ["case", "ranks", "batch", "max UIH", "none", *METHODS, "floor"],
        [simulate(case) for case in CASES],
        notes=[
            "Means over 4-320 steps. The paper, 64 ranks, batch 128, max 21,000: 22 % without, 2.4 % with balancing.",
            "floor: no plan with equal counts gets below it, by the costs the plan is made with.",
            "A wrong model hurts repair and hierarchical most: they stop at the tolerance, by the model's costs.",
            "vbs: counts within 25 % of the batch size; repair and hierarchical stop at 0.1 %.",
        ],
        data="lognormal lengths, simulated",
        results=results,
    )


if __name__ == "__main__":
    main()
