"""Rows through host memory: to the host by a copy engine, over a host transport, and back (paper, section 3).

No kernel takes part, so compute that runs beside it keeps all multiprocessors. Callers hand operations to a thread of
the transport's own, which alone waits for copies and for the wire.

While one piece comes down from the device, the one before it is on the wire and the one before that goes up: three
engines are busy at once, and a stream of pieces takes as long as the slowest of the three needs. One piece is on the
wire at a time; the next one waits on the host when it ends.

Host collectives are gloo, shared memory, and those of other packages (RDMA, MPI, UCC), which add an entry point:

    [project.entry-points."freescale.host_collectives"]
    ucc = "my_package:open_ucc"        # open_ucc(context: RankContext, *, timeout_s) -> Transport, for host tensors
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import torch

from fscomm.device import Device, Mark, poll
from fscomm.transports.cutting import Span, even_slot, grown, joined, piece_of
from fscomm.transports.transport import Chunk, Done, Handle, Transport
from fscomm.transports.watch import Watched
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError, describe

_GRACE_S = 3.0  # for the thread to end after `close`
_BUFFERS = 3  # for each direction: the piece on the wire, the one before it and the one after it
GROUP = "freescale.host_collectives"
_BUILT_IN = (
    EntryPoint("gloo", "fscomm.transports.gloo:GlooTransport", GROUP),
    EntryPoint("shared-memory", "fscomm.transports.ring.ring:shared_memory_collective", GROUP),
)


class HostStaged(Watched):
    """A transport for tensors on `device`, over `host` for what is in host memory.

    `host` belongs to the transport, which closes it. Sizes that disagree with those of another rank fail as they do
    over `host`. It has at most six buffers of `chunk_bytes`, or of one row per rank where that is more; they grow to
    powers of two, the same on all ranks. Rows that a rank sends to itself also go through the host, since a copy within
    a device may be done by a kernel.
    """

    name = "host-staged"

    def __init__(self, host: Transport, group: ControlGroup, device: Device, *, chunk_bytes: int = 4 << 20) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
        super().__init__(group)
        self._host = host
        self._closed = False
        self._device = device
        self._limit_s = group.timeout_s
        self._chunk_bytes = chunk_bytes
        self._down, self._up = device.stream(), device.stream()
        self._departing, self._arriving = ([torch.empty(0, dtype=torch.uint8)] * _BUFFERS for _ in range(2))
        self._gone_up: list[Mark] = [None] * _BUFFERS  # after what an arriving buffer is free
        self._submitted: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._under_way: list[Transfer] = []
        self._thread = threading.Thread(target=self._serve, name=f"fscomm {self.name}", daemon=True)
        self._thread.start()

    def _begin(self, chunk: Chunk, row_bytes: int) -> Handle:
        self._check()
        if not chunk.largest_bytes:
            return Done()
        slot_bytes = even_slot(chunk.largest_bytes, row_bytes, most_bytes=self._chunk_bytes // self.world_size)
        transfer = Transfer(chunk, slot_bytes=slot_bytes, device=self._device, limit_s=self._limit_s)
        self._submitted.put(transfer)
        self._check()  # the thread may have ended before it could see the transfer
        return transfer

    def _end(self, reason: str) -> None:
        if not self._closed:  # `close` ends the host collective, which need not bear a call after that
            self._host.abort(reason)

    def close(self, reason: str) -> None:
        self._refuse(reason)
        # The thread ends without an abort where nothing blocks it: the other ranks then find no reason to fail.
        self._submitted.put(None)
        self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            self.abort(reason)
            self._thread.join(_GRACE_S)
        super().close(reason)
        self._closed = True
        self._host.close(reason)

    def _serve(self) -> None:
        """Runs in the thread. However it ends, no handle waits for it afterwards."""
        try:
            self._device.enter()
            self._run()
        except BaseException as error:
            if not self._is_over:
                why = f"lost the others: {error}" if isinstance(error, PeerError) else f"failed: {describe(error)}"
                self.abort(why)
        # A transfer that comes after this is refused where it was submitted.
        while not self._submitted.empty():
            self._under_way += filter(None, [self._submitted.get()])
        for transfer in self._under_way:
            transfer.end(None, self._error())
        self._under_way, self._departing, self._arriving = [], [], []

    def _run(self) -> None:
        """Until None is submitted. Raises what the host transport does."""
        before: Piece | None = None
        on_the_wire: tuple[Piece, Handle] | None = None
        for piece in self._pieces():
            # First, so that this copy runs while the thread waits for the wire below.
            if piece is not None:
                self._go_down(piece)
            if on_the_wire is not None:
                leaving, exchange = on_the_wire
                exchange.wait()
                self._go_up(leaving)
            on_the_wire = None if before is None else (before, self._begin_exchange(before))
            before = piece

    def _pieces(self) -> Iterator["Piece | None"]:
        """In the order of submission; None if there is no next one while others are under way. Ends at `close`."""
        number = 0
        while True:
            # Nothing pushes the last pieces on but the next step of `_run`: it must not block for a new transfer.
            if self._submitted.empty() and self._under_way:
                yield None
                continue
            transfer = self._submitted.get()
            if transfer is None:
                return
            self._under_way.append(transfer)
            chunk, slot_bytes = transfer.chunk, transfer.slot_bytes
            for k in range(transfer.pieces):
                sent, received = (piece_of(splits, slot_bytes, k) for splits in (chunk.in_splits, chunk.out_splits))
                yield Piece(transfer=transfer, k=k, buffer=number % _BUFFERS, sent=sent, received=received)
                number += 1

    def _go_down(self, piece: "Piece") -> None:
        """The buffer is free: the exchange of the piece that used it is complete."""
        inp = piece.transfer.chunk.inp
        staging = self._buffer(self._departing, piece)
        with self._down:
            if piece.k == 0:  # the stream keeps its order for the other pieces
                self._device.after(piece.transfer.before)
                self._device.reads(inp)
            for staged, rows in _pairs(staging, inp, piece.sent):
                staged.copy_(rows, non_blocking=True)
            piece.down = self._device.mark()

    def _begin_exchange(self, piece: "Piece") -> Handle:
        # The host collective reads and writes at once, and knows no streams: both buffers must be free by now.
        self._await(piece.down)
        self._await(self._gone_up[piece.buffer])
        received, sent = ([stop - start for start, stop in spans] for spans in (piece.received, piece.sent))
        out = self._buffer(self._arriving, piece)[: sum(received)]
        inp = self._buffer(self._departing, piece)[: sum(sent)]
        return self._host.all_to_all_v(out, inp, received, sent, largest_bytes=piece.transfer.slot_bytes)

    def _go_up(self, piece: "Piece") -> None:
        transfer, out = piece.transfer, piece.transfer.chunk.out
        staging = self._buffer(self._arriving, piece)
        with self._up:
            # No wait for the caller's work on `out`: the copies down waited for it, and the host for these copies.
            if piece.k == 0:
                self._device.reads(out)
            for staged, rows in _pairs(staging, out, piece.received):
                rows.copy_(staged, non_blocking=True)
            mark = self._gone_up[piece.buffer] = self._device.mark()
        if piece.k == transfer.pieces - 1:
            self._under_way.remove(transfer)
            transfer.end(mark)

    def _buffer(self, buffers: list[torch.Tensor], piece: "Piece") -> torch.Tensor:
        """uint8. Memory that is dropped goes back to torch's own pool of page-locked memory."""
        nbytes = grown(len(buffers[piece.buffer]), piece.transfer.slot_bytes * self.world_size)
        if nbytes > len(buffers[piece.buffer]):
            buffers[piece.buffer] = self._device.staging(torch.empty(nbytes, dtype=torch.uint8))
        return buffers[piece.buffer]

    def _await(self, mark: Mark) -> None:
        if not poll(lambda: self._is_over or self._device.is_done(mark), self._limit_s):
            raise PeerError(
                f"the device did not come to copy the rows within {self._limit_s:g} s: what was issued to it "
                "before takes longer, or hangs. If it is only busy, raise timeout_s"
            )
        self._check()


