"""Ranks of a benchmark: processes with a gloo default group, which all do the same."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.distributed as dist


def run_ranks(world_size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, world_size, *arguments)` returns on each of so many new processes with one thread for torch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(world_size, mp_context=multiprocessing.get_context("spawn")) as pool:
        ranks = [pool.submit(_rank, rank, world_size, port, work, arguments) for rank in range(world_size)]
        return [rank.result() for rank in ranks]


def slowest(mine: list[float]) -> list[float]:
    """Collective: entry by entry, the largest of all ranks."""
    of_all = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(of_all, dist.ReduceOp.MAX)
    return of_all.tolist()


def before_others() -> None:
    """Gives this process a high priority where that is allowed: what else runs on the machine would be measured too."""
    if os.geteuid() == 0:
        os.nice(-15)


def _rank(rank: int, world_size: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    before_others()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    try:
        return work(rank, world_size, *arguments)
    finally:
        dist.destroy_process_group()
