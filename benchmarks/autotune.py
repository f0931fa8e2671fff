"""How fast AutoTune evens out ranks of different speed, in simulation.

Four ranks, one 1.5x slower; a rank's time is the cost of its samples times its slowness. Reports of compute time reach
the plan three steps later, as with two prefetched batches. Run: python benchmarks/autotune.py
"""

import dataclasses
import json

import numpy as np
from common.lengths import PAPER_LIKE
from common.table import emit

from fsdata.balance.exchange import GlobalBatch, StatusWord
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.packing import Method
from fsdata.balance.packing.plan import straggler_share

SLOWNESS = (1.0, 1.5, 1.0, 1.0)
PER_RANK = 128
REPORT_DELAY = 3
STEPS = 60
RESUME_AT = 30
METHODS: tuple[Method, ...] = ("fbs+swap", "vbs", "repair")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table."""

    method: Method = "fbs+swap"
    jitter: float = 0.0
    """Relative standard deviation of a rank's time from step to step."""
    autotune: bool = True


CASES = [
    Case(autotune=False),
    *(Case(method=method) for method in METHODS),
    *(Case(method=method, jitter=0.01) for method in METHODS),
]


def simulate(case: Case) -> np.ndarray:
    """True straggler share of every step, float64 [STEPS]; at RESUME_AT the planner is made anew from its state."""
    balance = Balance(case.method, autotune=case.autotune)
    planner = StepPlanner(balance, len(SLOWNESS))
    rng = np.random.default_rng(0)
    home = np.repeat(np.arange(len(SLOWNESS)), PER_RANK)
    nanoseconds: list[np.ndarray] = []
    stragglers = np.zeros(STEPS)
    for step in range(STEPS):
        if step == RESUME_AT:
            state = json.loads(json.dumps(planner.state_dict()))
            planner = StepPlanner(balance, len(SLOWNESS))
            planner.load_state_dict(state)
        lengths = {"uih": PAPER_LIKE.batch(len(home), seed=step)}
        batch = GlobalBatch(number=step, lengths=lengths, home=home, statuses=_statuses(step, nanoseconds))
        rank = planner(batch).rank
        load = np.bincount(rank, weights=balance.cost(lengths), minlength=len(SLOWNESS))
        time = load * SLOWNESS * (1 + case.jitter * rng.standard_normal(len(SLOWNESS)))
        nanoseconds.append(np.rint(time).astype(np.int64))
        stragglers[step] = straggler_share(time)
    return stragglers


def _statuses(step: int, nanoseconds: list[np.ndarray]) -> tuple[StatusWord, ...]:
    plain = StatusWord(epoch=0, step=step)
    reported = step - REPORT_DELAY
    if reported < 0:
        return (plain,) * len(SLOWNESS)
    times = nanoseconds[reported].tolist()
    return tuple(dataclasses.replace(plain, compute_ns=time, compute_step=reported) for time in times)


def main() -> None:
    rows = []
    for case in CASES:
        stragglers = simulate(case) * 100
        below = np.flatnonzero(stragglers >= 2)
        settled = int(below[-1]) + 1 if len(below) else 0
        rows.append(
            [
                case.method,
                "on" if case.autotune else "off",
                case.jitter * 100,
                float(stragglers[0]),
                settled if settled < STEPS else None,
                float(stragglers[20:RESUME_AT].mean()),
                float(stragglers[RESUME_AT:].mean()),
            ]
        )
    emit(
        "autotune",
        "4 simulated ranks, one 1.5x slower: straggler share, %",
        ["method", "autotune", "jitter %", "first step", "below 2 from step", "steps 20-29", "after resume"],
        rows,
        notes=[f"Reports reach the plan {REPORT_DELAY} steps later; resumed from the saved state at step {RESUME_AT}."],
        data="lognormal lengths, simulated",
    )


if __name__ == "__main__":
    main()
