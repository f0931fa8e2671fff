"""A transport by its name."""

import torch

from fscomm.device import Device
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.handshake import Handshake
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.place import Place

NAMES = ("gloo", "nccl", "nccl-ce", "copy-engine", "host-staged")


def open_transport(
    name: str, place: Place, device: Device, *, timeout_s: float, verify: bool = True, host: str = "gloo"
) -> Transport:
    """A new instance of transport `name` for tensors on `device`. Collective: all ranks open theirs in the same order.

    With `verify` ranks compare splits before every operation; without, callers vouch for them. `host` is the host
    collective of `host-staged`. Every operation is bounded by `timeout_s`.

    Raises:
        ValueError: a name that does not exist, or a transport that cannot work on `device`.
        PeerError: the other ranks did not come.
    """
    if name not in NAMES:
        raise ValueError(f"transport must be one of {', '.join(NAMES)}, got {name!r}")
    if place.world_size == 1:
        return AloneTransport(name)
    if name == "gloo":
        return GlooTransport(place, timeout_s=timeout_s, verify=verify)
    if device.where.type == "cpu" and name.startswith("nccl"):
        raise ValueError(f"{name} moves rows between GPUs, these are on {device.where}")
    handshake = Handshake(place, verify=verify, timeout_s=timeout_s)
    if name == "host-staged":
        from fscomm.transports.host import host_collective
        from fscomm.transports.staged import HostStaged

        return HostStaged(host_collective(host, place, timeout_s=timeout_s), handshake, device)
    if device.where.type == "cpu":
        return _in_shared_memory(handshake, name)
    return _on_gpu(name, place, device.where, handshake)


def shared_memory_collective(place: Place, *, timeout_s: float) -> Transport:
    """A host collective for ranks on one machine: the ring of `copy-engine` with threads for copy engines."""
    handshake = Handshake(place, verify=False, timeout_s=timeout_s)
    return _in_shared_memory(handshake, "shared-memory")


def _in_shared_memory(handshake: Handshake, name: str) -> Transport:
    from fscomm.transports.ring import Ring
    from fscomm.transports.shared_memory import SharedMemory
    from fscomm.transports.streams import StreamFabric

    return Ring(StreamFabric(SharedMemory(handshake)), handshake, name=name)


def _on_gpu(name: str, place: Place, where: torch.device, handshake: Handshake) -> Transport:
    raise NotImplementedError
