"""The warm-up of a transport on all ranks: rows arrive as they were sent, and no kernel carries them.

Rows tell from where, to where and in which place they were sent. All ranks draw the same splits, so each knows what the
others send.

A transport that is meant to leave the multiprocessors (SMs) to compute may fall back to kernels without saying so, and
a trace does not tell. So every rank fills its own with a kernel that spins (`spin`), and sends: what needs an SM
anywhere cannot complete. As a control a copy by a kernel is issued then too; if that one completes, nothing was held
and the test proves nothing, which counts as a failure.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

import torch

from fscomm.device import Device
from fscomm.transports.transport import Handle, Transport
from fsranks.errors import describe, name_ranks

BOUND_S = 10.0
CONTROL_S = 0.2  # a copy of a few bytes takes microseconds
LARGE_BYTES = (9 << 20) + 40  # of one piece: several slots of every transport, and a rest
_BELOW = {torch.int64: 1 << 62, torch.float32: 1 << 24, torch.uint8: 251}  # what a dtype holds exactly, and no poison
_POISON = {torch.int64: -1, torch.float32: float("nan"), torch.uint8: 255}
_FILL_S = 5.0  # for a kernel to get hold of all SMs; it takes microseconds on a GPU that no other process uses
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


def _move(transport: Transport, device: Device, given: "list[Operation]") -> str:
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
        self,
        transport: Transport,
        operation: "Operation",
        device: Device,
        engagement: Engagement | None,
        bound_s: float,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An exchange as one rank takes part in it; `sent`: to it by each rank, so all together what `out` must become."""

    name: str
    out: torch.Tensor
    inp: torch.Tensor
    sent: tuple[torch.Tensor, ...]
    in_splits: tuple[int, ...] | None  # None: an all-gather

    def poison(self) -> None:
        self.out.fill_(_POISON[self.out.dtype])

    def issue(self, transport: Transport) -> Handle:
        if self.in_splits is None:
            return transport.all_gather(self.out, self.inp)
        return transport.all_to_all_v(self.out, self.inp, [len(part) for part in self.sent], self.in_splits)

    def problem(self) -> str:
        """In words, whose rows are not here as they were sent; empty if all are. Waits for the device."""
        parts = self.out.split([len(part) for part in self.sent])
        wrong = [rank for rank, part in enumerate(parts) if not torch.equal(part, self.sent[rank])]
        return f"{self.name}: rows from {name_ranks(wrong)} are not what was sent" if wrong else ""


def operations(rank: int, world_size: int, where: torch.device) -> list[Operation]:
    """What `rank` takes part in, on tensors that lie `where`; the last one moves the most bytes."""
    random = torch.Generator().manual_seed(world_size)

    def drawn(most: int) -> torch.Tensor:
        splits = torch.randint(0, most + 1, (world_size, world_size), generator=random)
        return splits * torch.randint(0, 3, splits.shape, generator=random).clamp(max=1)  # a third sends nothing

    to_one = torch.zeros(world_size, world_size, dtype=torch.int64)
    to_one[:, -1] = 37
    large = drawn(50)
    for source in range(world_size):
        large[source, (source + 1) % world_size] = LARGE_BYTES // 20
    exchanges = [
        ("few rows", torch.int64, (), drawn(5)),
        ("rows of odd size", torch.uint8, (3,), drawn(100)),
        ("no rows", torch.float32, (4,), drawn(0)),
        ("all to the last rank", torch.float32, (4,), to_one),
        ("many rows", torch.float32, (16,), drawn(1000)),
    ]
    made = [_all_to_all(number, *exchange, rank, where) for number, exchange in enumerate(exchanges)]
    made += [_all_gather(10 + n, n, rank, world_size, where) for n in (0, 3, 1001)]
    return [*made, _all_to_all(20, "large pieces", torch.float32, (5,), large, rank, where)]


