"""Over a process group of NCCL: `nccl`, the baseline, which moves rows with kernels, and `nccl-ce`, which does not.

NCCL leaves the SMs alone only for even operations on registered buffers, since 2.28 inside one NVLink domain and since
2.30.7 across hosts. So `nccl-ce` copies rows into slots of one size, the largest piece that any rank sends to another,
and out of them again: a rank that sends much to one peer pads all other pieces.
"""

import datetime
import os
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from fscomm.device import Device
from fscomm.transports.cutting import grown, piece_of
from fscomm.transports.together import StepFailed, gather_text, in_words, may_share_gpu, need_own_gpu, together
from fscomm.transports.transport import Chunk, Done, Handle
from fscomm.transports.watch import Watched
from fsranks.control_group import ControlGroup
from fsranks.job_store import job_store
from fsranks.rank_context import RankContext

# NCCL's own watchdog ends the process at its time limit, so it gets a limit that is never reached.
_WATCHDOG = datetime.timedelta(days=365)
_SMALLEST = 4096  # bytes of a slot; registering memory costs the same for a page as for a few rows
_PAIRS = 2  # of buffers: while one is on the wire, the next is filled
Copy = Callable[[torch.Tensor, torch.Tensor], object]


class _OverBackend(Watched):
    """The common part of both transports. `backend` belongs to the transport, which aborts it.

    Sizes that disagree with those of another rank hang NCCL, until the time limit.
    """

    def __init__(self, backend: Any, group: ControlGroup, where: torch.device) -> None:
        super().__init__(group)
        self._backend = backend
        self._where = where

    def _begin(self, chunk: Chunk, row_bytes: int) -> Handle:
        if chunk.out.device != self._where:
            raise ValueError(f"{self.name} was made for tensors on {self._where}, got one on {chunk.out.device}")
        with self._guard():
            return self._issue(chunk) if chunk.largest_bytes else Done()

    def _end(self, reason: str) -> None:
        # Read once: another thread may close the transport meanwhile.
        if (backend := self._backend) is not None:
            backend.abort()

    def close(self, reason: str) -> None:
        # Also what is under way: a communicator that is destroyed without an abort may wait for its peers.
        self._give_up(reason)
        super().close(reason)
        self._backend = None

    @abstractmethod
    def _issue(self, chunk: Chunk) -> Handle:
        """chunk: in bytes."""

    def _finish(self, work: dist.Work, since: float) -> None:
        """Order the current stream behind `work`; on the host, block until it is done. Raises PeerError."""
        try:
            work.wait()
        except RuntimeError as error:
            detail = f". The backend said: {str(error).splitlines()[0]}"
            raise self._failed(time.monotonic() - since, gone=self._group.gone(), detail=detail) from error


class NcclTransport(_OverBackend):
    """Rows as bytes through `backend`, a c10d backend of these ranks."""

    name = "nccl"

    def _issue(self, chunk: Chunk) -> Handle:
        out, inp, received, sent, _ = chunk
        work = self._backend.alltoall_base(out, inp, received, sent)

        def wait() -> None:
            start = time.monotonic()
            # `work.wait` alone would only order the stream, which a lost rank then blocks.
            self._until_done(work.is_completed)
            self._finish(work, start)

        def follow() -> None:
            self._finish(work, time.monotonic())

        return self._begun(out, inp, done=work.is_completed, wait=wait, follow=follow)


