"""Opens a transport by its name, the same on all ranks, and tries it once; or gives the reason why there is none.

The trial: before the transport is used, rows that all ranks know are exchanged once, and compared with what was sent.

Every name is composed here. `gloo` and `nccl` are the core. The others are extensions, each in a folder that is
imported when its name is asked for: `staged/` (`host-staged`) and `ring/` (`copy-engine`, and the copies of `nccl-ce`).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from fscomm.device import Device, device_of
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.nccl import NcclTransport, PaddedTransport, nccl_backend
from fscomm.transports.together import StepFailed, in_words, over_group, ranks_by, together
from fscomm.transports.transport import Chunk, Transport
from fsranks.control_group import ControlGroup
from fsranks.errors import describe, name_ranks
from fsranks.meeting import gather
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")

NAMES = ("gloo", "nccl", "nccl-ce", "copy-engine", "host-staged")
ORDERED_BY_THE_DEVICE = ("nccl", "nccl-ce", "copy-engine")
"""Issuing an exchange over these to a GPU never blocks; the others go through the host, which waits for the link."""
_FOLDERS = {"host-staged": "staged", "copy-engine": "ring", "nccl-ce": "ring"}
"""The folders of transports that are extensions."""
LARGE_BYTES = (9 << 20) + 40  # of one piece of the trial: several slots of every transport, the last one not full
_WIDTH = 3  # bytes of a row of the trial: no power of two
_BELOW, _POISON = 251, 255
_STARTS = 7919  # bytes between the beginnings of two pieces, in the sequence of which all are parts

# Streams that share a hardware queue run in the order of issue. Work that waits for another rank (NCCL's kernels, also
# of DDP and TorchRec; the words of copy-engine) is issued by several threads, so one rank may have A before B in a
# queue and another one B before A: both wait for ever. The streams of host-staged wait only for events that were
# recorded before, which no number of queues can turn into a cycle. But its copy to the host behind a collective of DDP
# ends after that collective, for which the other ranks may have to issue theirs, and they may first wait on the host
# for these rows. So every stream needs a queue of its own, and 32 are the most that the driver gives.
_QUEUES, _BY_DEFAULT = 32, "8"
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_OF_COPIES = "CUDA_DEVICE_MAX_COPY_CONNECTIONS"  # where it is set, copy engines have so many instead
STREAMS = 20  # of an engine, its transports and its look-aheads, at most
FEW_QUEUES = (
    f"{{name}}={{given}}: fscomm issues to up to {STREAMS} streams beside those of compute, DDP and TorchRec, and a "
    "stream that waits for another rank holds up every stream that shares its hardware queue: ranks could wait for "
    f"each other for ever. Set {{name}}={_QUEUES} in the environment of the process, before its first CUDA call"
)
NOT_YET = (
    "auto takes no transport for tables on CUDA, since none has been shown to be exact with TorchRec's tables between "
    f"GPUs of two hosts. Name one ({', '.join(NAMES[1:])}) after the comparison with the plain loop passed on yours: "
    "in a clone of FreeScale, on both hosts, CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONPATH=. torchrun --nnodes 2 "
    "--nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 tests/gpu/programs_on_cuda.py --transport nccl "
    "--usual 1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the ranks agree on, the same on all of them.

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

    `auto` is gloo for tables on the CPU, and no transport for tables on CUDA. A transport that is named must open on
    all ranks, and deliver the rows of a trial as they were sent; gloo, the reference of the others, is not tried.

    Raises:
        PeerError: a rank did not arrive, or was lost during the trial.
    """
    gather_all = partial(gather, context, what="the choice of a transport", timeout_s=timeout_s)
    places = ranks_by(gather_all(f"tables on {where.type}"))
    name = "gloo" if asked == "auto" else split_name(asked)[0]
    why_not = ""
    if len(places) > 1:
        why_not = f"all ranks must have their tables on the same kind of device: {in_words(places)}"
    elif asked == "auto" and where.type == "cuda":
        why_not = NOT_YET
    elif context.world_size > 1:
        why_not = _misfit(name, where) or (
            "" if name == "gloo" else _tried(asked, context, where, gather_all, timeout_s)
        )
    choice = Choice(asked=asked, name=None if why_not else name, why_not=why_not)
    log.info("fscomm: %s", choice.line())
    return choice


