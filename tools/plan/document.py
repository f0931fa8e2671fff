"""What `freescale plan` says of plans: tables, ranks and steps. Pure: plans in, a dict that JSON can hold out."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from freescale_tools.model.workload import Workload
from freescale_tools.plan.costs import Placed, Setting, by_rank, parts
from freescale_tools.plan.steps import PRIORITIZED, SHOWN, compute_ms, rated, step_ms


class Plan(Protocol):
    """`placed`: every table and where it lies. `memory`: bytes of each rank."""

    @property
    def placed(self) -> Sequence[Placed]: ...

    @property
    def memory(self) -> Sequence[int]: ...


def document(plans: Mapping[str, Plan], setting: Setting, workload: Workload) -> dict[str, Any]:
    """{placed, balance, steps, collision, compute_ms}; `plans` are `chosen` and `torchrec`. Milliseconds and bytes."""
    collision = workload.collision(setting.ranks)
    chosen = plans["chosen"]
    return {
        "compute_ms": compute_ms(setting.hardware, workload),
        "collision": collision,
        "placed": [_table(one, setting, collision) for one in chosen.placed],
        "balance": {name: _balance(one, setting) for name, one in plans.items()},
        "steps": [_step(name, one, way, setting, workload) for way in SHOWN for name, one in plans.items()],
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
        "ranks": sorted({shard.rank for shard in placed.shards}) or list(range(setting.ranks)),
        "bytes": table.rows * table.dim * table.value_bytes,
        "ids_per_sample": table.ids,
        "lookup_ms": found.lookup + found.apply,
        "communication_ms": found.ids + found.rows + found.gradients + found.all_reduce,
        "plain_ms": found.total,
        "overlapped_ms": rated(found, compute=found.total, collision=collision, way=PRIORITIZED),
    }


def _balance(plan: Plan, setting: Setting) -> dict[str, Any]:
    """[W] each, and under `over_mean` how much the busiest rank has over the mean, as a share."""
    found = {**by_rank(plan.placed, setting), "memory_bytes": np.array(plan.memory, np.float64)}
    return {
        **{name: values.tolist() for name, values in found.items()},
        "over_mean": {name: _over(values) for name, values in found.items()},
    }


def _over(values: np.ndarray) -> float:
    mean = float(values.mean())
    return float(values.max()) / mean - 1 if mean else 0.0


def _step(name: str, plan: Plan, way: str, setting: Setting, workload: Workload) -> dict[str, Any]:
    found = parts(plan.placed, setting)
    step = step_ms(found, setting.hardware, workload, ranks=setting.ranks, way=way)
    return {
        "way": way, "plan": name, "step_ms": step["step_ms"], "exposed_ms": step["bubbles"]["exposed_ms"],
        **{f"{part}_ms": getattr(found, part) for part in found.__dataclass_fields__},
    }  # fmt: skip