class PaddedTransport(_OverBackend):
    """An uneven all-to-all as an even one, which `backend` carries.

    `copy(out, inp)` moves bytes on the device, in the current stream.

    Buffers grow, on all ranks alike, to the next power of two of the largest piece. An operation runs in the stream of
    its pair of buffers: fill, exchange, empty. So the next operation on that pair cannot overwrite it, however late the
    host waits for it, and issuing never blocks for a device. On the host, which has no streams, an operation is
    complete when it is issued.
    """

    name = "nccl-ce"

    def __init__(self, backend: Any, group: ControlGroup, device: Device, *, copy: Copy = torch.Tensor.copy_) -> None:
        super().__init__(backend, group, device.where)
        self._device = device
        self._copy = copy
        self._slot_bytes = 0
        self._buffers: deque[list[torch.Tensor]] = deque()  # sent and received: uint8 [W, slot_bytes] each
        self._streams = deque(device.stream() for _ in range(_PAIRS))
        # Buffers that were outgrown stay: freeing them would have to wait for what is in flight. Sizes are powers of
        # two, so all of them together are no larger than those in use.
        self._registered: list[Any] = []

    def close(self, reason: str) -> None:
        super().close(reason)
        # Only now: the backend has aborted its communicator, and thereby forgotten the buffers.
        self._buffers.clear()
        self._registered.clear()

    def _grow(self, largest: int) -> None:
        """Collective."""
        self._synchronize()  # registering waits for all ranks in the backend, which has no time limit
        self._slot_bytes = grown(max(self._slot_bytes, _SMALLEST), largest)
        shape = self.world_size, self._slot_bytes

        def make() -> deque[list[torch.Tensor]]:
            pairs = range(_PAIRS)
            return deque([torch.empty(shape, dtype=torch.uint8, device=self._where) for _ in range(2)] for _ in pairs)

        if self._where.type == "cpu":
            self._buffers = make()
            return
        pool = torch.cuda.MemPool(self._backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool, self._where):
            self._buffers = make()
        self._backend.register_mem_pool(pool, True)  # symmetric: as windows, which copy engines need
        self._registered.append((pool, *self._buffers))

    def _issue(self, chunk: Chunk) -> Handle:
        out, inp, received, sent, largest = chunk
        if self._slot_bytes < largest:
            self._grow(largest)
        start, before = time.monotonic(), self._device.mark()
        self._buffers.rotate(-1)
        self._streams.rotate(-1)
        sending, receiving = self._buffers[-1]
        with self._streams[-1]:
            self._device.after(before)
            for slot, (first, stop) in zip(sending, piece_of(sent, sending.shape[1], 0), strict=True):
                if stop > first:
                    self._copy(slot[: stop - first], inp[first:stop])
            self._finish(self._backend.alltoall_base(receiving.view(-1), sending.view(-1), [], []), start)
            for slot, (first, stop) in zip(receiving, piece_of(received, receiving.shape[1], 0), strict=True):
                if stop > first:
                    self._copy(out[first:stop], slot[: stop - first])
            mark = self._device.mark()

        is_done, follow = partial(self._device.is_done, mark), partial(self._device.after, mark)

        def wait() -> None:
            self._until_done(is_done)
            follow()

        return self._begun(out, inp, sending, receiving, done=is_done, wait=wait, follow=follow)


def nccl_backend(
    context: RankContext, group: ControlGroup, where: torch.device, *, zero_cta: bool, urgent: bool
) -> Any:
    """A ProcessGroupNCCL of its own, connected, and unknown to torch.distributed. Collective.

    `zero_cta` asks NCCL to leave the SMs alone; it does so for even operations on registered buffers, and otherwise
    uses kernels silently. `urgent`: its kernels are scheduled before those of streams without priority. The time
    limit of `group` is for finding the other ranks.

    Raises:
        StepFailed: on all ranks, if one has no NCCL, another version of it than others, or no GPU of its own, or cannot
            ask for zero-CTA.
    """
    options, version = together(group, lambda: _options(context, zero_cta=zero_cta, urgent=urgent))
    # With zero-CTA not even in tests: ranks that NCCL takes for several hosts cannot register buffers together.
    why = "NCCL wants a GPU for each rank; take host-staged"
    if zero_cta or not may_share_gpu(group):
        need_own_gpu(group, where, why)
    versions = gather_text(group, f"NCCL {version}")
    if len(versions) > 1:  # what they send to each other differs
        raise StepFailed(f"all ranks must load one version of NCCL: {in_words(versions)}")
    assert context.group is not None
    store = job_store(context.group, "nccl", group.timeout_s).store
    backend = dist.ProcessGroupNCCL(store, context.rank, context.world_size, options)
    backend._set_sequence_number_for_group()  # as torch does for its own groups
    # Now, together, and on this device: otherwise the first exchange would connect, in the middle of a step.
    backend.eager_connect_single_device(where)
    return backend


def _options(context: RankContext, *, zero_cta: bool, urgent: bool) -> tuple[Any, str]:
    """Options of NCCL's process group, and the version of NCCL. Raises RuntimeError, ValueError: not available here."""
    if context.group is None:
        raise ValueError("NCCL needs a process group, whose ranks it connects")
    if not dist.is_nccl_available():
        raise RuntimeError(f"torch {torch.__version__} was built without NCCL: install a CUDA build of torch")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _WATCHDOG
    options.is_high_priority_stream = urgent
    if zero_cta:
        policy = getattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO", None)
        if policy is None or not hasattr(options.config, "cta_policy"):
            raise RuntimeError(f"torch {torch.__version__} cannot ask NCCL for zero-CTA: install torch >= 2.11")
        options.config.cta_policy = policy
        given = os.environ.get("NCCL_CTA_POLICY", "2")
        if not ("ZERO" in given.upper() or (given.isdigit() and int(given) & 2)):
            raise RuntimeError(f"NCCL_CTA_POLICY={given} overrides the zero-CTA policy: unset it, or set 2")
    return options, ".".join(map(str, torch.cuda.nccl.version()))
