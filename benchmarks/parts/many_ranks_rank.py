"""What the ranks of `many_ranks.py` do when called."""

import os
import signal
import time
from typing import Any

import torch.distributed as dist
from exposure.model import sharded
from exposure.rank import Stream
from exposure.shape import Shape

import fscomm
from fscomm.report.report import Forwards

TIMEOUT_S = 60.0


def prepare(state: dict[str, Any], *, shape: dict[str, Any]) -> None:
    made = Shape(**{**shape, "sharding": tuple(shape["sharding"]), "pooled": tuple(shape["pooled"])})
    state["stream"] = Stream(made, rate=0.12, skew=0.0)
    state["model"], state["optimizer"] = sharded(made)


def block(state: dict[str, Any], *, steps: int) -> dict[str, float]:
    """Enter, train and leave. Seconds to import, enter and leave, milliseconds a step, milliseconds waited in all."""
    batches = state["stream"].batches(0, steps)
    dist.barrier()
    begin = time.perf_counter()
    enable = fscomm.enable  # the first use of a name imports what is behind it
    imported = time.perf_counter()
    dist.barrier()
    begun = time.perf_counter()
    with enable(state["model"], timeout_s=TIMEOUT_S) as comm:
        entered = time.perf_counter()
        for batch in comm.lookahead(batches):
            _step(state, batch)
        trained = time.perf_counter()
    left = time.perf_counter()
    report = comm.report()
    return {
        "import_s": imported - begin,
        "enable_s": entered - begun,
        "leave_s": left - trained,
        "step_ms": 1e3 * (trained - entered) / steps,
        "waited_ms": sum(report.total.exposed_ms.values()),
        "served": sum(report.forwards.values(), Forwards()).ids_share,
    }


def lose(state: dict[str, Any], *, victim: int, steps: int) -> dict[str, Any]:
    """Rank `victim` kills itself in the middle; the others say after how many seconds they raised, and what."""
    batches = state["stream"].batches(steps, steps)
    dist.barrier()
    lost_at = time.perf_counter()
    try:
        with fscomm.enable(state["model"], timeout_s=TIMEOUT_S) as comm:
            for number, batch in enumerate(comm.lookahead(batches)):
                if number == steps // 2:
                    lost_at = time.perf_counter()
                    if dist.get_rank() == victim:
                        os.kill(os.getpid(), signal.SIGKILL)
                _step(state, batch)
    except fscomm.FreeScaleError as error:
        return {"after_s": time.perf_counter() - lost_at, "said": str(error)}
    return {"after_s": 0.0, "said": "nothing"}


def _step(state: dict[str, Any], batch: Any) -> None:
    state["optimizer"].zero_grad()
    loss, _ = state["model"](batch)
    loss.backward()
    state["optimizer"].step()
