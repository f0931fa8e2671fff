"""Computes how long each part of a step takes alone on given hardware.

Bytes and counts are per rank and step. W ranks. The rows and ids of a rank go to all ranks evenly, so (W - 1)
/ W of them leave the rank. Loops without priorities send an id, a row and a gradient for every occurrence; prioritized
communication sends a row once to each rank, an id and a gradient for every occurrence, as exactness needs. With
TorchRec's index dedup, all ways send each distinct id of a rank, its row and one gradient once. The rank itself finds
the distinct ids, copies each row to its occurrences, and adds up the gradients of these.

Of a step in parts all are alike: the ids of a rank fall into its parts evenly and by chance (`shares_of_first`).
"""

import dataclasses
import math
from typing import Any

from freescale_tools.model.batches import PACKED, UNPACKED
from freescale_tools.model.hardware import Hardware, parameter
from freescale_tools.model.step import BUCKETS, BY_NAME, NOTHING, Moves, Way, Work, timeline
from freescale_tools.model.workload import CHANNELS, LAYERS, Workload

FLOAT, ID = 4, 8  # bytes
FORWARD = 1 / 3  # of the compute: the backward pass takes twice the forward's products
LOOKUP, APPLY = 2, 3  # times each byte crosses the memory: row in and out; gradient and row in, row out
# Times an id and its position cross the memory to find the distinct ones: 8 passes of a radix sort, in and out.
UNIQUE = 16
# Bytes per dense parameter that Adam moves: weight, gradient, two moments in; weight, moments out.
OPTIMIZER = 28
# ms: about 200 kernels of a forward and a backward pass, each of which takes about 10 us to start and to run out.
PART = 2.0


def step(hardware: Hardware, workload: Workload, way_name: str, *, ranks: int, parts: int = 1) -> dict[str, Any]:
    """The `timeline` of one of WAYS at `ranks` ranks, computed in so many parts."""
    way = dataclasses.replace(BY_NAME[way_name], parts=parts)
    return timeline(work(hardware, workload, way, ranks=ranks), way)


def assumed(workload: Workload) -> list[dict[str, Any]]:
    """What is assumed where the workload knows nothing better, as {name, value, unit, source}."""
    products = "in every layer, attention takes two products per pair of events"
    # What is known instead; name, value, unit; why it is assumed.
    assumptions: tuple[tuple[float | None, str, float, str, str], ...] = (
        (workload.compute_ms, "channels", CHANNELS, "", products),
        (workload.compute_ms, "layers", LAYERS, "", products),
        (workload.forward, "forward", FORWARD, "share of compute", "the backward pass takes twice the products"),
        (workload.lookup_ms, "lookup", LOOKUP, "passes over memory", "a row is read and written"),
        (workload.apply_ms, "apply", APPLY, "passes over memory", "gradient and row are read, the row is written"),
        (None, "optimizer", OPTIMIZER, "bytes per dense parameter", "Adam with two moments"),
        (None, "unique", UNIQUE, "passes over ids and positions", "index dedup sorts them by radix, 8 passes"),
        (None, "all_reduce_buckets", BUCKETS, "of the backward pass", "each one's gradients follow it"),
    )
    return [
        parameter(name, value, unit, f"assumed: {why}")
        for known, name, value, unit, why in assumptions
        if known is None
    ]


def part_cost(workload: Workload) -> dict[str, Any]:
    """What one more part of a step takes of the training thread, in ms, as {name, value, unit, source}.

    It is one more forward and backward pass without samples: what a calibration says that steps take whatever their
    samples, else `PART`, which is assumed.
    """
    if workload.fixed_ms:
        return parameter("part_cost", workload.fixed_ms, "ms per part", workload.sources.get("fixed_ms", "given"))
    why = "assumed: starts and ends of about 200 kernels of a forward and a backward pass, 10 us each"
    return parameter("part_cost", PART, "ms per part", why)


def shares_of_first(parts: int, *, repeats: float, collision: float) -> tuple[float, float]:
    """What first parts need of all that collides: (share of a rank's rows, share of its gradients).

    Rows: a rank uses a row `repeats` times, 1 or more, and needs it if one of these falls into the first part.
    Gradients: those whose row comes up in the first part of any rank of the next step, if it comes up in the whole step
    with probability `collision`. The number of times is taken as Poisson's, with one mean for all rows; if some rows
    are far more popular than others, first parts need more than that.
    """
    if parts == 1:
        return 1.0, 1.0
    some = (1 - (1 - collision) ** (1 / parts)) / collision if collision > 0 else 1 / parts
    return 1 - (1 - 1 / parts) ** repeats, some