class Transfer:
    """This rank's part of one all-to-all, and its handle.

    chunk: bytes on the device, which travel in pieces of `slot_bytes` for each pair of ranks.
    """

    def __init__(self, chunk: Chunk, *, slot_bytes: int, device: Device, limit_s: float) -> None:
        self.chunk = chunk
        self.slot_bytes = slot_bytes
        self.pieces = -(-chunk.largest_bytes // slot_bytes)
        self.before = device.mark()
        self._device = device
        self._limit_s = limit_s
        self._over = threading.Event()
        self._mark: Mark = None
        self._error: PeerError | None = None

    def end(self, mark: Mark, error: PeerError | None = None) -> None:
        """All copies into `out` were issued, or, with an error, no more will be issued."""
        self._mark, self._error = mark, error
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set() and (self._error is not None or self._device.is_done(self._mark))

    def follow(self) -> None:
        """Blocks until the rows are in host memory: from there on the device orders what is left."""
        # Without a limit: the thread of the transport has one for each of its waits, and ends every transfer.
        self._over.wait()
        if self._error is not None:
            raise PeerError(str(self._error)) from self._error
        self._device.after(self._mark)

    def wait(self) -> None:
        self.follow()
        try:
            self._device.wait(self._mark, self._limit_s)
        except TimeoutError as error:
            raise PeerError(str(error)) from error


@dataclass(slots=True, kw_only=True)
class Piece:
    """Piece `k` of all that is sent from rank to rank. buffer: the number of its buffers, one of each direction."""

    transfer: Transfer
    k: int
    buffer: int
    sent: list[Span]
    received: list[Span]
    down: Mark = None  # after what its rows are in host memory


def _pairs(staging: torch.Tensor, rows: torch.Tensor, spans: Sequence[Span]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The bytes of `spans` in the buffer, one after the other, and in the tensor."""
    found, at = [], 0
    for start, stop in joined(spans):
        found.append((staging[at : at + stop - start], rows[start:stop]))
        at += stop - start
    return found


def host_collectives() -> list[str]:
    """The names there are, built in and installed."""
    return sorted({point.name for point in _points()})


def host_collective(name: str) -> Callable[..., Transport]:
    """What opens the host collective `name`, one of `host_collectives`: (context, *, timeout_s), collective.

    Raises:
        ValueError: several distributions give the name.
        ImportError: the distribution that gives it is broken; the message names it.
    """
    point, *others = (each for each in _points() if each.name == name)
    if others:
        given = ", ".join(f"{each.value} ({_origin(each)})" for each in (point, *others))
        raise ValueError(f"the host collective {name!r} is given more than once, by {given}: uninstall all but one")
    try:
        factory = point.load()
    except Exception as error:  # a module may raise anything while it is imported
        raise ImportError(
            f"the host collective {point.name!r} ({point.value}) of {_origin(point)} cannot be loaded: "
            f"{type(error).__name__}: {error}. Repair or uninstall that, or choose another host collective"
        ) from error
    if not callable(factory):
        raise ImportError(
            f"the host collective {point.name!r} ({point.value}) of {_origin(point)} must be a function "
            f"(context, *, timeout_s) that opens a transport, got {factory!r}"
        )
    return cast(Callable[..., Transport], factory)


def _points() -> list[EntryPoint]:
    # Read at each call, from the metadata of the installed packages: no code of theirs runs before it is chosen.
    return [*_BUILT_IN, *entry_points(group=GROUP)]


def _origin(point: EntryPoint) -> str:
    """In words, the distribution of the entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "fscomm"
