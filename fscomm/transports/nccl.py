"""Over a process group of NCCL: `nccl`, the baseline, which moves rows with kernels, and `nccl-ce`, which does not.

NCCL leaves the SMs alone only for even operations on registered buffers. So `nccl-ce` copies rows into slots of one
size, the largest piece that any rank sends to any, and out of them again: a rank that sends much to one peer pads all
others.
"""

import contextlib
import datetime
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fscomm.device import Device, Mark
from fscomm.transports.cutting import Part, grown, parts
from fscomm.transports.handshake import Handshake, Watch
from fscomm.transports.transport import Done, Handle, as_bytes, check_gather, check_splits, row_bytes
from fsranks.job_store import job_store
from fsranks.rank_context import RankContext

# NCCL's own watchdog ends the process when it loses patience, so it gets more than anybody has.
_WATCHDOG = datetime.timedelta(days=365)
_SMALLEST = 4096  # bytes of a slot; registering memory costs the same for a page as for a few rows
_PAIRS = 2  # of buffers: while one is on the wire, the next is filled
Copy = Callable[[torch.Tensor, torch.Tensor], object]


class _OverBackend:
    """What both transports have in common: `backend` and `handshake` belong to the transport, which ends them."""

    def __init__(self, name: str, backend: Any, handshake: Handshake, where: torch.device) -> None:
        self.name = name
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._backend = backend
        self._where = where
        self._watch = Watch(name, handshake, backend.abort)

    def meet(self) -> None:
        self._watch.agree("meet", torch.empty(0, dtype=torch.uint8))

    def abort(self, reason: str) -> None:
        self._watch.abort(reason)

    def close(self, reason: str) -> None:
        self._watch.close(reason)
        self._backend = None

    def _agree(self, operation: str, like: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]) -> int:
        if like.device != self._where:
            raise ValueError(f"{self.name} was made for tensors on {self._where}, got one on {like.device}")
        return self._watch.agree(operation, like, out_splits, in_splits)


class NcclTransport(_OverBackend):
    """Rows as bytes through `backend`, a c10d backend of these ranks for tensors on `device`.

    Ranks compare operation and splits before NCCL sees them: sizes that disagree would hang it.
    """

    def __init__(self, backend: Any, handshake: Handshake, device: torch.device, *, name: str = "nccl") -> None:
        super().__init__(name, backend, handshake, device)

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits)
        if not self._agree("all_to_all_v", out, out_splits, in_splits):
            return Done()
        size = row_bytes(out)
        to, source = [n * size for n in in_splits], [n * size for n in out_splits]
        work = self._backend.alltoall_base(as_bytes(out), as_bytes(inp), source, to)
        return _Operation(self._watch, work, (out, inp))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        splits = [len(inp)] * self.world_size
        if not self._agree("all_gather", out, splits, splits):
            return Done()
        return _Operation(self._watch, self._backend._allgather_base(as_bytes(out), as_bytes(inp)), (out, inp))


class _Operation:
    """Under way. It keeps its tensors."""

    def __init__(self, watch: Watch, work: dist.Work, tensors: tuple[torch.Tensor, ...]) -> None:
        self._watch = watch
        self._work = work
        self._tensors = tensors

    def done(self) -> bool:
        return self._watch.is_over or self._work.is_completed()

    def wait(self) -> None:
        start = time.monotonic()
        self._watch.until(self._work.is_completed)
        finish(self._watch, self._work, since=start)
        self._tensors = ()


def finish(watch: Watch, work: dist.Work, *, since: float) -> None:
    """Order the current stream behind `work`; on the host, block until it is done. Raises PeerError."""
    try:
        work.wait()
    except RuntimeError as error:
        raise watch.failed(time.monotonic() - since, f"The backend said: {str(error).splitlines()[0]}") from error


def nccl_backend(context: RankContext, device: torch.device, *, timeout_s: float, zero_cta: bool) -> Any:
    """A ProcessGroupNCCL of its own, connected, and unknown to torch.distributed. Collective.

    `zero_cta` asks NCCL to leave the SMs alone; it does so for even operations on registered buffers, and otherwise
    takes kernels without a word. `timeout_s` is for finding the other ranks.

    Raises:
        RuntimeError: this torch has no NCCL, or cannot ask it for zero-CTA.
    """
    if context.group is None:
        raise ValueError("NCCL needs a process group, whose ranks it connects")
    if not dist.is_nccl_available():
        raise RuntimeError(f"torch {torch.__version__} was built without NCCL: install a CUDA build of torch")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _WATCHDOG
    if zero_cta:
        policy = getattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO", None)
        if policy is None or not hasattr(options.config, "cta_policy"):
            raise RuntimeError(f"torch {torch.__version__} cannot ask NCCL for zero-CTA: install torch >= 2.11")
        options.config.cta_policy = policy
    store = job_store(context.group, "nccl", timeout_s).store
    backend = dist.ProcessGroupNCCL(store, context.rank, context.world_size, options)
    backend._set_sequence_number_for_group()
    backend.eager_connect_single_device(device)
    return backend


