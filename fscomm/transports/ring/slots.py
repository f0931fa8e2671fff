"""The parts of a ring: queues that copy, write a word and wait for a word, and slots in every rank's memory that its
peers fill.

Words are in host memory. So a rank reads them, and ends waits of others, by plain loads and stores, without a call of
the device or a lock of its driver, also while every queue of the device is blocked.
"""

import threading
from typing import Any, Protocol

import torch

_LINE = 16  # words, 64 bytes; counts that different ranks write lie on different lines
_ALIGNED = 256  # bytes; what copy engines like
_FAR = 1 << 30  # more than the chunks that may ever be under way

Counts = dict[int, tuple[int, int]]
"""By peer: how many slots it has filled here, and how many it has emptied there."""


class Queue(Protocol):
    """One stream. Methods issue an operation and return; operations run in the order of issue."""

    def begin(self) -> None:
        """Order what is issued from now on behind all that the calling thread has issued elsewhere so far."""

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Bytes (uint8, one-dimensional, of equal length), without a kernel where the device allows."""

    def write(self, word: torch.Tensor, value: int) -> None:
        """int32[1], a word of any rank: written, and visible to all ranks, after everything issued before."""

    def wait(self, word: torch.Tensor, value: int) -> None:
        """Continue once int32[1], a word of this rank, is at least `value`, in the circle of 2^32."""

    def mark(self) -> Any:
        """All that was issued to this queue so far."""


class Driver(Protocol):
    """Makes queues and memory, all of which belong to one ring."""

    rank: int
    world_size: int

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        """Collective: uint8[nbytes] of every rank, mapped in this one; replaces the memory of the last call."""

    def words(self, number: int) -> list[torch.Tensor]:
        """Collective: int32[number] of every rank, zero, in host memory that all ranks share, until `close`.

        The queues of all ranks see stores to a word, and loads see what queues write.
        """

    def queue(self, name: str) -> Queue: ...

    def is_done(self, mark: Any) -> bool: ...

    def follow(self, mark: Any) -> bool:
        """Order what the caller issues next behind `mark`; False if that takes a `wait`. Does not block."""

    def wait(self, mark: Any, timeout_s: float) -> bool:
        """Block until `mark` is done, at most `timeout_s`; whether it is. What the caller issues next is behind it."""

    def close(self) -> None:
        """End queues, even those that wait, and free memory; never blocks for peers. A thread that still has a word may
        write it."""


class Slots:
    """Every rank has, for every peer, `number` slots of `slot_bytes` which only that peer fills.

    The words of a rank, each on a cache line of its own: for every peer, the number of slots that the peer has filled
    here and the number that it has emptied there; then the poison word. Counts begin with 0 when the slots are made, in
    a circle of 2^32. The memory of a rank: its slots, peer by peer. Making them is collective.
    """

    def __init__(self, driver: Driver, *, number: int, slot_bytes: int) -> None:
        if number < 1 or slot_bytes < 1:
            raise ValueError(f"a ring needs slots of at least one byte, got {number} of {slot_bytes} bytes")
        self.number = number
        self._rank = driver.rank
        self._world_size = driver.world_size
        self._driver = driver
        self._poisoned = False
        self._poisoning = threading.Lock()
        self._words = driver.words((2 * self._world_size + 1) * _LINE)
        self.resize(slot_bytes)

    def resize(self, slot_bytes: int) -> None:
        """Collective, and only while nothing is under way anywhere: slots of another size. May block for peers."""
        self._memory = self._driver.memory((self._world_size - 1) * self.number * _aligned(slot_bytes))
        self.slot_bytes = slot_bytes

    def slot(self, at: int, by: int, chunk: int) -> torch.Tensor:
        """At one rank, the slot for chunk number `chunk` of another: uint8[slot_bytes]."""
        place = (by if by < at else by - 1) * self.number + chunk % self.number
        start = place * _aligned(self.slot_bytes)
        return self._memory[at][start : start + self.slot_bytes]

    def filled(self, at: int, by: int) -> torch.Tensor:
        """The word at one rank that counts the slots which another filled there."""
        return _line(self._words[at], by)

    def emptied(self, at: int, by: int) -> torch.Tensor:
        """The word at one rank that counts the slots of its own which another emptied."""
        return _line(self._words[at], self._world_size + by)

    def behind(self, counts: Counts) -> list[int]:
        """The peers that have filled or emptied fewer slots than `counts`."""

        def less(word: torch.Tensor, count: int) -> bool:
            return in_circle(_load(word) - count) < 0

        here = self._rank
        return [
            peer
            for peer, (filled, emptied) in counts.items()
            if less(self.filled(here, peer), filled) or less(self.emptied(here, peer), emptied)
        ]

    def poison(self, most: int) -> None:
        """End every wait of every rank's queues, now and later. From any thread, any number of times; does not block.

        What is copied after that is never read. most: the largest count that this rank has written.

        It writes counts far ahead of all counts that a rank may wait for into every word of every rank. Poison words
        are written first, so a rank whose wait ends finds the reason. A queue may still overwrite a count: every rank
        that finds the poison poisons again, until its own queues are empty.
        """
        self._poisoned = True
        words, far = self._words, in_circle(most + _FAR)
        # Twice under the lock: its release between the two loops keeps processors from reordering their stores.
        with self._poisoning:
            for of_rank in words:
                store(_line(of_rank, 2 * self._world_size), 1)
        with self._poisoning:
            for of_rank in words:
                for line in range(2 * self._world_size):
                    store(_line(of_rank, line), far)

    def poisoned(self) -> bool:
        """Whether this rank or a peer has called `poison`."""
        return self._poisoned or _load(_line(self._words[self._rank], 2 * self._world_size)) != 0

    def drop(self) -> None:
        self._poisoned = True  # nothing reads words after they are freed
        self._memory, self._words = [], []


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
    """The int32 that equals `count` modulo 2^32."""
    return (count + (1 << 31)) % (1 << 32) - (1 << 31)
