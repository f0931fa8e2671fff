"""Which rank this is, of how many: from arguments, torch.distributed or torchrun's environment."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from fsranks.network import Network, TorchNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """This process among those that share the data.

    Attributes:
        rank, world_size: rank < world_size.
        group: the process group whose ranks these are, or None where there is none (one rank, explicit arguments,
            torchrun without init_process_group).
        network: how this rank reaches the others, if not through `group`.
    """

    rank: int
    world_size: int
    group: dist.ProcessGroup | None = None
    network: Network | None = None

    def reach(self) -> Network | None:
        """The way to the other ranks; None where there is none."""
        if self.world_size == 1:
            return None
        return self.network or (None if self.group is None else TorchNetwork(self.group))


def resolve(
    rank: int | None = None, world_size: int | None = None, process_group: dist.ProcessGroup | None = None
) -> RankContext:
    """Rank and world size from the arguments, else torch.distributed, else torchrun's environment, else 0 of 1.

    With `process_group` (say, the data-parallel ranks of a larger job) the ranks are those of the group. Explicit
    arguments that are exactly those of torch.distributed keep its group, so that ranks can still agree over it.

    Raises:
        ValueError: one of the two without the other, a rank outside 0..world_size-1, arguments that contradict
            `process_group`, or a process that is not in it.
    """
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ValueError(f"{given} was given without {missing}: pass both, or neither to use torch.distributed's")
    found = _of_group(process_group)
    if rank is None or world_size is None:
        return found or _of_environment() or RankContext(rank=0, world_size=1)
    _check(rank, world_size, "arguments")
    if found is not None and (rank, world_size) == (found.rank, found.world_size):
        return found
    if process_group is not None and found is not None:
        raise ValueError(
            f"rank {rank} of {world_size} was given, but this process is rank {found.rank} of {found.world_size} in "
            "process_group: leave rank and world_size out"
        )
    return RankContext(rank=rank, world_size=world_size)


def _of_group(group: dist.ProcessGroup | None) -> RankContext | None:
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise ValueError("process_group was given, but torch.distributed is not initialized")
        return None
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"this process (global rank {dist.get_rank()}) is not in process_group")
    return RankContext(rank=rank, world_size=dist.get_world_size(group), group=group or dist.group.WORLD)


def _of_environment() -> RankContext | None:
    texts = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    given = {name: text for name, text in texts.items() if text is not None}
    if not given:
        return None
    if len(given) < 2:
        missing = next(name for name in texts if name not in given)
        raise ValueError(
            f"the environment has {given} but no {missing}: set both (torchrun does), or pass rank and world_size"
        )
    try:
        rank, world_size = int(given["RANK"]), int(given["WORLD_SIZE"])
    except ValueError:
        raise ValueError(f"RANK and WORLD_SIZE in the environment must be integers, got {given}") from None
    _check(rank, world_size, "environment")
    return RankContext(rank=rank, world_size=world_size)


def _check(rank: int, world_size: int, where: str) -> None:
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be an integer, got {value!r}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1} for world_size {world_size}, got {rank} ({where})")
