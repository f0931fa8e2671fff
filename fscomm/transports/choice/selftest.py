"""The warm-up of a transport on all ranks: rows arrive as they were sent, and no kernel carries them.

A transport that is meant to leave the multiprocessors (SMs) to compute may fall back to kernels without saying so, and
a trace does not tell. So every rank fills its own with a kernel that spins, and sends: what needs an SM anywhere cannot
complete. As a control a copy by a kernel is issued then too; if that one completes, nothing was held and the test
proves nothing, which counts as a failure.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from fscomm.device import Device
from fscomm.transports.choice.busy_device import Multiprocessors
from fscomm.transports.choice.selftest_rows import Operation, operations
from fscomm.transports.transport import Handle, Transport
from fsranks.errors import describe, name_ranks

BOUND_S = 10.0
CONTROL_S = 0.2  # a copy of a few bytes takes microseconds
_TURNS = 4  # of buffers, as many as a transport may take in turn; allocating one would wait for the kernel that spins
_ASK_AGAIN_S = 0.0005


class Engagement(Protocol):
    """The multiprocessors of this rank's device."""

    def hold_all_sms(self) -> AbstractContextManager[None]:
        """Inside, nothing that needs an SM of this device can begin."""

    def sm_copy(self) -> Callable[[], bool]:
        """Issue a copy by a kernel; what comes back tells whether it is done, and never blocks."""


def check(
    transport: Transport,
    device: Device,
    *,
    gather: Callable[[str], list[str]],
    engagement: Engagement | None = None,
    bound_s: float = BOUND_S,
) -> str | None:
    """Why the transport may not be used here, in the same words on all ranks; None if it may. Collective, and blocks.

    Args:
        gather: the texts of all ranks, in their order, from this rank's; carried by something else than `transport`.
        engagement: None: on a GPU that GPU's, except for `nccl`, which is made of kernels; nothing on the CPU.
        bound_s: in which a transfer completes while all SMs are held.
    """
    if transport.world_size == 1:
        return None
    given: list[Operation] = []
    wrong = _agreed(gather, _attempt(lambda: _move(transport, device, given)))
    shown = engagement is not None or (device.where.type == "cuda" and transport.name != "nccl")
    if wrong is not None or not shown:
        return wrong
    return _Trial(transport, given[-1], device, engagement, bound_s).verdict(gather)


def _move(transport: Transport, device: Device, given: list[Operation]) -> str:
    """Fill `given` and do it, all under way at once; in words, what is wrong on this rank."""
    given.extend(operations(transport.rank, transport.world_size, device.where))
    for operation in given:
        operation.poison()
    handles = [operation.issue(transport) for operation in given]
    for handle in handles:
        handle.wait()
    return next((problem for operation in given if (problem := operation.problem())), "")


class _Trial:
    """`operation` while all SMs are held, after it was done so often that all is allocated and loaded.

    Each step returns what went wrong on this rank, or an empty text.
    """

    def __init__(
        self, transport: Transport, operation: Operation, device: Device, engagement: Engagement | None, bound_s: float
    ) -> None:
        self._transport = transport
        self._operation = operation
        self._device = device
        self._engagement = engagement
        self._bound_s = bound_s
        self._handle: Handle | None = None
        self._copied: Callable[[], bool] | None = None

    def verdict(self, gather: Callable[[str], list[str]]) -> str | None:
        with ExitStack() as held:
            if unheld := _agreed(gather, _attempt(lambda: self._hold(held))):
                return f"whether it takes SMs could not be tested: {unheld}"
            # No rank lets go before all are through: rows that are still to leave one may need its SMs.
            moved = _agreed(gather, _attempt(self._move))
            control = _attempt(self._control)
        ended = _agreed(gather, control or _attempt(self._end))
        return "; ".join(text for text in (moved, ended) if text) or None

    def _hold(self, held: ExitStack) -> str:
        for _ in range(_TURNS):
            self._operation.issue(self._transport).wait()
        self._operation.poison()
        self._device.wait(self._device.mark(), self._bound_s)
        self._engagement = self._engagement or Multiprocessors(self._device.where)
        held.enter_context(self._engagement.hold_all_sms())
        return ""

    def _move(self) -> str:
        self._handle = self._operation.issue(self._transport)
        if _within(self._handle.done, self._bound_s):
            return ""
        return f"with every SM held by a kernel, rows did not arrive within {self._bound_s:g} s: kernels carry them"

    def _control(self) -> str:
        assert self._engagement is not None
        self._copied = self._engagement.sm_copy()
        if not _within(self._copied, CONTROL_S):
            return ""
        return "whether it takes SMs could not be tested: a copy by a kernel was done while all were meant to be held"

    def _end(self) -> str:
        """The SMs are free again."""
        if self._handle is not None:
            self._handle.wait()
        if self._copied is not None and not _within(self._copied, self._bound_s):
            return "whether it takes SMs could not be tested: the copy by a kernel was never done"
        return self._operation.problem()


def _attempt(step: Callable[[], str]) -> str:
    """An error is a verdict too: all ranks go on and decide alike."""
    try:
        return step()
    except Exception as error:
        return describe(error)


def _agreed(gather: Callable[[str], list[str]], text: str) -> str | None:
    """What went wrong on any rank, the same text on all; None if nothing did. Collective."""
    ranks: dict[str, list[int]] = {}
    for rank, told in enumerate(gather(text)):
        if told:
            ranks.setdefault(told, []).append(rank)
    return "; ".join(f"on {name_ranks(of)}: {told}" for told, of in ranks.items()) or None


def _within(done: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(_ASK_AGAIN_S)
    return True
