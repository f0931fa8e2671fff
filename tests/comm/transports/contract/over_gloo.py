"""The transports that NCCL carries, carried by a gloo backend instead: tables on the CPU, in real worlds."""

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from transport_jobs import MORE

from fscomm.device import Host
from fscomm.transports.handshake import Handshake
from fscomm.transports.nccl import NcclTransport, PaddedTransport
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.job_store import job_store
from fsranks.network import hang_up
from fsranks.rank_context import RankContext

NCCL, PADDED = "nccl over gloo", "padded over gloo"


class Carrier:
    """Gloo, which can be aborted as NCCL can."""

    def __init__(self, gloo: Any) -> None:
        self._gloo = gloo
        self.alltoall_base = gloo.alltoall_base
        self._allgather_base = gloo._allgather_base

    def abort(self) -> None:
        hang_up(self._gloo, self._gloo.rank(), self._gloo.size())


def backend(context: RankContext, timeout_s: float) -> Any:
    assert context.group is not None
    store = job_store(context.group, "carrier", timeout_s).store
    gloo = dist.ProcessGroupGloo(store, context.rank, context.world_size, datetime.timedelta(seconds=timeout_s))
    return Carrier(gloo)


def open_nccl(context: RankContext, timeout_s: float, verify: bool) -> Transport:
    if context.world_size == 1:
        return AloneTransport(NCCL)
    handshake = Handshake(context, verify=verify, timeout_s=timeout_s)
    return NcclTransport(backend(context, timeout_s), handshake, torch.device("cpu"), name=NCCL)


def open_padded(context: RankContext, timeout_s: float, verify: bool) -> Transport:
    if context.world_size == 1:
        return AloneTransport(PADDED)
    handshake = Handshake(context, verify=verify, timeout_s=timeout_s)
    return PaddedTransport(backend(context, timeout_s), handshake, Host(), name=PADDED)


def run(rank: int, world_size: int, case: Callable[..., None], name: str, *args: object) -> None:
    """A case of the contract, with these transports among those that can be opened by name."""
    MORE.update({NCCL: open_nccl, PADDED: open_padded})
    case(rank, world_size, name, *args)