def _tried(
    name: str, context: RankContext, where: torch.device, gather_all: Callable[[str], list[str]], timeout_s: float
) -> str:
    """Why the transport may not be used here, the same text on all ranks; empty if it may. Collective, and blocks.

    The ranks exchange their verdicts over another connection than the transport that is tried.
    """
    device = device_of(where)
    try:
        transport = open_transport(name, context, device, timeout_s=timeout_s)
    except StepFailed as failed:
        return str(failed)
    try:
        problem = wrong_rows(transport, where)
    except Exception as error:  # whatever it is, it is a verdict: all ranks continue and decide alike
        problem = describe(error)
    try:
        said = in_words(ranks_by(gather_all(problem)))
        return said and f"its trial failed: {said}"
    finally:
        transport.close("the trial is over")
        if not problem:  # else a stream may hang
            device.release()


def wrong_rows(transport: Transport, where: torch.device) -> str:
    """In words, the ranks whose rows did not arrive here as sent; empty if all did. Collective; waits for the device.

    Two operations are under way at once: one of few rows, and one of which a piece is larger than slots and buffers.
    """
    sizes = 5, LARGE_BYTES // _WIDTH
    trials = [_known_rows(number, largest, transport, where) for number, largest in enumerate(sizes)]
    handles = [chunk.over(transport) for chunk, _ in trials]
    for handle in handles:
        handle.wait()
    for chunk, sent in trials:
        received = zip(chunk.out.split(chunk.out_splits), sent, strict=True)
        if ranks := [rank for rank, (rows, expected) in enumerate(received) if not torch.equal(rows, expected)]:
            return f"rows from {name_ranks(ranks)} are not what was sent"
    return ""


def _known_rows(
    number: int, largest: int, transport: Transport, where: torch.device
) -> tuple[Chunk, list[torch.Tensor]]:
    """This rank's part of an exchange, and by rank the rows that must arrive: uneven, from some ranks none, one piece
    of `largest` rows.

    Rows encode sender, receiver and position. All ranks know all splits, and therefore what the others send.
    """
    rank, size = transport.rank, transport.world_size
    ranks = torch.arange(size)
    sources, peers = ranks[:, None], ranks[None]
    splits = (7 * sources + 11 * peers) % 60  # rows from each rank to each
    splits[(sources + peers) % 3 == 0] = 0
    for source in range(size):
        splits[source, (source + 1) % size] = largest

    def piece(source: int, to: int) -> torch.Tensor:
        start, nbytes = ((number * size + source) * size + to) * _STARTS, int(splits[source, to]) * _WIDTH
        return ((start + torch.arange(nbytes)) % _BELOW).to(torch.uint8).view(-1, _WIDTH).to(where)

    inp = torch.cat([piece(rank, to) for to in range(size)])
    sent = [piece(source, rank) for source in range(size)]  # to this rank
    out = torch.full_like(torch.cat(sent), _POISON)
    largest_bytes = int(splits.max()) * _WIDTH
    return Chunk(out, inp, splits[:, rank].tolist(), splits[rank].tolist(), largest_bytes), sent