def _all_to_all(
    number: int,
    name: str,
    dtype: torch.dtype,
    trailing: Sequence[int],
    splits: torch.Tensor,
    rank: int,
    where: torch.device,
) -> Operation:
    """splits: int64 [W, W], rows from each rank to each."""

    def piece(source: int, to: int) -> torch.Tensor:
        return _rows(number, source, to, int(splits[source, to]), dtype, trailing).to(where)

    sent = tuple(piece(source, rank) for source in range(len(splits)))
    inp = torch.cat([piece(rank, to) for to in range(len(splits))])
    return Operation(
        name=f"all-to-all of {name}",
        out=torch.empty_like(torch.cat(sent)),
        inp=inp,
        sent=sent,
        in_splits=tuple(splits[rank].tolist()),
    )


def _all_gather(number: int, n: int, rank: int, world_size: int, where: torch.device) -> Operation:
    sent = tuple(_rows(number, source, 0, n, torch.float32, (3,)).to(where) for source in range(world_size))
    return Operation(
        name=f"all-gather of {n} rows",
        out=torch.empty_like(torch.cat(sent)),
        inp=sent[rank].clone(),
        sent=sent,
        in_splits=None,
    )


def _rows(number: int, source: int, to: int, n: int, dtype: torch.dtype, trailing: Sequence[int]) -> torch.Tensor:
    """[n, *trailing], counted on from a start of its own for every operation and pair of ranks."""
    width = int(torch.Size(trailing).numel())
    start = ((number * 1009 + source) * 1013 + to) * 7919
    return ((start + torch.arange(n * width)) % _BELOW[dtype]).to(dtype).reshape(n, *trailing)


class Multiprocessors:
    """The GPU `where`. After `limit_s` the kernel ends by itself, so nothing hangs if this process does."""

    def __init__(self, where: torch.device, *, limit_s: float = 60.0) -> None:
        self._where = where
        self._limit_ns = int(1e9 * limit_s)
        # Of another pool than streams without a priority, of which torch gives out one twice after 32.
        self._spins, self._words, self._copies = (torch.cuda.Stream(where, priority=-1) for _ in range(3))
        self._inp, self._out = (torch.zeros(1024, device=where) for _ in range(2))

    @contextlib.contextmanager
    def hold_all_sms(self) -> Iterator[None]:
        """Waits for this GPU before and after, so it must not be left to a thread that trains.

        Raises:
            RuntimeError: Triton is missing, or something else kept an SM.
        """
        try:
            from fscomm.transports import spin
        except ImportError as error:
            raise RuntimeError("holding all SMs needs Triton: pip install triton") from error
        properties = torch.cuda.get_device_properties(self._where)
        count = spin.programs(properties.multi_processor_count, properties.max_threads_per_multi_processor)
        flag, arrived = (torch.ones(1, dtype=torch.int32, device=self._where) for _ in range(2))
        zero, one, seen = (torch.full((1,), n, dtype=torch.int32, pin_memory=True) for n in (0, 1, 0))
        # Compiling, loading and allocating wait for the GPU: all of it must be over before the kernel spins.
        torch.cuda.synchronize(self._where)
        self.sm_copy()
        self._copies.synchronize()
        with torch.cuda.stream(self._spins):
            spin.launch(flag, arrived, count=count, limit=self._limit_ns)
            flag.copy_(zero, non_blocking=True)
            arrived.copy_(zero, non_blocking=True)
            self._spins.synchronize()
            spin.launch(flag, arrived, count=count, limit=self._limit_ns)
        try:
            self._await_all(arrived, seen, count)
            yield
        finally:
            with torch.cuda.stream(self._words):
                flag.copy_(one, non_blocking=True)
            self._spins.synchronize()

    def sm_copy(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            torch.add(self._inp, 1, out=self._out)  # what copies within a device need not run on SMs; this must
            event.record()
        return event.query

    def _await_all(self, arrived: torch.Tensor, seen: torch.Tensor, count: int) -> None:
        end = time.monotonic() + _FILL_S
        while int(seen) != count:
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"only {int(seen)} of the {count} programs that fill {self._where} got hold of an SM within "
                    f"{_FILL_S:g} s: another process or stream uses it"
                )
            time.sleep(_ASK_AGAIN_S)
            with torch.cuda.stream(self._words):
                seen.copy_(arrived, non_blocking=True)
                self._words.synchronize()
