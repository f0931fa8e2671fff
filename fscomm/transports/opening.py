"""A transport by its name."""

from fscomm.device import Device
from fscomm.transports.choice.rules import NAMES
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.handshake import Handshake
from fscomm.transports.nccl.nccl import NcclTransport, nccl_backend
from fscomm.transports.nccl.padded import PaddedTransport
from fscomm.transports.ring.cuda_driver import CudaDriver, engine_copy
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import SharedMemory
from fscomm.transports.ring.streams import StreamFabric
from fscomm.transports.staged.host import host_collective, host_collectives
from fscomm.transports.staged.staged import HostStaged
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.errors import describe
from fsranks.rank_context import RankContext


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


def shared_memory_collective(context: RankContext, *, timeout_s: float) -> Transport:
    """A host collective for ranks on one machine: the ring of `copy-engine` with threads for copy engines."""
    handshake = Handshake(context, verify=False, timeout_s=timeout_s)
    return Ring(StreamFabric(SharedMemory(handshake)), handshake, name="shared-memory")


def _copy_engine(handshake: Handshake, device: Device) -> Transport:
    try:
        driver = SharedMemory(handshake) if device.where.type == "cpu" else CudaDriver(handshake, device.where)
        return Ring(StreamFabric(driver), handshake, name="copy-engine")
    except BaseException as error:
        handshake.group.close(f"could not open copy-engine: {describe(error)}")
        raise


def _nccl_ce(context: RankContext, handshake: Handshake, device: Device) -> Transport:
    """Even operations on padded, registered buffers, under NCCL's policy of no kernel."""
    backend = nccl_backend(context, device.where, timeout_s=handshake.timeout_s, zero_cta=True)
    return PaddedTransport(backend, handshake, device, copy=engine_copy(device.where))
