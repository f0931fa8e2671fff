"""The paper-like set: lognormal lengths whose straggler share is the paper's, 22 % at 64 ranks of 128 samples."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from freescale_tools.model.batches import PACKED, UNPACKED, Waits, rank_share
from freescale_tools.model.workload import DENSE_PARAMETERS, PAPER_COLLISION, Workload, flops
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial
from fsdata.balance.packing import pack

BATCH_SIZE, MEDIAN, LONGEST, SIGMA = 128, 4000, 21_000, 0.55
_PACKED = {UNPACKED: UNPACKED, PACKED: "fbs+swap"}


def paper_like(*, longest: int = LONGEST, ranks: int = 64, steps: int = 50) -> Iterator[np.ndarray]:
    """int64[ranks * BATCH_SIZE] per step."""
    for step in range(steps):
        drawn = np.random.default_rng((ranks, step)).standard_normal(ranks * BATCH_SIZE)
        yield np.clip(np.rint(MEDIAN * np.exp(SIGMA * drawn)), 1, longest).astype(np.int64)


def paper_workload(*, dim: float, longest: int = LONGEST, ranks: int = 64) -> Workload:
    """The set, with the time that it loses without balancing and by fbs+swap."""
    lengths = list(paper_like(longest=longest, ranks=ranks))
    histogram = LengthHistogram.of(np.concatenate(lengths))
    return Workload(
        batch_size=BATCH_SIZE,
        events=BATCH_SIZE * histogram.mean,
        flops=BATCH_SIZE * flops(histogram.lengths, histogram.counts),
        dim=dim,
        dense_parameters=DENSE_PARAMETERS,
        time_lost={(ranks, name): time_lost(lengths, method, ranks) for name, method in _PACKED.items()},
        collisions={ranks: PAPER_COLLISION},
    )


def time_lost(lengths: list[np.ndarray], method: Any, ranks: int) -> float:
    costs = [Polynomial()({"sequence": step}) for step in lengths]
    home = np.repeat(np.arange(ranks), len(costs[0]) // ranks)
    mean = np.array([float(cost.sum()) / ranks for cost in costs])
    placed = (home if method == UNPACKED else pack(cost, ranks, method=method).rank for cost in costs)
    even = np.array([1 - rank_share(cost, rank, ranks) for cost, rank in zip(costs, placed, strict=True)])
    return Waits(mean=mean, most=mean / even, weight=np.ones(len(costs))).time_lost()[0]
