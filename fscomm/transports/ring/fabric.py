"""Slots in every rank's memory that its peers fill, and the two queues of a rank that fill and empty them.

What `ring.Ring` is written against. A fabric only does what it is told, in order; which slot is free when is the
ring's business.
"""

from typing import Any, Protocol

import torch


class Fabric(Protocol):
    """Every rank has, for every peer, `slots` slots of `slot_bytes` which that peer alone fills.

    Methods that issue come back at once. What they issue runs in order within its queue: `put` and `await_room` in the
    queue that sends, `await_arrival`, `take` and `copy` in the queue that receives. A queue that waits holds up only
    itself. Bytes are one-dimensional contiguous uint8 tensors.

    A count is that of all operations since the fabric was made, not since the last `resize`.
    """

    slots: int
    slot_bytes: int

    def resize(self, slot_bytes: int) -> None:
        """Collective, and only while both queues are empty everywhere: slots of another size. May block for peers."""

    def begin(self) -> None:
        """What is issued from now on runs behind all that the calling thread has issued so far."""

    def put(self, peer: int, slot: int, data: torch.Tensor) -> None:
        """Fill the slot at `peer`, and then count one more arrival there."""

    def await_room(self, peer: int, count: int) -> None:
        """The sending queue goes on once `peer` has emptied `count` slots that this rank filled."""

    def await_arrival(self, peer: int, count: int) -> None:
        """The receiving queue goes on once `peer` has filled `count` slots here."""

    def take(self, peer: int, slot: int, out: torch.Tensor) -> None:
        """Empty the slot that `peer` filled here, and then count one more empty slot at `peer`."""

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """A rank's own part."""

    def mark(self) -> Any:
        """All that was issued so far, in both queues."""

    def is_done(self, mark: Any) -> bool: ...

    def wait(self, mark: Any, timeout_s: float) -> bool:
        """Block until `mark` is done, at most `timeout_s`; whether it is. What the caller issues next is behind it."""

    def behind(self, counts: dict[int, tuple[int, int]]) -> list[int]:
        """The peers that did less than `counts` by peer says: slots filled here, slots emptied there."""

    def poison(self) -> None:
        """From any thread, any number of times: every wait of every rank's queues, now and later, is over at once.

        The data of copies after that is never read. Does not block.
        """

    def poisoned(self) -> bool:
        """Whether this rank or a peer did that."""

    def close(self) -> None:
        """Free memory and threads; never blocks for peers."""
