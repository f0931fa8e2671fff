"""Holds the all-to-alls of this process to a rate: a token bucket, for machines whose network cannot be shaped.

An all-to-all of gloo ends when its bytes have been copied between processes. Here, waiting for it lasts until the bytes
would have passed a link of the given rate: each exchange takes its part of the link's time, in the order of issue, and
`Work.wait` sleeps until the exchange's part is over. The threads and groups of a process share one bucket, so what
fscomm sends in the background delays what it needs at once, as on a link. Other collectives, such as DDP's all-reduce
of dense gradients, are not paced.

Work is an object of C++ that takes no attributes, so the methods are replaced in torch's classes, inside the block.
"""

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

_BURST_S = 0.005  # of the link's time that may have been saved up while nothing was sent


class Bucket:
    """When exchanges may end. Any thread may reserve.

    Args:
        bytes_per_s: rate at which this process sends, and at the same time receives.
        clock: gives seconds.
    """

    def __init__(self, bytes_per_s: float, clock: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_s = 0.0  # when the link has passed all that was reserved

    def reserve(self, size: int) -> float:
        """The instant at which `size` bytes will have passed."""
        with self._lock:
            self._free_s = max(self._free_s, self._clock() - _BURST_S) + size / self._bytes_per_s
            return self._free_s


@contextmanager
def paced(bytes_per_s: float) -> Iterator[None]:
    """Inside the block, every all-to-all of this process passes one bucket."""
    bucket = Bucket(bytes_per_s, time.monotonic)
    due: weakref.WeakKeyDictionary[dist.Work, float] = weakref.WeakKeyDictionary()

    def issue(original: Any, group: Any, out: torch.Tensor, given: torch.Tensor, *args: Any) -> Any:
        work = original(group, out, given, *args)
        due[work] = bucket.reserve(max(_away(out, args[:1], group), _away(given, args[1:2], group)))
        return work

    def wait(original: Any, work: dist.Work, *args: Any) -> Any:
        done = original(work, *args)
        if (until := due.pop(work, None)) is not None:
            time.sleep(max(until - time.monotonic(), 0))
        return done

    def is_completed(original: Any, work: dist.Work) -> bool:
        return bool(original(work)) and time.monotonic() >= due.get(work, 0.0)

    with ExitStack() as replaced:
        # FreeScale's control groups call gloo itself, torch.distributed calls the process group.
        for owner in (dist.ProcessGroup, torch._C._distributed_c10d.Backend):
            for name in ("alltoall_base", "all_to_all_single"):  # as torch before 2.13, and as of it
                if name in vars(owner):
                    replaced.enter_context(_replaced(owner, name, issue))
        replaced.enter_context(_replaced(dist.Work, "wait", wait))
        replaced.enter_context(_replaced(dist.Work, "is_completed", is_completed))
        yield


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Any:
    original = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return mock.patch.object(owner, name, functools.wraps(original)(replaced))


def _away(tensor: torch.Tensor, splits: tuple[Any, ...], group: Any) -> int:
    """Bytes of `tensor` that other ranks send or receive. Without splits, every rank has an equal share."""
    if not len(tensor):
        return 0
    own = splits[0][group.rank()] if splits and splits[0] else len(tensor) // group.size()
    return int(tensor.nbytes // len(tensor) * (len(tensor) - own))
