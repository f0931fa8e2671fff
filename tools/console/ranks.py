"""Joining the ranks that torchrun started: now and then the kernel resets one of many new connections."""

import datetime

import torch.distributed as dist

from fsranks.network import brief

_TRIES = 3


def join_ranks(backend: str, *, timeout_s: float) -> None:
    """`init_process_group` on all ranks, which connect again if that fails on one of them.

    Raises:
        RuntimeError: on all ranks, if the last try failed on one; or the ranks did not come.
    """
    limit = datetime.timedelta(seconds=timeout_s)
    store, rank, world_size = next(dist.rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    for number in range(_TRIES):
        failure = ""
        # Part of the keys by which the ranks meet. Torch counts on where a try failed, and not where it worked.
        dist.distributed_c10d._world.group_count = 0
        try:
            tried = dist.PrefixStore(f"try {number}", store)
            dist.init_process_group(backend, store=tried, rank=rank, world_size=world_size, timeout=limit)
        except RuntimeError as error:
            failure = brief(error)
        store.set(f"tried {number}/{rank}", failure)
        failures = [text for each in range(world_size) if (text := store.get(f"tried {number}/{each}").decode())]
        if not failures:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
    raise RuntimeError(f"the ranks could not connect in {_TRIES} tries: {failures[0]}")
