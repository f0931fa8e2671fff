"""Where the tables are, and in which order the work of several threads is done there.

On the CPU work is done when the call that does it returns. On CUDA a call only issues work to the stream of its thread.
Each worker has a stream of its own. A *mark* stands for everything that a thread has issued so far. A thread that uses
a result of another thread lets its own stream wait for that thread's mark; the host does not wait.

The work of fscomm cannot be part of a graph: a look-up waits for other ranks and for workers, and the rows that are
prefetched are known only when it runs. So fscomm refuses to be captured by a CUDA graph, and `torch.compile` breaks its
graphs where a user's program calls fscomm. Code inside such a call is never compiled.
"""

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fsranks.machine.clock import MACHINE_CLOCK, Clock

Mark = Any  # None where nothing is left to wait for

CAPTURED = (
    "a CUDA graph is being captured, and what fscomm issues cannot be part of a graph, because it waits for other "
    "ranks. Capture only what uses no tables: the dense part of the model (torch.cuda.make_graphed_callables). Where "
    "another thread than the one that trains captures, give torch.cuda.graph capture_error_mode='thread_local'"
)
LATE = (
    "{where} did not come to the end of what fscomm waits for within {limit_s:g} s: what was issued to it before takes "
    "longer, or hangs. If it is only busy, raise timeout_s"
)
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_PUT = range(12, 25)  # powers of two: bytes of a plan; together 64 MiB
_ALIGNED = 16  # bytes; where each of several tensors begins that are copied together
_PAUSES_S = 2e-5, 1e-3  # between two polls: the first, and the longest

# By GPU and priority, streams that were released, for the next block. torch assigns 32 streams in turn, also to NCCL's
# process groups: after a few blocks a new one would be a stream of DDP, which waits for other ranks.
_FREE: dict[tuple[int, int], list[torch.cuda.Stream]] = {}

not_compiled = torch.compiler.disable(
    reason="fscomm serves it, and waits in it for other ranks, which no graph can do. Compile without fullgraph=True, "
    "or only parts of the model that look nothing up"
)
"""Decorates a function. With `fullgraph=True` torch raises its own error at a call of it, and says this reason."""


def is_traced() -> bool:
    """Whether `torch.compile` traces in this thread: it then takes addresses of tensors, but accesses none of them."""
    return torch._guards.TracingContext.try_get() is not None


class Device:
    """Where the tables are. Methods act on the calling thread.

    The methods of this class fit the CPU: work is done when the call that issues it returns, so marks never wait.
    """

    where: torch.device
    runs_ahead = False
    """Whether the host issues work that the device does later."""

    def enter(self, *, priority: int = 0) -> None:
        """Issue from now on to a stream of this thread's own, also while another thread captures; once, by a worker.
        priority: as in `stream`."""

    def stream(self, *, priority: int = 0) -> contextlib.AbstractContextManager[Any]:
        """A new stream, to which a thread issues inside `with`, which may be entered often. Streams with a lower number
        of `priority` go first."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """Return the streams of this device for reuse: no thread issues to them any more, and all work in them ends."""

    def mark(self) -> Mark:
        """All that this thread has issued so far."""
        return None

    def after(self, mark: Mark) -> None:
        """What this thread issues from now on runs after `mark`. Does not block."""

    def is_done(self, mark: Mark) -> bool:
        return True

    def instant(self) -> Mark:
        """A mark whose time can be asked for; None while a CUDA graph is captured."""
        return time.perf_counter()

    def seconds(self, begin: Mark, end: Mark) -> float | None:
        """From one instant to another, earlier or later one, as the device reached them; None if it has not."""
        return float(end - begin)

    def wait(self, mark: Mark, limit_s: float) -> None:
        """Block until `mark` is done. Raises TimeoutError after `limit_s`: work before it takes longer, or hangs."""

    def refuse_capture(self) -> None:
        """Raise RuntimeError if what this thread issues now goes into a CUDA graph."""

    def reads(self, *tensors: Any) -> None:
        """This thread uses tensors that another thread made: their memory must not be reused before that is done."""

    def put(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies host tensors to the device, all by one copy; does not wait for it."""
        return list(tensors)

    def reserve(self) -> None:
        """Allocate page-locked memory for `put` in advance: locking it in a step would stall the device. Blocks."""

    def staging(self, like: torch.Tensor) -> torch.Tensor:
        """Uninitialised host memory, of the kind from which and to which the device transfers fast."""
        return torch.empty_like(like)


class Host(Device):
    """The CPU."""

    where = torch.device("cpu")


