"""What `freescale plan` says of plans: tables, ranks, and steps beside the computation. Pure: plans in, a dict out.

The model's compute, the share of collisions and of rows that a rank uses twice come from the profile and the
calibration, as `freescale simulate` reads them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.model.durations import compute, work
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.step import BY_NAME, Moves, timeline
from freescale_tools.model.workload import Workload
from freescale_tools.plan.costs import PRIORITIZED, SHOWN, Parts, Placed, Setting, by_rank, parts, rated


def document(plans: Mapping[str, Sequence[Placed]], setting: Setting, workload: Workload) -> dict[str, Any]:
    """{placed, balance, steps, collision, compute_ms}; `plans` are `chosen` and `torchrec`. Milliseconds and bytes."""
    collision = workload.collision(setting.ranks)
    return {
        "compute_ms": compute_ms(setting.hardware, workload),
        "collision": collision,
        "placed": [_table(one, setting, collision) for one in plans["chosen"]],
        "balance": {name: _balance(plan, setting) for name, plan in plans.items()},
        "steps": [_step(name, plan, way, setting, workload) for way in SHOWN for name, plan in plans.items()],
    }


def _table(placed: Placed, setting: Setting, collision: float) -> dict[str, Any]:
    """One table as if it were alone.

    `overlapped_ms`: what prioritized communication leaves of it beside compute that is long enough.
    """
    table, found = placed.table, parts([placed], setting)
    return {
        "table": table.name,
        "module": table.module,
        "sharding": placed.sharding,
        "ranks": sorted({shard.rank for shard in placed.shards}),
        "bytes": table.rows * table.dim * table.value_bytes,
        "ids_per_sample": table.ids,
        "lookup_ms": found.lookup + found.apply,
        "communication_ms": found.ids + found.rows + found.gradients + found.all_reduce,
        "plain_ms": found.total,
        "overlapped_ms": rated(found, compute=found.total, collision=collision, way=PRIORITIZED),
    }


def _balance(plan: Sequence[Placed], setting: Setting) -> dict[str, Any]:
    """[W] each, and under `over_mean` how much the busiest rank has over the mean, as a share."""
    found = by_rank(plan, setting)
    return {
        **{name: values.tolist() for name, values in found.items()},
        "over_mean": {name: _over(values) for name, values in found.items()},
    }


def _over(values: np.ndarray) -> float:
    mean = float(values.mean())
    return float(values.max()) / mean - 1 if mean else 0.0


def _step(name: str, plan: Sequence[Placed], way: str, setting: Setting, workload: Workload) -> dict[str, Any]:
    found = parts(plan, setting)
    step = step_ms(found, setting.hardware, workload, ranks=setting.ranks, way=way)
    return {
        "way": way, "plan": name, "step_ms": step["step_ms"], "exposed_ms": step["bubbles"]["exposed_ms"],
        **{f"{part}_ms": value for part, value in dataclasses.asdict(found).items()},
    }  # fmt: skip


def step_ms(parts: Parts, hardware: Hardware, workload: Workload, *, ranks: int, way: str) -> dict[str, Any]:
    """{step_ms, exposed_ms, ...} of `timeline` for one of SHOWN, with the parts of a plan in place of the mean rank's.

    Shares of collisions, of rows that are used twice, and the dense part stay as `durations.work` has them. Collisions
    are shares of all events together: the profile counts them for one column.
    """
    usual = work(hardware, workload, BY_NAME[way], ranks=ranks)
    rate, back = workload.collision(ranks), workload.distinct
    colliding = min(rate * workload.colliding_distinct, back)
    planned = dataclasses.replace(
        usual,
        id_metadata=0.0,
        ids=parts.ids,
        all_reduce=usual.all_reduce + parts.all_reduce,
        whole=_moves(parts, 1.0, 1.0),
        collision=_moves(parts, colliding, rate),
        exclusive=_moves(parts, back - colliding, 1 - rate),
    )
    return timeline(planned, BY_NAME[way])


def _moves(parts: Parts, rows: float, gradients: float) -> Moves:
    return Moves(
        lookup=rows * parts.lookup, rows=rows * parts.rows, gradients=gradients * parts.gradients,
        apply=gradients * parts.apply,
    )  # fmt: skip


def compute_ms(hardware: Hardware, workload: Workload) -> float:
    """Milliseconds of forward and backward of a mean rank, with what a step takes whatever its samples."""
    return compute(hardware, workload) + workload.fixed_ms