def split_name(name: str) -> tuple[str, str]:
    """A transport and its host collective, which is gloo except for `host-staged:NAME`.

    Raises:
        ValueError: there is no such transport or host collective, its extension is not installed, or a transport
            without host collectives was given one.
    """
    transport, colon, host = name.partition(":")
    if transport not in NAMES or (colon and transport != "host-staged"):
        raise ValueError(f"transport must be one of auto, {', '.join(NAMES)} or host-staged:NAME, got {name!r}")
    folder = f"{__package__}.{_FOLDERS[transport]}" if transport in _FOLDERS else ""
    if folder and find_spec(folder) is None:
        rest = ", ".join(each for each in NAMES if each not in _FOLDERS)
        raise ValueError(f"transport {transport!r} needs {folder}, which is not installed: take one of {rest}")
    if colon:
        from fscomm.transports.staged.host_staged import host_collectives

        if host not in (known := host_collectives()):
            raise ValueError(f"the host collective of host-staged must be one of {', '.join(known)}, got {host!r}")
    return transport, host if colon else "gloo"


def open_transport(
    name: str, context: RankContext, device: Device, *, timeout_s: float, urgent: bool = False
) -> Transport:
    """A new instance of transport `name` for tensors on `device`. Collective: all ranks open theirs in the same order.

    urgent: kernels that move its rows have priority. Waiting for an operation takes at most `timeout_s`. In a world of
    one rank every name opens gloo.

    Raises:
        ValueError: a name that does not exist, or a transport that cannot work on `device`.
        StepFailed: on all ranks, if one of them lacks something; the message names it and the remedy.
        PeerError: the other ranks did not arrive.
    """
    name, host = split_name(name)
    if context.world_size > 1 and (why_not := _misfit(name, device.where)):
        raise ValueError(why_not)
    if context.world_size == 1 or name == "gloo":
        return GlooTransport(context, timeout_s=timeout_s)
    return over_group(name, context, timeout_s, lambda group: _open(name, host, context, device, group, urgent))


def _misfit(name: str, where: torch.device) -> str:
    """Why a transport cannot move tensors on `where`; empty if it can."""
    if where.type == "cpu" and name.startswith("nccl"):
        return f"{name} moves rows between GPUs, these are on the CPU: take gloo"
    if where.type == "cuda" and name == "gloo":
        return "gloo moves rows between CPUs, these are on GPUs: host-staged takes them over gloo"
    return ""


def _open(name: str, host: str, context: RankContext, device: Device, group: ControlGroup, urgent: bool) -> Transport:
    where = device.where
    if where.type == "cuda":
        together(group, lambda: _check_environment(name))
    if name == "nccl":
        return NcclTransport(nccl_backend(context, group, where, zero_cta=False, urgent=urgent), group, where)
    if name == "host-staged":
        from fscomm.transports.staged.host_staged import HostStaged, host_collective

        open_host = together(group, lambda: host_collective(host))
        return HostStaged(open_host(context, timeout_s=group.timeout_s), group, device)
    if name == "copy-engine":
        from fscomm.transports.ring.ring import open_ring

        return open_ring(group, where)
    from fscomm.transports.ring.cuda_driver import engine_copy

    copy = together(group, lambda: engine_copy(where))
    backend = nccl_backend(context, group, where, zero_cta=True, urgent=urgent)
    return PaddedTransport(backend, group, device, copy=copy)


def _check_environment(name: str) -> None:
    """Raises RuntimeError if variables that the CUDA driver reads would deadlock ranks, or block their threads."""
    if name != "nccl" and (given := os.environ.get("CUDA_LAUNCH_BLOCKING", "0")) != "0":
        raise RuntimeError(f"CUDA_LAUNCH_BLOCKING={given}: every copy would block the thread that issues it. Unset it")
    queues = os.environ.get(_CONNECTIONS)
    of_copies = os.environ.get(_OF_COPIES)
    for variable, given in ((_CONNECTIONS, queues or _BY_DEFAULT), (_OF_COPIES, of_copies or str(_QUEUES))):
        if not (given.isdigit() and int(given) >= _QUEUES):
            shown = given if os.environ.get(variable) else f"{given} (not set)"
            raise RuntimeError(FEW_QUEUES.format(name=variable, given=shown))