class CudaDevice(Device):
    """One GPU."""

    runs_ahead = True

    def __init__(self, where: torch.device) -> None:
        self.where = where if where.index is not None else torch.device("cuda", torch.cuda.current_device())
        self._used: list[tuple[int, torch.cuda.Stream]] = []  # by priority

    def enter(self, *, priority: int = 0) -> None:
        torch.cuda.set_device(self.where)
        torch.cuda.set_stream(self._stream(priority))
        _let_others_capture()

    def stream(self, *, priority: int = 0) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream(priority))

    def release(self) -> None:
        while self._used:
            priority, stream = self._used.pop()
            _FREE.setdefault((self.where.index, priority), []).append(stream)

    def _stream(self, priority: int) -> torch.cuda.Stream:
        try:  # several threads enter at a time
            stream = _FREE.setdefault((self.where.index, priority), []).pop()
        except IndexError:
            stream = torch.cuda.Stream(self.where, priority=priority)
        self._used.append((priority, stream))
        return stream

    def mark(self) -> Mark:
        self.refuse_capture()
        return torch.cuda.current_stream(self.where).record_event()

    def after(self, mark: Mark) -> None:
        if mark is not None:
            self.refuse_capture()
            torch.cuda.current_stream(self.where).wait_event(mark)

    def is_done(self, mark: Mark) -> bool:
        try:
            return mark is None or mark.query()
        except RuntimeError as error:  # while this thread captures, and in one that did not `enter` while any does
            if "captur" in str(error):
                raise RuntimeError(CAPTURED) from error
            raise

    def instant(self) -> Mark:
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.where))
        return event

    def seconds(self, begin: Mark, end: Mark) -> float | None:
        return begin.elapsed_time(end) / 1e3 if self.is_done(begin) and self.is_done(end) else None

    def wait(self, mark: Mark, limit_s: float) -> None:
        if not poll(lambda: self.is_done(mark), limit_s):
            raise TimeoutError(LATE.format(where=self.where, limit_s=limit_s))

    def refuse_capture(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(CAPTURED)

    def reads(self, *tensors: Any) -> None:
        stream = torch.cuda.current_stream(self.where)
        for tensor in tensors:
            tensor.record_stream(stream)

    def put(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        flat = [as_bytes(tensor) for tensor in tensors]
        lengths = (-(-len(each) // _ALIGNED) * _ALIGNED for each in flat)
        *starts, total = itertools.accumulate(lengths, initial=0)
        packed = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        for start, each in zip(starts, flat, strict=True):
            packed[start : start + len(each)] = each
        there = packed.to(self.where, non_blocking=True)
        return [
            there[start : start + len(each)].view(tensor.dtype).view(tensor.shape)
            for start, each, tensor in zip(starts, flat, tensors, strict=True)
        ]

    def reserve(self) -> None:
        # torch caches freed blocks of these sizes: one for the plan that is copied, one for the next plan.
        blocks = [torch.empty(1 << power, dtype=torch.uint8, pin_memory=True) for power in _PUT for _ in range(2)]
        del blocks

    def staging(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def poll(is_done: Callable[[], bool], limit_s: float, clock: Clock = MACHINE_CLOCK) -> bool:
    """Block the calling thread until `is_done()`, at most `limit_s`; whether it is. It polls, since a wait inside a
    library or a driver has no time limit."""
    end, (pause, longest) = clock.now() + limit_s, _PAUSES_S
    while not is_done():
        if clock.now() >= end:
            return False
        clock.wait(pause)
        pause = min(2 * pause, longest)
    return True


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8, one-dimensional, the same memory; of a contiguous tensor."""
    # An empty array of numpy 2 has stride 0, and torch views that as no other dtype.
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8) if len(flat) else flat.new_empty(0, dtype=torch.uint8)


def _let_others_capture() -> None:
    """Work on this thread is not affected by a capture on another thread.

    Otherwise, while any thread captures in mode global (that of torch.cuda.graph), a query of an event or an allocation
    by the driver is an error in all threads, and also breaks the capture. The mode belongs to the calling thread.
    """
    mode = ctypes.c_int(_THREAD_LOCAL)
    with contextlib.suppress(OSError):  # not NVIDIA's driver: there captures must be of mode thread_local
        status = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        if status:
            raise RuntimeError(f"cuThreadExchangeStreamCaptureMode failed: CUDA error {status}")


def device_of(where: torch.device) -> Device:
    return CudaDevice(where) if where.type == "cuda" else Host()
