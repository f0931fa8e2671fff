"""Times exchanges among the ranks that torchrun started, and matrix products beside them.

Every function is collective over all ranks and blocks. Times are those of the slowest rank: seconds.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from freescale_tools.console.ranks import join_ranks

_WARM_UP = 2
_BESIDE_BYTES = 4 * 1024 * 1024
_UNDER_WAY = 4  # exchanges that follow each other while a product runs
_FLOAT = 4


def measured(
    backend: str | None, *, worlds: Sequence[int], sizes: Sequence[int], repeats: int, width: int, timeout_s: float
) -> dict[str, Any]:
    """{where, ranks_per_host, points, all_reduce, product} of all ranks, which join for it and part again.

    Args:
        backend: gloo or nccl; None: nccl where there is CUDA.
        worlds, sizes: of `all_to_alls`, ascending; the last world has all ranks.
        width: of the matrix product.

    Raises RuntimeError or ValueError if the ranks cannot connect, or cannot exchange.
    """
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    device, name = torch.device("cpu"), "CPU"
    if backend == "nccl":
        if not torch.cuda.is_available():
            raise ValueError("--backend nccl needs CUDA, and torch sees none here: give --backend gloo")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        name = torch.cuda.get_device_name(device)
    join_ranks(backend, timeout_s=timeout_s)
    try:
        points = all_to_alls(device, worlds, sizes, repeats=repeats)
        reduce_s = all_reduce(device, sizes[-1], repeats=repeats)
        alone_s, beside_s = slowdown(device, width=width, repeats=repeats)
    finally:
        dist.destroy_process_group()
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", worlds[-1]))
    return {
        "where": f"{worlds[-1]} ranks, {per_host} a host, {backend}, {name}",
        "ranks_per_host": per_host,
        "points": points,
        "all_reduce": {"bytes": sizes[-1], "seconds": reduce_s},
        "product": {"width": width, "alone_s": alone_s, "beside_s": beside_s},
    }


def all_to_alls(
    device: torch.device, worlds: Sequence[int], sizes: Sequence[int], *, repeats: int
) -> list[dict[str, Any]]:
    """{ranks, bytes, seconds} of all-to-alls among the first ranks, for every world and size; the same on all ranks.

    `bytes` is what a rank gives, its own part included, rounded to whole floats for every rank. `seconds` is the median
    of `repeats`.
    """
    found = []
    for ranks in worlds:
        group = dist.new_group(list(range(ranks)))
        for size in sizes:
            part = max(round(size / ranks / _FLOAT), 1)
            exchange = None
            if dist.get_rank() < ranks:
                given, got = (torch.zeros(part * ranks, device=device) for _ in range(2))
                exchange = partial(dist.all_to_all_single, got, given, group=group)
            seconds = _seconds(exchange, device, repeats, group=group)
            found.append({"ranks": ranks, "bytes": part * ranks * _FLOAT, "seconds": seconds})
    return found


def all_reduce(device: torch.device, size: int, *, repeats: int) -> float:
    """Seconds of an all-reduce of `size` bytes among all ranks."""
    tensor = torch.zeros(max(size // _FLOAT, 1), device=device)
    return _seconds(partial(dist.all_reduce, tensor), device, repeats)


def slowdown(device: torch.device, *, width: int, repeats: int) -> tuple[float, float]:
    """Seconds of a product of [width, width] matrices alone, and while all ranks exchange beside it.

    The product is timed from its start to its end; exchanges follow each other so that one is always under way.
    """
    left, right = (torch.randn(width, width, device=device) for _ in range(2))
    floats = _BESIDE_BYTES // _FLOAT // dist.get_world_size() * dist.get_world_size()
    given, got = (torch.zeros(floats, device=device) for _ in range(2))

    def exchanges() -> list[Any]:
        return [dist.all_to_all_single(got, given, async_op=True) for _ in range(_UNDER_WAY)]

    product = partial(torch.mm, left, right)
    return _seconds(product, device, repeats), _seconds(product, device, repeats, beside=exchanges)


def _seconds(
    run: Callable[[], object] | None,
    device: torch.device,
    repeats: int,
    *,
    group: Any = None,
    beside: Callable[[], list[Any]] = list,
) -> float:
    """Median seconds of `run` on the slowest rank. All ranks of the group begin it together, others have none.

    `beside` starts what runs at the same time.
    """
    seconds: list[float] = []
    while run is not None and len(seconds) < _WARM_UP + repeats:
        dist.barrier(group=group)
        _wait_for(device)
        under_way = beside()
        start = time.perf_counter()
        run()
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
        for work in under_way:
            work.wait()
    median = statistics.median(seconds[_WARM_UP:]) if seconds else 0.0
    told = torch.tensor([median], dtype=torch.float64, device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return float(told.item())


def _wait_for(device: torch.device) -> None:
    """For what this thread has given to the device; not for exchanges beside it, which have a stream of their own."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
