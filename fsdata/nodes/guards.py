"""Checks of misuse that would lose or repeat rows silently: worker processes of torch, StopIteration of user code."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch.utils.data import get_worker_info

from fsranks.rank_context import RankContext

ResultT = TypeVar("ResultT")
_NO_GROUP = "{why} makes the ranks communicate in every step, but {missing}"
_NOT_INITIALIZED = (
    "torch.distributed is not initialized: call torch.distributed.init_process_group before making the loader"
)
_OTHER_RANKS = (
    "rank= and world_size= are not those of torch.distributed: instead of them, give process_group=, the group of the "
    "ranks that share the data"
)


def not_the_end(what: str, call: Callable[[], ResultT]) -> ResultT:
    """The result of `call`. StopIteration of user code is an error: nodes and loops would take it for the end of the
    data."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


def check_worker(what: str, context: RankContext, *, own_share: bool = False) -> None:
    """RuntimeError in a worker process of a torch DataLoader: each worker would read all rows of its rank, and workers
    cannot communicate with other ranks.

    own_share: the worker has a rank and world size of its own, so that every row is read once.
    """
    worker = get_worker_info()
    if worker is None or (own_share and context.group is None):
        return
    if worker.num_workers == 1 and context.group is None:
        return
    raise RuntimeError(
        f"{what} is used in a worker process of a torch DataLoader (worker {worker.id} of {worker.num_workers}): every "
        "worker would read all rows of its rank, so that each row comes once per worker, and workers cannot exchange "
        f"samples with other ranks. Iterate {what} itself in the training process: it makes batches ahead in threads. "
        "Or make a loader without balance in each worker, with rank=rank * num_workers + worker and "
        "world_size=ranks * num_workers"
    )


def check_group(context: RankContext, why: str) -> None:
    """ValueError if several ranks have no way to communicate. why: what needs it."""
    if context.world_size > 1 and context.reach() is None:
        missing = _OTHER_RANKS if dist.is_available() and dist.is_initialized() else _NOT_INITIALIZED
        raise ValueError(_NO_GROUP.format(why=why, missing=missing))
