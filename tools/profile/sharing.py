"""Predicts what `Sequence(share=...)` saves: events that batches hold, bytes of exchanges, time of a step.

Batches are made as for collisions, and events that several samples of a rank see are counted once. A point is
one batch size in one order, without balancing or balanced. `Balance` then keeps samples of one history on one
rank; what it is compared with is the same method without regard to that.

Letters: W ranks, G samples of a global batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.collisions.batch_order import Batches, Orders
from freescale_tools.collisions.held import Held
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import enough_for, fitting
from freescale_tools.model.durations import FLOAT, ID, step
from freescale_tools.model.hardware import Hardware, calibrated
from freescale_tools.model.step import PIPELINED
from freescale_tools.model.workload import Workload, cost_model, workload
from fsdata.balance.cost import CostModel
from fsdata.balance.exchange.step_exchange import GlobalBatch
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.packing.plan import straggler_share
from fsdata.balance.sharing import events_shared

_SMALLER, _LARGER = 1 / 4, 4  # batch sizes beside that of the profile
_STEPS = 8
_SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Of some steps, added up or averaged: `before` without sharing, `after` with it."""

    steps: int
    events: int
    shared: int
    straggler_before: float
    straggler_after: float


def sharing(
    held: Held,
    profile: Mapping[str, Any],
    hardware: Hardware,
    *,
    share: str,
    fields: int,
    dim: int,
    orders: Sequence[str],
    calibration: Calibration | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The `sharing` of a profile document.

    held: the windows of the requests, cut to the recommended length. profile: the document with stragglers and
    recommended settings. fields: lists of ids that are read of an event. dim: floats that are exchanged for an
    event. Ranks and batch size are halved until the requests are enough, as for collisions.

    A point has means per rank and step. `bytes_saved` are bytes that leave a rank: `ids`, 8 for each event and
    field; `rows` and `gradients`, 4 * `dim` for each event. Where equal ids of a rank are looked up once
    anyway (fscomm, index dedup), `rows` are not saved.
    """
    default, advice = profile["stragglers"]["default"], profile["recommended"]
    cost = cost_model(advice["cost_model"])
    hardware = calibrated(hardware, calibration) if calibration else hardware
    ranks, usual = fitting(held.rows_read, default["ranks"], default["batch_size"])
    sizes = sorted({max(int(usual * _SMALLER), 1), usual})
    sizes += [usual * _LARGER] if enough_for(held.rows_read, ranks, usual * _LARGER) else []
    in_order = Orders(held.units, held.time, held.known, seed=seed)
    points = []
    for order in orders:
        for batch_size in sizes:
            batches = in_order.batches(order, ranks=ranks, batch_size=batch_size)
            load = workload(profile, batch_size=batch_size, dim=dim, calibration=calibration)
            for balance in (None, Balance(advice["method"], cost=cost)):
                found = _over_steps(held, batches, ranks, cost, balance)
                if found is not None:
                    setting = {"order": order, "batch_size": batch_size, "balanced": balance is not None}
                    points.append(setting | _point(found, load, hardware, ranks, fields, balanced=balance is not None))
            if progress is not None:
                progress.advance(rows=_STEPS * ranks * batch_size)
    return {
        "share": share,
        "ranks": ranks,
        "max_length": advice["max_length"],
        "fields": fields,
        "dim": dim,
        "hardware": hardware.name,
        "points": points,
    }


def _over_steps(held: Held, batches: Batches, ranks: int, cost: CostModel, balance: Balance | None) -> _Found | None:
    """Of steps that are spread evenly over the data; None if the order has no whole step."""
    every = [(run, step) for run, steps in enumerate(batches.steps) for step in range(steps)]
    if not every:
        return None
    chosen = [every[len(every) * n // min(_STEPS, len(every))] for n in range(min(_STEPS, len(every)))]
    events = shared = 0
    stragglers = []
    for run, number in chosen:
        rows = batches.rows(run, number)
        place, length = held.starts[rows], held.lengths[rows]
        rank, *shares = dealt(place, length, ranks=ranks, cost=cost, balance=balance)
        events += int(length.sum())
        shared += int(length.sum() - events_shared(place, length, rank, ranks).sum())
        stragglers.append(shares)
    before, after = np.mean(stragglers, axis=0).tolist()
    return _Found(steps=len(chosen), events=events, shared=shared, straggler_before=before, straggler_after=after)


def dealt(
    place: np.ndarray, length: np.ndarray, *, ranks: int, cost: CostModel, balance: Balance | None
) -> tuple[np.ndarray, float, float]:
    """(rank of each sample, straggler share without sharing, straggler share with it) of a global batch.

    place, length: int64 [G], rank by rank. `balance`: how a loader with `share` deals them out; None leaves
    them on their ranks.
    """
    home = np.repeat(np.arange(ranks), len(place) // ranks)
    lengths = {_SEQUENCE: length}
    if balance is None:
        load = np.zeros(ranks, np.int64)
        np.add.at(load, home, cost(lengths))
        share = straggler_share(load)
        return home, share, share
    planner = StepPlanner(balance, ranks)
    apart = planner(GlobalBatch(number=0, lengths=lengths, home=home, statuses=()))
    groups = planner(GlobalBatch(number=0, lengths=lengths, home=home, statuses=(), places={_SEQUENCE: place}))
    return groups.rank, apart.straggler_after or 0.0, groups.straggler_after or 0.0


def _point(
    found: _Found, load: Workload, hardware: Hardware, ranks: int, fields: int, *, balanced: bool
) -> dict[str, Any]:
    ratio = found.shared / found.events if found.events else 1.0
    each = found.steps * ranks
    saved = (found.events - found.shared) / each * (ranks - 1) / ranks
    before, after = (
        _step_ms(load, hardware, ranks, events=load.events * of, straggler=share, balanced=balanced)
        for of, share in ((1.0, found.straggler_before), (ratio, found.straggler_after))
    )
    return {
        "steps": found.steps,
        "events": found.events / each,
        "shared_events": found.shared / each,
        "ratio": ratio,
        "bytes_saved": {
            "ids": saved * ID * fields,
            "rows": saved * FLOAT * load.dim,
            "gradients": saved * FLOAT * load.dim,
        },
        "straggler": found.straggler_before,
        "straggler_shared": found.straggler_after,
        "step_ms": before,
        "step_ms_shared": after,
    }


def _step_ms(
    load: Workload, hardware: Hardware, ranks: int, *, events: float, straggler: float, balanced: bool
) -> float:
    """A step with so many events to read, move, look up, send and update; the model computes as many as before."""
    method, way = ("fbs+swap", "all") if balanced else ("none", PIPELINED)
    lookup, apply = (ms and ms * events / load.events for ms in (load.lookup_ms, load.apply_ms))
    changed = replace(load, events=events, lookup_ms=lookup, apply_ms=apply, stragglers={(ranks, method): straggler})
    return float(step(hardware, changed, way, ranks=ranks)["step_ms"])
