"""The host collectives that `host-staged` can work over, by name.

A package adds its own (RDMA, MPI, UCC) with an entry point:

    [project.entry-points."freescale.host_collectives"]
    ucc = "my_package:open_ucc"        # open_ucc(context: RankContext, *, timeout_s) -> Transport, for host tensors
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from fscomm.transports.gloo import GlooTransport
from fscomm.transports.transport import Transport
from fsranks.rank_context import RankContext

GROUP = "freescale.host_collectives"
_BUILT_IN = (
    EntryPoint("gloo", f"{__name__}:gloo", GROUP),
    EntryPoint("shared-memory", "fscomm.transports.opening:shared_memory_collective", GROUP),
)


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


def gloo(context: RankContext, *, timeout_s: float) -> Transport:
    return GlooTransport(context, timeout_s=timeout_s, verify=False)


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
