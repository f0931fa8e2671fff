"""Rows through host memory: to the host by a copy engine, over a host transport, and back (paper, section 3).

No kernel takes part, so compute that runs beside it keeps all multiprocessors. Callers hand operations to a thread of
the transport's own, which alone waits for copies and for the wire, and begins what `cutting.Pipeline` says.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from fscomm.device import Device, Mark
from fscomm.transports.cutting import Cut, Pipeline, Stage, StageStart, cut, spans_of
from fscomm.transports.handshake import Handshake
from fscomm.transports.transport import Handle, Transport, as_bytes, check_gather, check_splits, row_bytes
from fsranks.errors import PeerError, describe

_GRACE_S = 3.0  # in which the thread ends once it is told to
_NAP_S = 50e-6  # between looks at copies that are under way: the driver's own wait would spin, and nothing could end it


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


class Operation:
    """One collective as this rank takes part in it, and its handle.

    With `gather` all ranks are sent the same rows: `in_splits` is their number alone.
    """

    def __init__(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        cut: Cut,
        row_bytes: int,
        gather: bool,
        device: Device,
        limit_s: float,
    ) -> None:
        self.out, self.inp = as_bytes(out), as_bytes(inp)
        self.out_splits, self.in_splits = list(out_splits), list(in_splits)
        self.row_bytes = row_bytes
        self.pieces = cut.pieces
        self.buffer_bytes = cut.rows * row_bytes * len(self.out_splits)
        self.gather = gather
        self.before = device.mark()
        self._device = device
        self._limit_s = limit_s
        self._over = threading.Event()
        self._mark: Mark = None
        self._error: PeerError | None = None

    def end(self, mark: Mark, error: PeerError | None = None) -> None:
        """All copies into `out` were issued, or no more will be issued."""
        self._mark, self._error = mark, error
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set() and (self._error is not None or self._device.is_done(self._mark))

    def wait(self) -> None:
        self._over.wait()
        if self._error is not None:
            raise PeerError(str(self._error)) from self._error
        try:
            self._device.wait(self._mark, self._limit_s)
        except TimeoutError as error:
            raise PeerError(str(error)) from error


class Stages:
    """Moves the pieces of operations; the thread that does so calls `run`.

    It waits for the device for at most `limit_s`; another thread ends such a wait by setting `stopped`.
    """

    def __init__(
        self, host: Transport, device: Device, *, depth: int, stopped: threading.Event, limit_s: float
    ) -> None:
        self._host = host
        self._device = device
        self._pipeline = Pipeline(depth)
        self._stopped = stopped
        self._limit_s = limit_s
        self._down, self._up = device.stream(), device.stream()
        self._buffers = Buffers(device, 2 * depth)
        self._pieces: dict[int, tuple[Operation, int]] = {}
        self._begun: dict[tuple[Stage, int], Mark | Handle] = {}

    def run(self, submitted: "queue.SimpleQueue[Operation | None]") -> None:
        """Serve until None is submitted; raises what the host transport does."""
        self._device.enter()
        while True:
            while not submitted.empty() or (step := self._pipeline.next()) is None:
                operation = submitted.get()
                if operation is None:
                    return
                self._feed(operation)
            self._begin(step)

    def end(self, error: PeerError) -> None:
        """Give up operations that are not complete, and all memory."""
        for operation, _ in self._pieces.values():
            operation.end(None, error)
        self._pieces.clear()
        self._begun.clear()
        self._buffers.close()

    def _feed(self, operation: Operation) -> None:
        for index, piece in enumerate(self._pipeline.feed(operation.pieces)):
            self._pieces[piece] = operation, index
        if not operation.pieces:
            operation.end(None)

    def _begin(self, step: StageStart) -> None:
        if step.after is not None:
            self._await(step.after)
        if self._stopped.is_set():
            raise PeerError("it was aborted")
        begin = {"down": self._go_down, "exchange": self._exchange, "up": self._go_up}[step.stage]
        self._begun[step.stage, step.piece] = begin(step.piece, *self._pieces[step.piece])
        if step.stage == "up":
            del self._pieces[step.piece]

    def _go_down(self, piece: int, operation: Operation, index: int) -> Mark:
        spans = spans_of(operation.in_splits, index, operation.pieces).spans
        with self._down:
            if index == 0:
                self._device.after(operation.before)
                self._device.reads(operation.inp)
            for staged, rows in _pairs(self._buffer(piece, operation), operation.inp, spans, operation.row_bytes):
                staged.copy_(rows, non_blocking=True)
            return self._device.mark()

    def _exchange(self, piece: int, operation: Operation, index: int) -> Handle:
        size = operation.row_bytes
        received = [n * size for n in spans_of(operation.out_splits, index, operation.pieces).sizes]
        sent = [n * size for n in spans_of(operation.in_splits, index, operation.pieces).sizes]
        out = self._buffer(piece, operation, arriving=True)[: sum(received)]
        inp = self._buffer(piece, operation)[: sum(sent)]
        return (
            self._host.all_gather(out, inp) if operation.gather else self._host.all_to_all_v(out, inp, received, sent)
        )

    def _go_up(self, piece: int, operation: Operation, index: int) -> Mark:
        spans = spans_of(operation.out_splits, index, operation.pieces).spans
        staging = self._buffer(piece, operation, arriving=True)
        with self._up:
            if index == 0:  # its copies down, already done, came after the caller's work: so does this
                self._device.reads(operation.out)
            for staged, rows in _pairs(staging, operation.out, spans, operation.row_bytes):
                rows.copy_(staged, non_blocking=True)
            mark = self._device.mark()
        if index == operation.pieces - 1:
            operation.end(mark)
        return mark

    def _buffer(self, piece: int, operation: Operation, *, arriving: bool = False) -> torch.Tensor:
        depth = self._pipeline.depth
        return self._buffers.get(piece % depth + depth * arriving, operation.buffer_bytes)

    def _await(self, begun: tuple[Stage, int]) -> None:
        awaited = self._begun.pop(begun)
        if begun[0] == "exchange":
            awaited.wait()
            return
        end = time.monotonic() + self._limit_s
        while not self._device.is_done(awaited):
            if self._stopped.wait(_NAP_S):
                return
            if time.monotonic() > end:
                raise PeerError(
                    f"the device did not come to copy the rows within {self._limit_s:g} s: what was issued to it "
                    "before takes longer, or hangs. If it is only busy, raise timeout_s"
                )


def _pairs(
    staging: torch.Tensor, rows: torch.Tensor, spans: list[tuple[int, int]], row_bytes: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of each span, its place in the buffer and its place in the tensor."""
    start = 0
    for first, end in spans:
        size = (end - first) * row_bytes
        yield staging[start : start + size], rows[first * row_bytes : end * row_bytes]
        start += size


class Buffers:
    """`count` buffers of bytes. Each grows to the next power of two of the largest size that was asked for.

    Ranks that ask for the same sizes grow alike. One thread at a time; the caller makes sure that no operation uses
    the buffer. Memory that is dropped goes back to torch's own pool of page-locked memory.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * count

    def get(self, number: int, nbytes: int) -> torch.Tensor:
        """uint8[nbytes], uninitialised."""
        if len(self._buffers[number]) < nbytes:
            like = torch.empty(1 << (nbytes - 1).bit_length(), dtype=torch.uint8)
            self._buffers[number] = self._device.staging(like)
        return self._buffers[number][:nbytes]

    def held_bytes(self) -> int:
        return sum(map(len, self._buffers))

    def close(self) -> None:
        self._buffers.clear()
