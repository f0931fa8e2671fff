"""The transports that NCCL carries, carried by a gloo backend instead: tables on the CPU, in real worlds."""

import contextlib
import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from transport_jobs import MORE

from fscomm.device import Host
from fscomm.transports.handshake import Handshake
from fscomm.transports.nccl.nccl import NcclTransport
from fscomm.transports.nccl.padded import PaddedTransport
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.rank_context import Place, board_of

NCCL, PADDED = "nccl over gloo", "padded over gloo"


class Carrier:
    """Gloo, which can be aborted as NCCL can: a receive that nobody answers, given up on, closes its connections."""

    def __init__(self, gloo: Any, peers: list[int]) -> None:
        self._gloo = gloo
        self._peers = peers
        self.alltoall_base = gloo.alltoall_base
        self._allgather_base = gloo._allgather_base

    def abort(self) -> None:
        for peer in self._peers:
            with contextlib.suppress(RuntimeError):
                self._gloo.recv([torch.zeros(1)], peer, 0x7F5D).wait(datetime.timedelta(milliseconds=1))


def backend(place: Place, timeout_s: float) -> Any:
    assert place.group is not None
    store = board_of(place.group, "carrier", timeout_s).store
    gloo = dist.ProcessGroupGloo(store, place.rank, place.world_size, datetime.timedelta(seconds=timeout_s))
    return Carrier(gloo, [rank for rank in range(place.world_size) if rank != place.rank])


def open_nccl(place: Place, timeout_s: float, verify: bool) -> Transport:
    if place.world_size == 1:
        return AloneTransport(NCCL)
    handshake = Handshake(place, verify=verify, timeout_s=timeout_s)
    return NcclTransport(backend(place, timeout_s), handshake, torch.device("cpu"), name=NCCL)


def open_padded(place: Place, timeout_s: float, verify: bool) -> Transport:
    if place.world_size == 1:
        return AloneTransport(PADDED)
    handshake = Handshake(place, verify=verify, timeout_s=timeout_s)
    return PaddedTransport(backend(place, timeout_s), handshake, Host(), name=PADDED)


def run(rank: int, world_size: int, case: Callable[..., None], name: str, *args: object) -> None:
    """A case of the contract, with these transports among those that can be opened by name."""
    MORE.update({NCCL: open_nccl, PADDED: open_padded})
    case(rank, world_size, name, *args)
