"""Moving embeddings behind the look-up instead of raw inputs before it: bytes and time of both."""

import time

import numpy as np
import torch
import torch.distributed as dist
from common.lengths import Lengths

from fsdata.balance.embedding import Dispatcher, combine, dispatch
from fsdata.balance.options import StepPlanner

DIMS = (16, 64)
WARM_UP = 2


def embedding_stage(
    rank: int, world_size: int, *, steps: int, samples: int, lengths: Lengths, dim: int, planner: StepPlanner
) -> dict[str, float]:
    """Milliseconds per step of this rank for plan, forward and backward, and MB sent, by nothing but the exchange."""
    spent = {"plan": 0.0, "forward": 0.0, "backward": 0.0}
    sent = 0
    with Dispatcher(planner, timeout_s=60) as dispatcher:
        for step in range(WARM_UP + steps):
            length = torch.from_numpy(lengths.batch(samples, seed=step * world_size + rank))
            values = torch.ones(int(length.sum()), dim, requires_grad=True)
            dist.barrier()
            marks = [time.perf_counter()]
            handle = dispatcher.plan({"uih": length})
            marks.append(time.perf_counter())
            there = dispatch(values, handle)
            outputs = combine(there.new_ones(handle.num_samples, 1) * there.sum(), handle)
            marks.append(time.perf_counter())
            outputs.sum().backward()
            marks.append(time.perf_counter())
            if step >= WARM_UP:
                for name, taken in zip(spent, np.diff(marks).tolist(), strict=True):
                    spent[name] += taken
                away = handle._values.sent
                sent += 2 * 4 * dim * (sum(away) - away[rank])
    return {**{name: 1e3 * seconds / steps for name, seconds in spent.items()}, "MB sent": sent / 1e6 / steps}
