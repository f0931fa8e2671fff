"""Times exchanges among the ranks of a process group, and matrix products beside them.

Every function is collective over all ranks and blocks. Times are those of the slowest rank: seconds.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

_WARM_UP = 2
_BESIDE_BYTES = 4 * 1024 * 1024
_FLOAT = 4


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
            seconds = 0.0
            if dist.get_rank() < ranks:
                given, got = (torch.zeros(part * ranks, device=device) for _ in range(2))

                def exchange(given: torch.Tensor = given, got: torch.Tensor = got, group: Any = group) -> None:
                    dist.all_to_all_single(got, given, group=group)

                seconds = _median(exchange, device, repeats, group)
            found.append({"ranks": ranks, "bytes": part * ranks * _FLOAT, "seconds": _slowest(seconds, device)})
    return found


def all_reduce(device: torch.device, size: int, *, repeats: int) -> float:
    """Seconds of an all-reduce of `size` bytes among all ranks."""
    tensor = torch.zeros(max(size // _FLOAT, 1), device=device)
    return _slowest(_median(lambda: dist.all_reduce(tensor), device, repeats, None), device)


def slowdown(device: torch.device, *, width: int, repeats: int) -> tuple[float, float]:
    """Seconds of a product of [width, width] matrices alone, and while all ranks exchange beside it.

    The product is timed from its start to its end; exchanges follow each other so that one is always under way.
    """
    left, right = (torch.randn(width, width, device=device) for _ in range(2))
    given, got = (torch.zeros(_BESIDE_BYTES // _FLOAT // dist.get_world_size() * dist.get_world_size(), device=device)
                  for _ in range(2))  # fmt: skip

    def product() -> None:
        torch.mm(left, right)

    def beside() -> float:
        under_way = [dist.all_to_all_single(got, given, async_op=True) for _ in range(4)]
        seconds = _timed(product, device)
        for work in under_way:
            work.wait()
        _wait_for(device)
        return seconds

    alone = _middle([_timed(product, device) for _ in range(_WARM_UP + repeats)][_WARM_UP:])
    together = []
    for _ in range(_WARM_UP + repeats):
        dist.barrier()
        together.append(beside())
    return _slowest(alone, device), _slowest(_middle(together[_WARM_UP:]), device)


def _median(run: Callable[[], None], device: torch.device, repeats: int, group: Any) -> float:
    seconds = []
    for _ in range(_WARM_UP + repeats):
        dist.barrier(group=group)
        seconds.append(_timed(run, device))
    return _middle(seconds[_WARM_UP:])


def _timed(run: Callable[[], None], device: torch.device) -> float:
    _wait_for(device)
    start = time.perf_counter()
    run()
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(seconds: float, device: torch.device) -> float:
    told = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return float(told.item())


def _middle(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]
