"""A fabric made of memory that all ranks see and of streams that copy, write a word, and wait for a word."""

from typing import Any, Protocol

import torch


class Queue(Protocol):
    """One stream. Methods issue and come back; what they issue runs in order."""

    def begin(self) -> None:
        """What is issued from now on runs behind all that the calling thread has issued so far elsewhere."""

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Bytes (uint8, one-dimensional, of equal length), without a kernel where the device allows."""

    def write(self, word: torch.Tensor, value: int) -> None:
        """int32[1] in any rank's memory, after and visible after everything issued before."""

    def wait(self, word: torch.Tensor, value: int) -> None:
        """Go on once int32[1] in this rank's memory is at least `value`, counted in a circle of 2^32."""

    def mark(self) -> Any:
        """All that was issued to this queue so far."""


class Driver(Protocol):
    """What makes queues and memory; everything of it belongs to one fabric."""

    rank: int
    world_size: int

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        """Collective: uint8[nbytes] of every rank as this one sees it, zero; replaces what was there before."""

    def queue(self, name: str) -> Queue: ...

    def is_done(self, mark: Any) -> bool: ...

    def wait(self, mark: Any, timeout_s: float) -> bool:
        """Block until `mark` is done, at most `timeout_s`; whether it is. What the caller issues next is behind it."""

    def write_now(self, word: torch.Tensor, value: int) -> None:
        """From any thread, ahead of all queues. Does not block, also while queues do."""

    def read_now(self, word: torch.Tensor) -> int: ...

    def close(self) -> None:
        """End queues, even those that wait, and free memory; never blocks for peers."""
