"""Over a process group of NCCL: the baseline, which moves rows with kernels."""

import datetime
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fscomm.transports.handshake import Handshake
from fscomm.transports.nccl.deadlines import Watch
from fscomm.transports.transport import Done, Handle, as_bytes, check_gather, check_splits, row_bytes
from fsranks.job_store import job_store
from fsranks.rank_context import RankContext

# NCCL's own watchdog ends the process when it loses patience, so it gets more than anybody has.
_WATCHDOG = datetime.timedelta(days=365)


class NcclTransport:
    """Rows as bytes through `backend`, a c10d backend of these ranks for tensors on `device`.

    Ranks compare operation and splits before NCCL sees them: sizes that disagree would hang it. `backend` and
    `handshake` belong to the transport, which ends them.
    """

    def __init__(self, backend: Any, handshake: Handshake, device: torch.device, *, name: str = "nccl") -> None:
        self.name = name
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._backend = backend
        self._device = device
        self._watch = Watch(name, handshake, backend.abort)

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits)
        self._check_device(out)
        if not self._watch.agree("all_to_all_v", out, out_splits, in_splits):
            return Done()
        size = row_bytes(out)
        to, source = [n * size for n in in_splits], [n * size for n in out_splits]
        work = self._backend.alltoall_base(as_bytes(out), as_bytes(inp), source, to)
        return _Operation(self._watch, work, (out, inp))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        self._check_device(out)
        splits = [len(inp)] * self.world_size
        if not self._watch.agree("all_gather", out, splits, splits):
            return Done()
        return _Operation(self._watch, self._backend._allgather_base(as_bytes(out), as_bytes(inp)), (out, inp))

    def meet(self) -> None:
        self._watch.agree("meet", torch.empty(0, dtype=torch.uint8))

    def abort(self, reason: str) -> None:
        self._watch.abort(reason)

    def close(self, reason: str) -> None:
        self._watch.close(reason)
        self._backend = None

    def _check_device(self, tensor: torch.Tensor) -> None:
        if tensor.device != self._device:
            raise ValueError(f"{self.name} was made for tensors on {self._device}, got one on {tensor.device}")


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
