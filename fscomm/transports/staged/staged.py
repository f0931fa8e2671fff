"""Rows through host memory: to the host by a copy engine, over a host transport, and back (paper, section 3).

No kernel takes part, so compute that runs beside it keeps all multiprocessors. Callers hand operations to a thread of
the transport's own (`stages`), which alone waits for copies and for the wire.
"""

import queue
import threading
from collections.abc import Sequence

import torch

from fscomm.device import Device
from fscomm.transports.handshake import Handshake
from fscomm.transports.staged.pieces import cut
from fscomm.transports.staged.stages import Operation, Stages
from fscomm.transports.transport import Handle, Transport, check_gather, check_splits, row_bytes
from fsranks.errors import PeerError, describe

_GRACE_S = 3.0  # in which the thread ends once it is told to


class HostStaged:
    """A transport for tensors on `device`, over `host` for what has come to the host.

    `host` need not verify anything; it and `handshake` belong to the transport, which closes them. At most 2 * depth
    buffers of `chunk_bytes`, or of one row per rank where that is more, are held. A rank's own rows take the same way
    as all others: a copy within a device may be done by a kernel.
    """

    name = "host-staged"

    def __init__(
        self, host: Transport, handshake: Handshake, device: Device, *, chunk_bytes: int = 4 << 20, depth: int = 3
    ) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._host = host
        self._handshake = handshake
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._aborting = threading.Lock()
        self._reason: str | None = None
        self._stopped = threading.Event()
        self._submitted: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._stages = Stages(host, device, depth=depth, stopped=self._stopped, limit_s=handshake.timeout_s)
        self._thread = threading.Thread(target=self._serve, name=f"fscomm {self.name}", daemon=True)
        self._thread.start()

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits)
        largest = self._agree("all_to_all_v", out, out_splits, in_splits)
        return self._submit(out, inp, out_splits, in_splits, largest_bytes=largest, gather=False)

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        splits = [len(inp)] * self.world_size
        largest = self._agree("all_gather", out, splits, splits)
        return self._submit(out, inp, splits, [len(inp)], largest_bytes=largest, gather=True)

    def meet(self) -> None:
        self._agree("meet", torch.empty(0))

    def abort(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
        with self._aborting:  # the thread, which comes here too, ends once all ranks can read the reason
            if not self._stopped.is_set():
                self._stopped.set()
                self._handshake.group.abort(reason)
                self._host.abort(reason)

    def close(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
        self._submitted.put(None)
        self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            self.abort(reason)
            self._thread.join(_GRACE_S)
        self._handshake.group.close(reason)
        self._host.close(reason)

    def _agree(
        self, operation: str, like: torch.Tensor, out_splits: Sequence[int] = (), in_splits: Sequence[int] = ()
    ) -> int:
        with self._lock:
            self._check()
        try:
            return self._handshake.agree(operation, like, out_splits, in_splits)
        except PeerError as error:
            self.abort(f"lost the others: {error}")
            raise

    def _submit(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
        gather: bool,
    ) -> Handle:
        size = row_bytes(out)
        pieces = cut(largest_bytes, size, world_size=self.world_size, chunk_bytes=self._chunk_bytes)
        operation = Operation(
            out,
            inp,
            out_splits,
            in_splits,
            cut=pieces,
            row_bytes=size,
            gather=gather,
            device=self._device,
            limit_s=self._handshake.timeout_s,
        )
        with self._lock:
            self._check()
            self._submitted.put(operation)
        return operation

    def _check(self) -> None:
        if self._reason is not None:
            raise self._over()

    def _over(self) -> PeerError:
        return PeerError(f"{self.name} is over on rank {self.rank}: {self._reason}")

    def _serve(self) -> None:
        """Runs in the thread. When it ends, for whatever reason, no handle waits for it any more."""
        try:
            self._stages.run(self._submitted)
        except BaseException as error:
            self.abort(f"lost the others: {error}" if isinstance(error, PeerError) else f"failed: {describe(error)}")
        # No operation is submitted after this: the reason was set under the lock.
        self._stages.end(self._over())
        while not self._submitted.empty():
            if (operation := self._submitted.get()) is not None:
                operation.end(None, self._over())
