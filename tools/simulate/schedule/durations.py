"""Computes how long each part of a step takes alone on given hardware.

Bytes and counts are per rank and step. W ranks. The rows and ids of a rank go to all ranks evenly, so (W - 1)
/ W of them leave the rank.
"""

import math

from freescale_tools.simulate.hardware.parameters import Hardware
from freescale_tools.simulate.schedule.step import Moves, Way, Work
from freescale_tools.simulate.workload import Workload

FLOAT, ID = 4, 8  # bytes
FIELDS = 3  # aligned sequences of a history (item, action, time) that move when samples change ranks
FORWARD = 1 / 3  # of the compute: the backward pass takes twice the forward's products
LOOKUP, APPLY = 2, 3  # times each byte crosses the memory: row in and out; gradient and row in, row out
# Bytes per dense parameter that Adam moves: weight, gradient, two moments in; weight, moments out.
OPTIMIZER = 28


def work(hardware: Hardware, workload: Workload, way: Way, *, ranks: int) -> Work:
    """The milliseconds of one way at `ranks` ranks."""
    straggler = workload.straggler(ranks, "fbs+swap" if way.balanced else "none")
    mean = 1e3 * workload.flops / (hardware.peak_flops * 1e12 * hardware.flops_efficiency)
    slowest = mean / (1 - straggler)
    rate, row_bytes = workload.collision(ranks), FLOAT * workload.dim * workload.events
    moved = ID * FIELDS * workload.events * (ranks - 1) / ranks if way.balanced else 0.0
    return Work(
        data=workload.events / (hardware.loader * 1e3),
        redistribute=_ms(moved, hardware.host_network),
        forward=slowest * FORWARD,
        backward=slowest * (1 - FORWARD),
        optimizer=_ms(OPTIMIZER * workload.dense_parameters, hardware.memory),
        id_metadata=hardware.id_metadata * workload.events / 1e6 if ranks > 1 else 0.0,
        ids=exchange(hardware, ID * workload.events, ranks, staged=way.sm_free),
        all_reduce=all_reduce(hardware, FLOAT * workload.dense_parameters, ranks),
        whole=_moves(hardware, row_bytes, ranks),
        # Nothing can run beside collision rows, so they use NCCL, which is faster.
        collision=_moves(hardware, rate * row_bytes, ranks),
        exclusive=_moves(hardware, (1 - rate) * row_bytes, ranks, staged=way.sm_free),
        straggler=straggler,
        contention=hardware.contention,
    )


def _moves(hardware: Hardware, size: float, ranks: int, *, staged: bool = False) -> Moves:
    once = exchange(hardware, size, ranks, staged=staged)
    return Moves(
        lookup=_ms(LOOKUP * size, hardware.memory), rows=once, gradients=once, apply=_ms(APPLY * size, hardware.memory)
    )


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
