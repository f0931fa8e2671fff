"""Predicts what `Sequence(share=...)` saves: events that batches hold, bytes of exchanges, time of a step.

Batches are made as for collisions, and events that several samples of a rank see are counted once. A point is
one batch size in one order, without balancing or balanced. `Balance` then keeps samples of one history on one
rank; what it is compared with is the same method without regard to that.

Letters: W ranks, G samples of a global batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.collisions.held import Held
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import PACKED, UNPACKED, Waits, enough_for, fitting, rank_share
from freescale_tools.model.durations import FLOAT, ID, step
from freescale_tools.model.hardware import Hardware, calibrated
from freescale_tools.model.step import PIPELINED
from freescale_tools.model.workload import Workload, cost_model, workload
from freescale_tools.scan.batch_order import Batches, Orders
from fsdata.balance.cost import CostModel
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.sharing import events_shared
from fsdata.balance.step_plan import GlobalBatch

_SMALLER, _LARGER = 1 / 4, 4  # batch sizes beside that of the profile
_STEPS = 8
_SEQUENCE = "sequence"


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
    in_order = Orders(held.units, held.time, held.known, seed=0)
    points = []
    for order in orders:
        for batch_size in sizes:
            batches = in_order.batches(order, ranks=ranks, batch_size=batch_size)
            load = workload(profile, batch_size=batch_size, dim=dim, calibration=calibration)
            for balance in (None, Balance(advice["method"], cost=cost)):
                found = _point(held, batches, load, hardware, ranks=ranks, fields=fields, cost=cost, balance=balance)
                if found is not None:
                    setting = {"order": order, "batch_size": batch_size, "balanced": balance is not None}
                    points.append(setting | found)
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


def _point(
    held: Held,
    batches: Batches,
    load: Workload,
    hardware: Hardware,
    *,
    ranks: int,
    fields: int,
    cost: CostModel,
    balance: Balance | None,
) -> dict[str, Any] | None:
    """Means over steps that are spread evenly over the data; None if the order has no whole step."""
    every = [(run, step) for run, steps in enumerate(batches.steps) for step in range(steps)]
    if not every:
        return None
    chosen = [every[len(every) * n // min(_STEPS, len(every))] for n in range(min(_STEPS, len(every)))]
    events = shared = 0
    stragglers, means = [], []
    for run, number in chosen:
        rows = batches.rows(run, number)
        place, length = held.starts[rows], held.lengths[rows]
        rank, *shares = dealt(place, length, ranks=ranks, cost=cost, balance=balance)
        events += int(length.sum())
        shared += int(length.sum() - events_shared(place, length, rank, ranks).sum())
        stragglers.append(shares)
        means.append(float(cost({_SEQUENCE: length}).sum()) / ranks)
    straggler, straggler_shared = np.mean(stragglers, axis=0).tolist()
    mean, ones = np.array(means), np.ones(len(means))
    lost, lost_shared = (
        Waits(mean=mean, most=mean / (1 - share), weight=ones).time_lost()[0] for share in np.array(stragglers).T
    )
    ratio = shared / events if events else 1.0
    each = len(chosen) * ranks
    saved = (events - shared) / each * (ranks - 1) / ranks
    method, way = (UNPACKED, PIPELINED) if balance is None else (PACKED, "all")

    def step_ms(share: float, lost: float) -> float:
        """Of a step that reads, moves, looks up and updates this share of the events; the model computes as before."""
        held_events = load.events * share
        lookup, apply = (ms and ms * held_events / load.events for ms in (load.lookup_ms, load.apply_ms))
        waits = {(ranks, method): lost}
        changed = replace(load, events=held_events, lookup_ms=lookup, apply_ms=apply, time_lost=waits)
        return float(step(hardware, changed, way, ranks=ranks)["step_ms"])

    return {
        "steps": len(chosen),
        "events": events / each,
        "shared_events": shared / each,
        "ratio": ratio,
        "bytes_saved": {
            "ids": saved * ID * fields,
            "rows": saved * FLOAT * load.dim,
            "gradients": saved * FLOAT * load.dim,
        },
        "straggler": straggler,
        "straggler_shared": straggler_shared,
        "time_lost": lost,
        "time_lost_shared": lost_shared,
        "step_ms": step_ms(1.0, lost),
        "step_ms_shared": step_ms(ratio, lost_shared),
    }


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
        share = rank_share(cost(lengths), home, ranks)
        return home, share, share
    planner = StepPlanner(balance, ranks)
    apart = planner(GlobalBatch(number=0, lengths=lengths, home=home, statuses=()))
    groups = planner(GlobalBatch(number=0, lengths=lengths, home=home, statuses=(), first_events={_SEQUENCE: place}))
    return groups.rank, apart.straggler_after or 0.0, groups.straggler_after or 0.0
