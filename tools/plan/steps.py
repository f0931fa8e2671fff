"""What a step takes with a plan: the parts of `costs` beside the computation of the model, in each way to train. Pure.

The model's compute, the share of collisions and of rows that a rank uses twice come from the profile and the
calibration, as `freescale simulate` reads them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from freescale_tools.model.durations import work
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.step import WAYS, Moves, Way, Work, timeline
from freescale_tools.model.workload import Workload
from freescale_tools.plan.costs import Parts

PLAIN, PIPELINED, PRIORITIZED = "plain", "sparse dist", "prioritized"
SHOWN = (PLAIN, PIPELINED, PRIORITIZED)
_WAYS: Mapping[str, Way] = {way.name: way for way in WAYS}


def step_ms(parts: Parts, hardware: Hardware, workload: Workload, *, ranks: int, way: str) -> dict[str, Any]:
    """{step_ms, exposed_ms, ...} of `timeline` for one of SHOWN, with the parts of a plan in place of the mean rank's.

    Collisions are shares of all events together: the profile counts them for one column.
    """
    return timeline(_work(parts, hardware, workload, ranks, _WAYS[way]), _WAYS[way])


def compute_ms(hardware: Hardware, workload: Workload) -> float:
    """Milliseconds of forward and backward of a mean rank, as calibrated, else from the operations of the profile."""
    if workload.compute_ms is not None:
        return workload.compute_ms + workload.fixed_ms
    return 1e3 * workload.flops / (hardware.peak_flops * 1e12 * hardware.flops_efficiency) + workload.fixed_ms


def rated(parts: Parts, *, compute: float, collision: float, way: str) -> float:
    """Milliseconds that a step waits for tables, in closed form: what plans are compared by while they are searched.

    `plain`: everything. `sparse dist`: ids as far as they take longer than the compute. `prioritized`: the share of
    collisions, and what of the rest takes longer than the compute. Dense gradients always count. `compute` in
    milliseconds, `collision` a share.
    """
    if way == PLAIN:
        return parts.total
    moved = parts.total - parts.ids - parts.all_reduce
    if way == PIPELINED:
        return max(parts.ids - compute, 0.0) + moved + parts.all_reduce
    colliding = collision * moved
    return colliding + parts.all_reduce + max(parts.ids + moved - colliding - compute, 0.0)


def _work(parts: Parts, hardware: Hardware, workload: Workload, ranks: int, way: Way) -> Work:
    """As `durations.work`, whose shares of collisions, of double rows and whose dense part stay."""
    usual = work(hardware, workload, way, ranks=ranks)
    rate, back = workload.collision(ranks), workload.distinct
    colliding = min(rate * workload.colliding_distinct, back)
    return dataclasses.replace(
        usual,
        id_metadata=0.0,
        ids=parts.ids,
        all_reduce=usual.all_reduce + parts.all_reduce,
        whole=_moves(parts, 1.0, 1.0),
        collision=_moves(parts, colliding, rate),
        exclusive=_moves(parts, back - colliding, 1 - rate),
    )


def _moves(parts: Parts, rows: float, gradients: float) -> Moves:
    return Moves(
        lookup=rows * parts.lookup, rows=rows * parts.rows, gradients=gradients * parts.gradients,
        apply=gradients * parts.apply,
    )  # fmt: skip
