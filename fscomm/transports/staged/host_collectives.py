"""The host collectives that `host-staged` can work over: gloo, shared memory, and those of other packages.

A package adds its own (RDMA, MPI, UCC) with an entry point:

    [project.entry-points."freescale.host_collectives"]
    ucc = "my_package:open_ucc"        # open_ucc(context: RankContext, *, timeout_s) -> Transport, for host tensors
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from fscomm.device import Device
from fscomm.transports.staged.host_staged import HostStaged
from fscomm.transports.together import together
from fscomm.transports.transport import Transport
from fsranks.control_group import ControlGroup
from fsranks.rank_context import RankContext

GROUP = "freescale.host_collectives"
_BUILT_IN = (
    EntryPoint("gloo", "fscomm.transports.gloo:GlooTransport", GROUP),
    EntryPoint("shared-memory", "fscomm.transports.ring.ring:shared_memory_collective", GROUP),
)
Factory = Callable[..., Transport]  # (context, *, timeout_s); collective


def open_staged(host: str, context: RankContext, device: Device, group: ControlGroup) -> Transport:
    """`host-staged` over the host collective `host`. Collective.

    Raises:
        StepFailed: on all ranks, if one of them cannot load the host collective.
    """
    factory = together(group, lambda: host_collective(host))
    return HostStaged(factory(context, timeout_s=group.timeout_s), group, device)


def host_collectives() -> list[str]:
    """The names there are, built in and installed."""
    return sorted({point.name for point in _points()})


def host_collective(name: str) -> Factory:
    """What opens the host collective `name`, one of `host_collectives`.

    Raises:
        ValueError: several distributions give the name.
        ImportError: the distribution that gives it is broken; the message names it.
    """
    point, *others = (each for each in _points() if each.name == name)
    if others:
        given = ", ".join(f"{each.value} ({_origin(each)})" for each in (point, *others))
        raise ValueError(f"the host collective {name!r} is given more than once, by {given}: uninstall all but one")
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


def _points() -> list[EntryPoint]:
    # Read at each call, from the metadata of the installed packages: no code of theirs runs before it is chosen.
    return [*_BUILT_IN, *entry_points(group=GROUP)]


def _origin(point: EntryPoint) -> str:
    """Whose entry point it is, in words."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "fscomm"
