"""A transport by its name, made alike on all ranks, tried once, and in one line why there is none.

The host collectives that `host-staged` can work over have names, too. A package adds its own (RDMA, MPI, UCC) with an
entry point:

    [project.entry-points."freescale.host_collectives"]
    ucc = "my_package:open_ucc"        # open_ucc(context: RankContext, *, timeout_s) -> Transport, for host tensors
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

import torch

from fscomm.device import Device, device_of
from fscomm.transports.cuda_driver import CudaDriver, check_gpus, engine_copy
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.handshake import Handshake, StepFailed, ranks_by, said_by, together
from fscomm.transports.nccl import NcclTransport, PaddedTransport, nccl_backend
from fscomm.transports.ring import Ring
from fscomm.transports.shared_memory import SharedMemory
from fscomm.transports.staged import HostStaged
from fscomm.transports.transport import AloneTransport, Transport
from fscomm.transports.trial import wrong_rows
from fsranks.errors import describe
from fsranks.meeting import gather
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")

NAMES = ("gloo", "nccl", "nccl-ce", "copy-engine", "host-staged")
GROUP = "freescale.host_collectives"
_BUILT_IN = (
    EntryPoint("gloo", f"{__name__}:gloo_collective", GROUP),
    EntryPoint("shared-memory", f"{__name__}:shared_memory_collective", GROUP),
)
NOT_YET = (
    "auto takes no transport for tables on CUDA, since none has been shown to be exact there with TorchRec's tables. "
    f"Name one ({', '.join(NAMES[1:])}) after `make gpu` has passed on your machine"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the ranks agree on; alike on all of them.

    Attributes:
        asked: the name that was asked for, or auto.
        name: the transport, or None if there is none: then modules run plainly.
        why_not: the reason, if there is none.
    """

    asked: str
    name: str | None
    why_not: str = ""

    def line(self) -> str:
        if self.name is None:
            return f"there is no transport for these rows (transport={self.asked!r}): {self.why_not}"
        return f"rows travel by {self.name} (transport={self.asked!r})"


def agree_on(asked: str, context: RankContext, where: torch.device, *, timeout_s: float) -> Choice:
    """What all ranks use for tables that lie `where`, the same everywhere; logs one line. Collective.

    `auto` is gloo for tables on the CPU, and nothing for tables on CUDA. By name, whatever can be opened on all ranks
    and brings the rows of a trial as they were sent; gloo, which the others are compared with, is not tried.

    Raises:
        PeerError: a rank did not come, or was lost during the trial.
    """
    tell = partial(gather, context, what="the choice of a transport", timeout_s=timeout_s)
    places = ranks_by(tell(f"tables on {where.type}"))
    name = "gloo" if asked == "auto" else split_name(asked)[0]
    why_not = ""
    if len(places) > 1:
        why_not = f"all ranks must have their tables on the same kind of device: {said_by(places)}"
    elif asked == "auto" and where.type == "cuda":
        why_not = NOT_YET
    elif context.world_size > 1:
        why_not = _misfit(name, where) or ("" if name == "gloo" else _tried(asked, context, where, tell, timeout_s))
    choice = Choice(asked=asked, name=None if why_not else name, why_not=why_not)
    log.info("fscomm: %s", choice.line())
    return choice


