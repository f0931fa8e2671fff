"""How a rank reaches the others of its job: by the store and gloo of torch.distributed, or as a test plays it."""

import contextlib
import datetime
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fsranks.job_store import JobStore, job_store
from fsranks.machine.clock import MACHINE_CLOCK, Clock
from fsranks.machine.local_processes import Neighbours, own_process

_NEVER_SENT = 0x7F5D  # the tag of a message that no rank sends


class Network(Protocol):
    """All that a rank waits for. Tests give one whose clock, store, connections and processes they play."""

    clock: Clock

    def store(self, purpose: str, timeout_s: float) -> JobStore:
        """The next store for `purpose` of these ranks: every rank asks for one equally often."""
        ...

    def connect(
        self, store: JobStore, name: str, rank: int, world_size: int, timeout_s: float, *, within_s: float
    ) -> Any:
        """A new gloo group of all ranks, which meet under `name` in `store`. Raises RuntimeError if that fails.

        timeout_s: of each of its exchanges. within_s: for connecting.
        """
        ...

    def process(self) -> dict[str, Any]:
        """What this rank tells the others, so that they can look whether its process runs."""
        ...

    def neighbours(self, processes: Mapping[int, Mapping[str, Any]], rank: int) -> Neighbours:
        """Of `rank`, from what every rank's `process` gave."""
        ...


class TorchNetwork:
    """The ranks of a process group of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.clock: Clock = MACHINE_CLOCK
        self._group = group

    def store(self, purpose: str, timeout_s: float) -> JobStore:
        return job_store(self._group, purpose, timeout_s)

    def connect(
        self, store: JobStore, name: str, rank: int, world_size: int, timeout_s: float, *, within_s: float
    ) -> Any:
        within = datetime.timedelta(seconds=within_s)

        def make(store: dist.Store) -> Any:
            gloo = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, world_size, within)
            gloo._set_default_timeout(datetime.timedelta(seconds=timeout_s))
            return gloo

        return store.lend(make, within_s)

    def process(self) -> dict[str, Any]:
        return own_process()

    def neighbours(self, processes: Mapping[int, Mapping[str, Any]], rank: int) -> Neighbours:
        return Neighbours.among(processes, rank)


def hang_up(gloo: Any, rank: int, world_size: int) -> None:
    """Close all connections of a gloo group, from any thread: whatever waits in it raises RuntimeError, on all ranks.

    Gloo has no call for this. But a receive that ends at its time limit closes every connection of its group, so this
    asks for a message that no rank sends, for a millisecond. It asks every rank, because the call fails too early when
    the rank that is asked is dead.
    """
    for ahead in range(1, world_size):
        with contextlib.suppress(RuntimeError):
            receive = gloo.recv([torch.zeros(1)], (rank + ahead) % world_size, _NEVER_SENT)
            receive.wait(datetime.timedelta(milliseconds=1))


def brief(error: BaseException) -> str:
    """What gloo says, without its source line and advice."""
    return str(error).partition("] ")[2].partition(". This is")[0] or str(error)
