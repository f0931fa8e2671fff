"""Slots in every rank's memory that its peers fill, made of streams that copy, write a word, and wait for a word.

Words lie in host memory. So a rank reads them, and ends waits of others, by plain loads and stores. No call of a device
and no lock of its driver comes between, also while every queue of the device is blocked.
"""

import threading
import time
from typing import Any, Protocol

import torch

_LINE = 16  # words, 64 bytes; counts that different ranks write lie on different lines
_ALIGNED = 256  # bytes; what copy engines like
_FAR = 1 << 30  # more than the chunks that may ever be under way


class Queue(Protocol):
    """One stream. Methods issue and come back; what they issue runs in order."""

    def begin(self) -> None:
        """What is issued from now on runs behind all that the calling thread has issued so far elsewhere."""

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Bytes (uint8, one-dimensional, of equal length), without a kernel where the device allows."""

    def write(self, word: torch.Tensor, value: int) -> None:
        """int32[1], a word of any rank, after and visible after everything issued before."""

    def wait(self, word: torch.Tensor, value: int) -> None:
        """Go on once int32[1], a word of this rank, is at least `value`, counted in a circle of 2^32."""

    def mark(self) -> Any:
        """All that was issued to this queue so far."""


class Driver(Protocol):
    """What makes queues and memory; everything of it belongs to one fabric."""

    rank: int
    world_size: int

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        """Collective: uint8[nbytes] of every rank as this one sees it; replaces what was there before."""

    def words(self, number: int) -> list[torch.Tensor]:
        """Collective: int32[number] of every rank, zero, on the host and one for all ranks; they stay to the end.

        A store to a word is seen by the queues of all ranks, and what queues write is seen by loads.
        """

    def queue(self, name: str) -> Queue: ...

    def is_done(self, mark: Any) -> bool: ...

    def wait(self, mark: Any, timeout_s: float) -> bool:
        """Block until `mark` is done, at most `timeout_s`; whether it is. What the caller issues next is behind it."""

    def close(self) -> None:
        """End queues, even those that wait, and free memory; never blocks for peers. Words that a thread still holds
        may be written."""


class Fabric:
    """Every rank has, for every peer, `slots` slots of `slot_bytes` which that peer alone fills.

    Methods that issue come back at once. What they issue runs in order within its queue: `put` and `await_room` in the
    queue that sends, `await_arrival`, `take` and `copy` in the queue that receives. A queue that waits holds up only
    itself. Bytes are one-dimensional contiguous uint8 tensors. A fabric only does what it is told; which slot is free
    when is the business of its ring.

    `driver` belongs to the fabric. Making one is collective.

    A rank's words: on a line each, for every peer the slots it filled here and the slots it emptied there, and the
    poison word. They count from 0 when the fabric is made, in a circle of 2^32. A rank's memory: the slots, peer by
    peer.
    """

    def __init__(self, driver: Driver, *, slots: int = 4, slot_bytes: int = 1 << 16) -> None:
        if slots < 1 or slot_bytes < 1:
            raise ValueError(f"a ring needs slots of at least one byte, got {slots} of {slot_bytes} bytes")
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.rank = driver.rank
        self.world_size = driver.world_size
        self._driver = driver
        self._put = [0] * self.world_size  # slots filled at each peer and emptied here, since the fabric was made
        self._taken = [0] * self.world_size
        self._poisoned = False
        self._poisoning = threading.Lock()
        try:
            self._words = driver.words((2 * self.world_size + 1) * _LINE)
            self._memory = self._make(slot_bytes)
        except BaseException:
            driver.close()
            raise
        self._sends, self._receives = driver.queue("send"), driver.queue("receive")

    def resize(self, slot_bytes: int) -> None:
        """Collective, and only while both queues are empty everywhere: slots of another size. May block for peers."""
        self._memory = self._make(slot_bytes)
        self.slot_bytes = slot_bytes

    def begin(self) -> None:
        """What is issued from now on runs behind all that the calling thread has issued so far."""
        self._sends.begin()
        self._receives.begin()

    def put(self, peer: int, slot: int, data: torch.Tensor) -> None:
        """Fill the slot at `peer`, and then count one more arrival there."""
        self._sends.copy(self._slot(peer, self.rank, slot)[: len(data)], data)
        self._put[peer] += 1
        self._sends.write(self._filled(peer, self.rank), in_circle(self._put[peer]))

    def await_room(self, peer: int, count: int) -> None:
        """The sending queue goes on once `peer` has emptied `count` slots that this rank filled."""
        self._sends.wait(self._emptied(self.rank, peer), in_circle(count))

    def await_arrival(self, peer: int, count: int) -> None:
        """The receiving queue goes on once `peer` has filled `count` slots here."""
        self._receives.wait(self._filled(self.rank, peer), in_circle(count))

    def take(self, peer: int, slot: int, out: torch.Tensor) -> None:
        """Empty the slot that `peer` filled here, and then count one more empty slot at `peer`."""
        self._receives.copy(out, self._slot(self.rank, peer, slot)[: len(out)])
        self._taken[peer] += 1
        self._receives.write(self._emptied(peer, self.rank), in_circle(self._taken[peer]))

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """A rank's own part."""
        self._receives.copy(out, inp)

    def mark(self) -> tuple[Any, Any]:
        """All that was issued so far, in both queues."""
        return self._sends.mark(), self._receives.mark()

    def is_done(self, mark: tuple[Any, Any]) -> bool:
        return all(self._driver.is_done(one) for one in mark)

    def wait(self, mark: tuple[Any, Any], timeout_s: float) -> bool:
        """Block until `mark` is done, at most `timeout_s`; whether it is. What the caller issues next is behind it."""
        end = time.monotonic() + timeout_s
        return all(self._driver.wait(one, max(end - time.monotonic(), 0.0)) for one in mark)

    def behind(self, counts: dict[int, tuple[int, int]]) -> list[int]:
        """The peers that did less than `counts` by peer says: slots filled here, slots emptied there."""

        def less(word: torch.Tensor, count: int) -> bool:
            return in_circle(_load(word) - count) < 0

        return [
            peer
            for peer, (filled, emptied) in counts.items()
            if less(self._filled(self.rank, peer), filled) or less(self._emptied(self.rank, peer), emptied)
        ]

    def poison(self) -> None:
        """End every wait of every rank's queues, now and later, from any thread and any number of times.

        The data of copies after that is never read. Does not block.

        It writes counts far ahead of all that a rank may wait for into every word of every rank. The poison words go
        first: a rank whose wait ends then finds the reason. The lock between keeps processors from exchanging the two.
        A queue may still overwrite a count. So every rank that noticed poisons again, until its own queues are empty.
        """
        self._poisoned = True
        words, far = self._words, in_circle(max(self._put + self._taken) + _FAR)
        with self._poisoning:
            for of_rank in words:
                store(_line(of_rank, 2 * self.world_size), 1)
        with self._poisoning:
            for of_rank in words:
                for line in range(2 * self.world_size):
                    store(_line(of_rank, line), far)

    def poisoned(self) -> bool:
        """Whether this rank or a peer did that."""
        return self._poisoned or _load(_line(self._words[self.rank], 2 * self.world_size)) != 0

    def close(self) -> None:
        """Free memory and threads; never blocks for peers."""
        self._poisoned = True  # nothing reads words after they are freed
        self._memory, self._words = [], []
        self._driver.close()

    def _make(self, slot_bytes: int) -> list[torch.Tensor]:
        return self._driver.memory((self.world_size - 1) * self.slots * _aligned(slot_bytes))

    def _filled(self, at: int, by: int) -> torch.Tensor:
        """The word at one rank that counts the slots which another filled there."""
        return _line(self._words[at], by)

    def _emptied(self, at: int, by: int) -> torch.Tensor:
        """The word at one rank that counts the slots of its own which another emptied."""
        return _line(self._words[at], self.world_size + by)

    def _slot(self, at: int, by: int, slot: int) -> torch.Tensor:
        """At one rank, a slot that another fills."""
        place = (by if by < at else by - 1) * self.slots + slot
        start = place * _aligned(self.slot_bytes)
        return self._memory[at][start : start + self.slot_bytes]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _line(words: torch.Tensor, line: int) -> torch.Tensor:
    return words[line * _LINE : line * _LINE + 1]


def _load(word: torch.Tensor) -> int:
    return int(word.numpy()[0])


def store(word: torch.Tensor, value: int) -> None:
    """One aligned store, from any thread."""
    word.numpy()[0] = value


def in_circle(count: int) -> int:
    """An int32 of the same place in the circle of 2^32."""
    return (count + (1 << 31)) % (1 << 32) - (1 << 31)