class PaddedTransport(_OverBackend):
    """An uneven all-to-all as an even one, which `backend` carries.

    `copy(out, inp)` moves bytes on the device, in the current stream.

    Buffers grow, on all ranks alike, to the next power of two of the largest piece. An operation runs in the stream of
    its pair of buffers: fill, exchange, empty. So the next one on that pair cannot overwrite it, whenever the host
    comes to wait, and issuing never blocks for a device. On the host, where there are no streams, it is over when
    issued.
    """

    def __init__(
        self,
        backend: Any,
        handshake: Handshake,
        device: Device,
        *,
        copy: Copy = torch.Tensor.copy_,
        name: str = "nccl-ce",
    ) -> None:
        super().__init__(name, backend, handshake, device.where)
        self._device = device
        self._copy = copy
        self._registered = Registered(backend, device.where, self.world_size)
        self._streams = deque(_stream(device.where) for _ in range(_PAIRS))
        self._flights: deque[_PaddedOperation] = deque()  # not known to be done; they keep their tensors

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits)
        largest = self._agree("all_to_all_v", out, out_splits, in_splits)
        size = row_bytes(out)
        return self._issue(largest, (out, parts(out_splits, size)), (inp, parts(in_splits, size)))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        splits = [len(inp)] * self.world_size
        largest = self._agree("all_gather", out, splits, splits)
        same = [Part(peer=peer, start=0, stop=largest) for peer in range(self.world_size)]
        return self._issue(largest, (out, parts(splits, row_bytes(out))), (inp, same))

    def close(self, reason: str) -> None:
        super().close(reason)
        self._flights.clear()
        self._registered.drop()

    def _agree(self, operation: str, like: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]) -> int:
        largest = super()._agree(operation, like, out_splits, in_splits)
        while self._flights and self._flights[0].done():
            self._flights.popleft()
        self._registered.grow(largest)
        return largest

    def _issue(
        self, largest: int, to: tuple[torch.Tensor, list[Part]], source: tuple[torch.Tensor, list[Part]]
    ) -> Handle:
        """to, source: a tensor and where in it the part from, or to, each rank lies."""
        if not largest:
            return Done()
        out, inp, start = as_bytes(to[0]), as_bytes(source[0]), time.monotonic()
        pair = self._registered.next()
        stream = self._streams[0]
        self._streams.rotate(-1)
        with _in_stream(stream, self._device.where):
            for part in source[1]:
                self._copy(pair.sent[part.peer, : part.stop - part.start], inp[part.start : part.stop])
            work = self._backend.alltoall_base(pair.received.view(-1), pair.sent.view(-1), [], [])
            finish(self._watch, work, since=start)
            for part in to[1]:
                self._copy(out[part.start : part.stop], pair.received[part.peer, : part.stop - part.start])
            mark = self._device.mark()
        flight = _PaddedOperation(self._watch, self._device, mark, (out, inp, pair))
        self._flights.append(flight)
        return flight


class _PaddedOperation:
    """Under way. It keeps its tensors."""

    def __init__(self, watch: Watch, device: Device, mark: Mark, tensors: tuple[object, ...]) -> None:
        self._watch = watch
        self._device = device
        self._mark = mark
        self._tensors = tensors

    def done(self) -> bool:
        return self._watch.is_over or self._device.is_done(self._mark)

    def wait(self) -> None:
        self._watch.until(lambda: self._device.is_done(self._mark))
        self._device.after(self._mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """sent, received: uint8 [W, slot]."""

    sent: torch.Tensor
    received: torch.Tensor


class Registered:
    """Pairs of buffers, used in turn, which `backend` has registered if they lie on a GPU.

    Those that were outgrown stay until the end, since freeing them would have to wait for what is in flight; sizes are
    powers of two, so all of them together are no larger than those in use.
    """

    def __init__(self, backend: Any, where: torch.device, world_size: int) -> None:
        self._backend = backend
        self._where = where
        self._world_size = world_size
        self._slot = 0
        self._pairs: deque[Pair] = deque()
        self._pools: list[Any] = []

    def grow(self, largest: int) -> None:
        """Collective if it grows, which all ranks decide alike."""
        slot = grown(max(self._slot, _SMALLEST), largest)
        if slot == self._slot:
            return
        self._slot = slot
        if self._where.type == "cpu":
            self._pairs = deque(self._pair() for _ in range(_PAIRS))
            return
        pool = torch.cuda.MemPool(self._backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool, self._where):
            self._pairs = deque(self._pair() for _ in range(_PAIRS))
        self._backend.register_mem_pool(pool, True)  # symmetric: as windows, which copy engines need
        self._pools.append((pool, tuple(self._pairs)))

    def next(self) -> Pair:
        self._pairs.rotate(-1)
        return self._pairs[-1]

    def drop(self) -> None:
        """With the backend, which has aborted its communicator and thereby forgotten them."""
        self._backend = None
        self._pairs.clear()
        self._pools.clear()

    def _pair(self) -> Pair:
        shape = (self._world_size, self._slot)
        return Pair(
            sent=torch.empty(shape, dtype=torch.uint8, device=self._where),
            received=torch.empty(shape, dtype=torch.uint8, device=self._where),
        )


def _stream(where: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(where) if where.type == "cuda" else None


@contextlib.contextmanager
def _in_stream(stream: torch.cuda.Stream | None, where: torch.device) -> Iterator[None]:
    """Issue to `stream`, behind all that the calling thread has issued so far."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(where))
    with torch.cuda.stream(stream):
        yield