def work(hardware: Hardware, workload: Workload, way: Way, *, ranks: int) -> Work:
    """The milliseconds of one way at `ranks` ranks. Exchanges end when the busiest rank has sent its bytes."""
    method = PACKED if way.balanced else UNPACKED
    mean = compute(hardware, workload)
    slowest = mean / (1 - workload.time_lost[ranks, method]) + workload.fixed_ms
    forward = FORWARD if workload.forward is None else workload.forward
    rate, back = workload.collision(ranks), workload.distinct
    colliding = min(rate * workload.colliding_distinct, back)
    returning, staying = (colliding, back - colliding) if way.dedup else (rate, 1 - rate)
    parts = way.parts
    needed, awaited = shares_of_first(parts, repeats=1 / workload.colliding_distinct, collision=rate)
    skew = workload.skews.get((ranks, method), 1.0)
    moved = batch_bytes(workload) * (ranks - 1) / ranks if way.balanced else 0.0
    ids = workload.ids * workload.events
    unique = _ms(UNIQUE * 2 * ID * ids, hardware.memory) if way.dedup else 0.0
    once = back if way.dedup else 1.0  # share of the occurrences that ways without priorities send
    own = (hardware.own_cost if way.prioritized else 0.0) + (workload.balancing_ms if way.balanced else 0.0)
    copied = _ms(batch_bytes(workload), hardware.pageable) if way.pageable else 0.0
    values = workload.dim * workload.events

    def passes(times: int, share: float, measured_ms: float | None) -> float:
        """`times` each byte of this share of the rows crosses the memory. No kernel is launched for no rows."""
        alone = _ms(times * share * FLOAT * values, hardware.memory) if measured_ms is None else share * measured_ms
        return max(alone, hardware.kernel_floor / 1e3) if share > 0 else 0.0

    def moves(rows: float, gradients: float, updates: float, copies: float, *, staged: bool = False) -> Moves:
        """Shares of the events. `rows`, `gradients`: sent forward and back. `updates`: gradients that are applied.
        `copies`: occurrences of which index dedup copies rows and adds up gradients, each like a look-up."""
        spread = passes(LOOKUP, copies, workload.lookup_ms) if way.dedup else 0.0
        sent = workload.value_bytes * values
        return Moves(
            lookup=passes(LOOKUP, rows, workload.lookup_ms) + spread,
            rows=exchange(hardware, skew * rows * sent, ranks, staged=staged),
            gradients=exchange(hardware, skew * gradients * sent, ranks, staged=staged),
            apply=passes(APPLY, updates, workload.apply_ms) + spread,
        )

    return Work(
        data=workload.events / (hardware.loader * 1e3),
        redistribute=_ms(moved, hardware.host_network),
        forward=slowest * forward,
        backward=slowest * (1 - forward),
        optimizer=_ms(OPTIMIZER * workload.dense_parameters, hardware.memory),
        id_metadata=hardware.id_metadata * once * ids / 1e6 + unique if ranks > 1 else 0.0,
        ids=exchange(hardware, ID * once * ids, ranks, staged=way.sm_free),
        all_reduce=all_reduce(hardware, FLOAT * workload.dense_parameters, ranks),
        whole=moves(once, once, once, 1.0),
        # Nothing can run beside collision rows, so they use NCCL, which is faster.
        collision=moves(needed * colliding, awaited * returning / parts, awaited * returning, rate / parts),
        exclusive=moves(back - colliding, staying, staying, 1 - rate, staged=way.sm_free),
        straggler=1 - (mean + workload.fixed_ms) / slowest,
        contention=hardware.contention,
        memory_contention=hardware.memory_contention,
        own=(own if ranks > 1 else 0.0) + copied,
        # Pieces for later parts go the same way: over NCCL, though compute runs beside them and is slowed.
        later=moves((1 - needed) * colliding / (parts - 1), returning / parts, (1 - awaited) * returning, rate / parts)
        if parts > 1
        else NOTHING,
        part=part_cost(workload)["value"],
    )


def compute(hardware: Hardware, workload: Workload) -> float:
    """Milliseconds of a mean rank's samples, forward and backward: as calibrated, else by the profile's operations."""
    if workload.compute_ms is not None:
        return workload.compute_ms
    return 1e3 * workload.flops / (hardware.peak_flops * 1e12 * hardware.flops_efficiency)


def batch_bytes(workload: Workload) -> float:
    """Bytes of a rank's batch: 8 for each field of an event."""
    return ID * workload.fields * workload.events


def exchange(hardware: Hardware, size: float, ranks: int, *, staged: bool = False) -> float:
    """Milliseconds of an all-to-all. Every rank sends `size` bytes, evenly to all ranks including itself.

    NVLink, PCIe and network work at the same time. `staged`: all bytes go through host memory (paper, section
    3).
    """
    if ranks == 1 or size == 0:
        return 0.0
    near, host = min(ranks, hardware.gpus_per_nvlink), min(ranks, hardware.gpus_per_host)
    each = size / ranks
    if staged:
        parts = [_ms(each * (ranks - 1), hardware.pcie)]
    else:
        parts = [_ms(each * (near - 1), hardware.nvlink), _ms(each * (host - near), hardware.pcie)]
    parts.append(_ms(each * (ranks - host), hardware.network))
    beyond = ranks - min(ranks, hardware.gpus_per_leaf)
    parts.append(_ms(each * beyond, hardware.network / hardware.oversubscription))
    latency = hardware.exchange_latency + hardware.peer_latency * (ranks - 1)
    return max(parts) / hardware.exchange_efficiency + latency / 1e3


def all_reduce(hardware: Hardware, size: float, ranks: int) -> float:
    """Milliseconds of a ring all-reduce of `size` bytes. All adapters of a host share the work."""
    if ranks == 1 or size == 0:
        return 0.0
    bridged = ranks <= hardware.gpus_per_nvlink or hardware.gpus_per_nvlink == hardware.gpus_per_host
    speed = hardware.nvlink if bridged else min(hardware.nvlink, hardware.pcie)
    if ranks > hardware.gpus_per_host:
        speed = min(speed, hardware.network * hardware.gpus_per_host)
    moved = 2 * size * (ranks - 1) / ranks
    latency = hardware.exchange_latency + 2 * math.log2(ranks) * hardware.peer_latency
    return _ms(moved, speed) / hardware.allreduce_efficiency + latency / 1e3


def _ms(size: float, gigabytes_s: float) -> float:
    return size / (gigabytes_s * 1e6)