def _tried(
    name: str, context: RankContext, where: torch.device, tell: Callable[[str], list[str]], timeout_s: float
) -> str:
    """Why the transport may not be used here, in the same words on all ranks; empty if it may. Collective, and blocks.

    The verdicts of the ranks are told by something else than the transport.
    """
    device = device_of(where)
    try:
        transport = open_transport(name, context, device, timeout_s=timeout_s, verify=False)
    except StepFailed as failed:
        return str(failed)
    try:
        problem = wrong_rows(transport, where)
    except Exception as error:  # whatever it is, it is a verdict: all ranks go on and decide alike
        problem = describe(error)
    try:
        said = said_by(ranks_by(tell(problem)))
        return said and f"its trial failed: {said}"
    finally:
        transport.close("the trial is over")


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

    With `verify` ranks compare splits before every operation; without it, callers must give splits that agree. To wait
    for an operation takes at most `timeout_s`.

    Raises:
        ValueError: a name that does not exist, or a transport that cannot work on `device`.
        StepFailed: on all ranks, for what one of them lacks; the message names it and says what to do.
        PeerError: the other ranks did not come.
    """
    name, host = split_name(name)
    if context.world_size == 1:
        return AloneTransport(name)
    if why_not := _misfit(name, device.where):
        raise ValueError(why_not)
    if name == "gloo":
        return GlooTransport(context, timeout_s=timeout_s, verify=verify)
    with _handshake(name, context, verify=verify, timeout_s=timeout_s) as handshake:
        return _open(name, host, context, device, handshake)


@contextlib.contextmanager
def _handshake(name: str, context: RankContext, *, verify: bool, timeout_s: float) -> Iterator[Handshake]:
    """For a transport that is opened inside and then closes it."""
    handshake = Handshake(context, verify=verify, timeout_s=timeout_s)
    try:
        yield handshake
    except BaseException as error:
        handshake.group.close(f"could not open {name}: {describe(error)}")
        raise


def _misfit(name: str, where: torch.device) -> str:
    """Why a transport cannot move tensors that lie `where`; empty if it can."""
    if where.type == "cpu" and name.startswith("nccl"):
        return f"{name} moves rows between GPUs, these are on the CPU: take gloo"
    if where.type == "cuda" and name == "gloo":
        return "gloo moves rows between CPUs, these are on GPUs: host-staged takes them over gloo"
    return ""


def _open(name: str, host: str, context: RankContext, device: Device, handshake: Handshake) -> Transport:
    group, where, timeout_s = handshake.group, device.where, handshake.timeout_s
    if where.type == "cuda" and name != "nccl":
        together(group, _check_launches)
    if name == "host-staged":
        factory = together(group, lambda: host_collective(host))
        return HostStaged(factory(context, timeout_s=timeout_s), handshake, device)
    if name == "copy-engine" and where.type == "cpu":
        return Ring(SharedMemory(handshake), handshake, name=name)
    if name == "copy-engine":
        check_gpus(group, where)
        return Ring(CudaDriver(handshake, where), handshake, name=name)
    if name == "nccl":
        return NcclTransport(nccl_backend(context, handshake, where, zero_cta=False), handshake, where)
    copy = together(group, lambda: engine_copy(where))
    return PaddedTransport(nccl_backend(context, handshake, where, zero_cta=True), handshake, device, copy=copy)


def _check_launches() -> None:
    if (given := os.environ.get("CUDA_LAUNCH_BLOCKING", "0")) != "0":
        raise RuntimeError(f"CUDA_LAUNCH_BLOCKING={given}: every copy would block the thread that issues it. Unset it")


def gloo_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks anywhere."""
    return GlooTransport(context, timeout_s=timeout_s, verify=False)


def shared_memory_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks on one machine: the ring of `copy-engine` with threads for copy engines."""
    with _handshake("shared-memory", context, verify=False, timeout_s=timeout_s) as handshake:
        return Ring(SharedMemory(handshake), handshake, name="shared-memory")


class Factory(Protocol):
    def __call__(self, context: RankContext, *, timeout_s: float) -> Transport:
        """Collective. The transport moves bytes on the host; splits were compared before, it need not verify them."""


def host_collectives() -> list[str]:
    """The names there are, built in and installed."""
    return sorted(_known())


def host_collective(name: str) -> Factory:
    """What opens the host collective `name`.

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
    point = known[name][0]
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


def _known() -> dict[str, list[EntryPoint]]:
    known: dict[str, list[EntryPoint]] = {}
    for each in (*_BUILT_IN, *entry_points(group=GROUP)):
        known.setdefault(each.name, []).append(each)
    return known


def _origin(point: EntryPoint) -> str:
    """Whose entry point it is, in words."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "fscomm"
