"""The interface of all transports: an uneven all-to-all of rows, and the handle of one that was issued."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from fscomm.device import as_bytes


class Handle(Protocol):
    """An operation that was issued."""

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once. Never blocks."""

    def follow(self) -> None:
        """Order what the calling thread issues to a device from now on behind this operation. On a device this does not
        block; without one it is the same as `wait`."""

    def wait(self) -> None:
        """Block the calling thread until `out` is complete, also for what it issues to a device afterwards.

        Only this waits for a device, so it belongs into a worker, never into the training thread. Wait for the handles
        of a transport in the order of their operations. Raises PeerError, which names the rank that is dead, has left
        or is later than the transport's time limit.
        """


class Transport(Protocol):
    """Exchanges rows between ranks. Each class of rows has an instance of its own.

    All ranks make their transports, and call each one's methods, in the same order. One thread at a time uses an
    instance, and instances do not order each other. Tensors are contiguous and on the device of the tables (`gloo`: on
    the host). `inp` may not be written, nor `out` touched, before the handle was waited for. After a PeerError the
    transport is broken and every call raises one.
    """

    name: str
    rank: int
    world_size: int

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
    ) -> Handle:
        """Send `in_splits[r]` entries of the first dimension of `inp` to rank r and fill `out` with those received.

        out: [sum(out_splits), ...] in the order of the ranks; inp: [sum(in_splits), ...]; both of one dtype and one
        trailing shape, the same on every rank. Splits are host integers; those of one rank must agree with those of the
        others, which is not checked.
        largest_bytes: no rank sends more to any rank; the same number on every rank.

        Does not synchronize with the other ranks: only the handle reports a lost one. Where buffers have to grow it
        blocks for the others, at most for the time limit; it never blocks for a device.

        Raises:
            ValueError: the splits are not those of these tensors, or more is sent than `largest_bytes`; nothing was
                issued.
            PeerError: a rank is dead, has left, or is later than the time limit; the message names it.
        """

    def barrier(self) -> None:
        """Block until all ranks have called it."""

    def abort(self, reason: str) -> None:
        """From any thread: end all operations and waits here. The next operation of other ranks raises `reason`."""

    def close(self, reason: str) -> None:
        """Release all threads, connections and memory; no operation may be under way."""


class Chunk(NamedTuple):
    """One call of `all_to_all_v`."""

    out: torch.Tensor
    inp: torch.Tensor
    out_splits: list[int]
    in_splits: list[int]
    largest_bytes: int

    def over(self, transport: Transport) -> Handle:
        return transport.all_to_all_v(
            self.out, self.inp, self.out_splits, self.in_splits, largest_bytes=self.largest_bytes
        )

    @property
    def row_bytes(self) -> int:
        """Of one entry of the first dimension."""
        return self.out.element_size() * self.out.shape[1:].numel()

    def check(self, world_size: int) -> None:
        """Raise ValueError for what this rank can see without the others."""
        out, inp = self.out, self.inp
        for name, tensor, splits in (("out", out, self.out_splits), ("inp", inp, self.in_splits)):
            if len(splits) != world_size or any(n < 0 for n in splits):
                raise ValueError(f"{name}_splits must be {world_size} sizes, one per rank, got {splits}")
            if sum(splits) != len(tensor):
                raise ValueError(f"{name}_splits {splits} add up to {sum(splits)}, but {name} has {len(tensor)} rows")
            if not tensor.is_contiguous():
                strides = tensor.stride()
                raise ValueError(f"{name} must be contiguous, got strides {strides} for shape {list(tensor.shape)}")
        if out.dtype != inp.dtype or out.shape[1:] != inp.shape[1:] or out.device != inp.device:
            raise ValueError(
                "out and inp must have one dtype, trailing shape and device, got "
                f"{out.dtype} {list(out.shape)} on {out.device} and {inp.dtype} {list(inp.shape)} on {inp.device}"
            )
        largest = self.row_bytes * max(*self.out_splits, *self.in_splits)
        if largest > self.largest_bytes:
            raise ValueError(
                f"a rank sends {largest} bytes to another, more than largest_bytes={self.largest_bytes}, which no "
                "rank may exceed"
            )

    def in_bytes(self) -> "Chunk":
        """The same call of uint8, one-dimensional, in the same memory: libraries do not know every dtype."""
        received, sent = ([n * self.row_bytes for n in splits] for splits in (self.out_splits, self.in_splits))
        return Chunk(as_bytes(self.out), as_bytes(self.inp), received, sent, self.largest_bytes)


class Done:
    """The handle of an operation that was complete when the call that issued it returned."""

    def done(self) -> bool:
        return True

    def follow(self) -> None:
        pass

    def wait(self) -> None:
        pass
