"""Steps of opening a transport that succeed on all ranks or on none.

If a step fails on one rank, that rank sends its error to the others over their control group. So all ranks raise the
same error, and can continue together, with another transport or without one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from fscomm.transports.transport import Transport
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError, describe, name_ranks
from fsranks.machine.local_processes import machine
from fsranks.rank_context import RankContext

T = TypeVar("T")

SHARED_GPU = "FREESCALE_SHARED_GPU"
_HOST_ID = "NCCL_HOSTID"
_TEXT_BYTES = 512  # fixed, so that one exchange is enough: ranks do not agree on a length first


class StepFailed(PeerError):
    """A step failed on a rank that is alive: all ranks raise this, in the same words, and can continue together."""


def gather_text(group: ControlGroup, text: str) -> dict[str, list[int]]:
    """The ranks that gave each text, of at most 512 bytes. Collective; blocks for all ranks."""
    word = np.frombuffer(text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"), np.uint8).copy()
    return ranks_by([row.tobytes().rstrip(b"\0").decode(errors="replace") for row in group.all_gather(word)])


def ranks_by(texts: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        found.setdefault(text, []).append(rank)
    return found


def in_words(by_text: Mapping[str, Sequence[int]]) -> str:
    """`on rank 1: its text; on ranks 0, 2: their text`; empty if all texts are empty."""
    return "; ".join(f"on {name_ranks(list(ranks))}: {text}" for text, ranks in by_text.items() if text)


def together(group: ControlGroup, step: Callable[[], T]) -> T:
    """The result of `step`, once it has succeeded on all ranks. Collective; blocks for all ranks.

    Raises:
        StepFailed: `step` raised on some rank; the message names the rank and gives its error.
    """
    done: list[T] = []  # a step may return None
    failure: Exception | None = None
    try:
        done.append(step())
    except Exception as error:  # whatever it is: the other ranks wait for this one's verdict
        failure = error
    if text := in_words(gather_text(group, "" if failure is None else describe(failure))):
        raise StepFailed(text) from failure
    return done[0]


def over_group(
    name: str, context: RankContext, timeout_s: float, open_over: Callable[[ControlGroup], Transport]
) -> Transport:
    """A transport over a group of its own, which is closed here if the transport cannot be opened."""
    group = ControlGroup(context, timeout_s=timeout_s)
    try:
        return open_over(group)
    except BaseException as error:
        group.close(f"could not open {name}: {describe(error)}")
        raise


def need_one_host(group: ControlGroup, instead: str) -> None:
    """Raise StepFailed if not all ranks are processes of one machine. Collective."""
    hosts = gather_text(group, machine())
    if len(hosts) > 1:
        apart = " and ".join(map(name_ranks, hosts.values()))
        raise StepFailed(f"all ranks must be processes of one host, {apart} are apart: {instead}")


def need_own_gpu(group: ControlGroup, where: torch.device, why: str) -> list[str]:
    """The GPUs of all ranks, by rank. Raises StepFailed if two ranks have the same. Collective."""
    gpus = gather_text(group, together(group, lambda: gpu_id(where)))
    if shared := _sharing(gpus):
        raise StepFailed(f"{shared} share a GPU: {why}")
    return list(gpus)


def may_share_gpu(group: ControlGroup) -> bool:
    """Whether ranks may use NCCL on one GPU: all have `FREESCALE_SHARED_GPU=1`, for tests. Collective.

    NCCL refuses only ranks whose host and GPU are the same. With different values of `NCCL_HOSTID` it treats them as
    ranks of several hosts, and moves everything over sockets: rows are right, times mean nothing. Raises StepFailed if
    two ranks have the same value.
    """
    if set(gather_text(group, os.environ.get(SHARED_GPU, "0"))) != {"1"}:
        return False
    if same := _sharing(gather_text(group, os.environ.get(_HOST_ID, ""))):
        raise StepFailed(
            f"{SHARED_GPU}=1, but {same} have the same {_HOST_ID}, and NCCL would refuse them: give each rank one "
            "of its own"
        )
    return True


def _sharing(by_text: Mapping[str, Sequence[int]]) -> str:
    """In words, the ranks that gave the same text as another rank; empty if there are none."""
    return ", ".join(name_ranks(list(ranks)) for ranks in by_text.values() if len(ranks) > 1)


def gpu_id(where: torch.device) -> str:
    """An identifier of the GPU, equal in all processes, which may see it under different numbers."""
    return str(torch.cuda.get_device_properties(where).uuid)
