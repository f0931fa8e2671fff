"""A transport by its name, made alike on all ranks, and which one the ranks take.

The host collectives that `host-staged` can work over have names, too. A package adds its own (RDMA, MPI, UCC) with an
entry point:

    [project.entry-points."freescale.host_collectives"]
    ucc = "my_package:open_ucc"        # open_ucc(context: RankContext, *, timeout_s) -> Transport, for host tensors
"""

import dataclasses
import logging
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

import torch

from fscomm.device import Device, device_of
from fscomm.transports.capabilities import Capabilities, read
from fscomm.transports.choice import NAMES, Choice, choose
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.handshake import Handshake
from fscomm.transports.nccl import NcclTransport, PaddedTransport, nccl_backend
from fscomm.transports.ring.cuda_driver import CudaDriver, engine_copy
from fscomm.transports.ring.fabric import Fabric
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import SharedMemory
from fscomm.transports.selftest import check
from fscomm.transports.staged import HostStaged
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.errors import describe
from fsranks.meeting import gather
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")

GROUP = "freescale.host_collectives"
_BUILT_IN = (
    EntryPoint("gloo", f"{__name__}:gloo_collective", GROUP),
    EntryPoint("shared-memory", f"{__name__}:shared_memory_collective", GROUP),
)


def agree_on(asked: str, context: RankContext, where: torch.device, *, timeout_s: float) -> Choice:
    """What all ranks use for tables that lie `where`, the same everywhere; logs one line. Collective.

    Whatever is not gloo, which the others are compared with, must first move rows rightly and, between GPUs, without a
    kernel; otherwise nothing is chosen, for this reason.

    Raises:
        PeerError: a rank did not come, or was lost during the warm-up.
    """
    tell = partial(gather, context, what="the choice of a transport", timeout_s=timeout_s)
    name = asked if asked == "auto" else split_name(asked)[0]
    choice = choose([Capabilities.from_json(text) for text in tell(read(where).to_json())], name)
    if choice.name is not None and choice.name != "gloo":
        device = device_of(where)
        exactly = asked if name == choice.name else choice.name
        transport = open_transport(exactly, context, device, timeout_s=timeout_s)
        try:
            problem = check(transport, device, gather=tell)
        finally:
            transport.close("the warm-up is over")
        if problem is not None:
            failed = {choice.name: f"its warm-up failed: {problem}"}
            choice = dataclasses.replace(choice, name=None, why_not={**choice.why_not, **failed})
    log.info("fscomm: %s", choice.line())
    return choice


def split_name(name: str) -> tuple[str, str]:
    """A transport and its host collective: `host-staged:NAME` brings another one than gloo.

    Raises:
        ValueError: there is no such transport or host collective, or a transport without one was given one.
    """
    transport, colon, host = name.partition(":")
    if transport not in NAMES or (colon and transport != "host-staged"):
        raise ValueError(f"transport must be one of auto, {', '.join(NAMES)} or host-staged:NAME, got {name!r}")
    if colon and host not in (known := host_collectives()):
        raise ValueError(f"the host collective of host-staged must be one of {', '.join(known)}, got {host!r}")
    return transport, host if colon else "gloo"


def open_transport(
    name: str, context: RankContext, device: Device, *, timeout_s: float, verify: bool = True
) -> Transport:
    """A new instance of transport `name` for tensors on `device`. Collective: all ranks open theirs in the same order.

    With `verify` ranks compare splits before every operation; without it, callers must give splits that agree. An
    operation takes at most `timeout_s`.

    Raises:
        ValueError: a name that does not exist, or a transport that cannot work on `device`.
        PeerError: the other ranks did not come.
    """
    name, host = split_name(name)
    if context.world_size == 1:
        return AloneTransport(name)
    if name == "gloo":
        return GlooTransport(context, timeout_s=timeout_s, verify=verify)
    if device.where.type == "cpu" and name.startswith("nccl"):
        raise ValueError(f"{name} moves rows between GPUs, these are on {device.where}")
    handshake = Handshake(context, verify=verify, timeout_s=timeout_s)
    if name == "host-staged":
        return HostStaged(host_collective(host, context, timeout_s=timeout_s), handshake, device)
    if name == "copy-engine":
        return _copy_engine(handshake, device)
    if name == "nccl-ce":
        return _nccl_ce(context, handshake, device)
    backend = nccl_backend(context, device.where, timeout_s=timeout_s, zero_cta=False)
    return NcclTransport(backend, handshake, device.where)


def gloo_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks anywhere."""
    return GlooTransport(context, timeout_s=timeout_s, verify=False)


def shared_memory_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks on one machine: the ring of `copy-engine` with threads for copy engines."""
    handshake = Handshake(context, verify=False, timeout_s=timeout_s)
    return Ring(Fabric(SharedMemory(handshake)), handshake, name="shared-memory")


def _copy_engine(handshake: Handshake, device: Device) -> Transport:
    try:
        driver = SharedMemory(handshake) if device.where.type == "cpu" else CudaDriver(handshake, device.where)
        return Ring(Fabric(driver), handshake, name="copy-engine")
    except BaseException as error:
        handshake.group.close(f"could not open copy-engine: {describe(error)}")
        raise


def _nccl_ce(context: RankContext, handshake: Handshake, device: Device) -> Transport:
    """Even operations on padded, registered buffers, under NCCL's policy of no kernel."""
    backend = nccl_backend(context, device.where, timeout_s=handshake.timeout_s, zero_cta=True)
    return PaddedTransport(backend, handshake, device, copy=engine_copy(device.where))


class Factory(Protocol):
    def __call__(self, context: RankContext, *, timeout_s: float) -> Transport:
        """Collective. The transport moves bytes on the host; splits were compared before, it need not verify them."""


def host_collectives() -> list[str]:
    """The names there are, built in and installed."""
    return sorted(_known())


def host_collective(name: str, context: RankContext, *, timeout_s: float) -> Transport:
    """A new instance of the host collective `name`. Collective: all ranks open theirs in the same order.

    Raises:
        ValueError: a name that does not exist, or that several distributions give.
        ImportError: the distribution that gives it is broken; the message names it.
    """
    known = _known()
    if name not in known:
        raise ValueError(f"the host collective must be one of {', '.join(sorted(known))}, got {name!r}")
    if len(known[name]) > 1:
        given = ", ".join(f"{each.value} ({_origin(each)})" for each in known[name])
        raise ValueError(f"the host collective {name!r} is given more than once, by {given}: uninstall all but one")
    return _load(known[name][0])(context, timeout_s=timeout_s)


def _known() -> dict[str, list[EntryPoint]]:
    known: dict[str, list[EntryPoint]] = {}
    for each in (*_BUILT_IN, *entry_points(group=GROUP)):
        known.setdefault(each.name, []).append(each)
    return known


def _load(point: EntryPoint) -> Factory:
    try:
        factory = point.load()
    except Exception as error:  # a module may raise anything while it is imported
        raise ImportError(
            f"the host collective {point.name!r} ({point.value}) of {_origin(point)} cannot be loaded: "
            f"{type(error).__name__}: {error}. Repair or uninstall that, or choose another host collective"
        ) from error
    if not callable(factory):
        raise ImportError(
            f"the host collective {point.name!r} ({point.value}) of {_origin(point)} must be a function "
            f"(context, *, timeout_s) that opens a transport, got {factory!r}"
        )
    return cast(Factory, factory)


def _origin(point: EntryPoint) -> str:
    """Whose entry point it is, in words."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "fscomm"
