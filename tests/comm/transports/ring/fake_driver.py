"""Ranks in one process and in virtual time: a Driver whose queues are processes of a Clock, and a Handshake to go.

A test issues an operation on one rank after the other (`agreed` says what their handshake would) and waits then, or
gives every rank a thread. Whoever waits lets the clock run until nobody can go on.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from patience import PATIENCE_S
from virtual import Clock, Engine, Process

from fscomm.transports.ring.fabric import in_circle


class Machine:
    """Two copy engines for every rank, one that sends and one that receives; all rings of the rank share them."""

    def __init__(self, world_size: int, *, send: float = 1e9, receive: float = 1e9) -> None:
        self.clock = Clock()
        self.lock = threading.RLock()
        self.issued = threading.Condition(self.lock)
        self.world_size = world_size
        self.engines = [
            {"send": Engine(self.clock, bytes_per_s=send), "receive": Engine(self.clock, bytes_per_s=receive)}
            for _ in range(world_size)
        ]

    def run(self, until: float = float("inf")) -> None:
        with self.lock:
            self.clock.run(until)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true; in real seconds, as other ranks may have threads of their own."""

        def came() -> bool:
            self.run()
            return condition()

        with self.issued:
            return self.issued.wait_for(came, timeout_s)


class Shelf:
    """The memory of one ring on all ranks, a generation for every resize."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._generations: list[list[torch.Tensor]] = []

    def memory(self, generation: int, nbytes: int) -> list[torch.Tensor]:
        with self._machine.lock:
            if generation == len(self._generations):
                size = self._machine.world_size
                self._generations.append([torch.zeros(nbytes, dtype=torch.uint8) for _ in range(size)])
            memory = self._generations[generation]
            assert len(memory[0]) == nbytes, "ranks asked for memory of different size"
            return memory


class FakeDriver:
    """`capacity`: operations a queue accepts before it blocks the host, as a CUDA stream does."""

    def __init__(self, machine: Machine, shelf: Shelf, rank: int, *, capacity: int | None = None) -> None:
        self.machine, self.rank, self.world_size = machine, rank, machine.world_size
        self.capacity = capacity
        self.ended = False
        self.queues: list[FakeQueue] = []
        self._shelf = shelf
        self._generation = 0

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        assert all(not queue.todo for queue in self.queues), "memory was taken away under a queue"
        self._generation += 1
        return self._shelf.memory(self._generation - 1, nbytes)

    def words(self, number: int) -> list[torch.Tensor]:
        return [words.view(torch.int32) for words in self.memory(4 * number)]

    def queue(self, name: str) -> "FakeQueue":
        self.queues.append(FakeQueue(self, self.machine.engines[self.rank][name]))
        return self.queues[-1]

    def is_done(self, mark: tuple["FakeQueue", int]) -> bool:
        return mark[0].done >= mark[1]

    def wait(self, mark: tuple["FakeQueue", int], timeout_s: float) -> bool:
        return self.machine.until(lambda: self.is_done(mark), timeout_s)

    def close(self) -> None:
        """Also what a process that dies does: its queues do nothing more."""
        self.ended = True


class FakeQueue:
    def __init__(self, driver: FakeDriver, engine: Engine) -> None:
        self.todo: deque[Process] = deque()
        self.issued = self.done = self.copies = 0
        self._driver, self._engine = driver, engine
        with driver.machine.lock:
            driver.machine.clock.spawn(self._serve())

    def begin(self) -> None:
        pass

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        assert out.dtype == inp.dtype == torch.uint8
        assert out.dim() == inp.dim() == 1
        assert len(out) == len(inp) > 0

        def run() -> Process:
            yield from self._engine.copy(len(inp))
            out.copy_(inp)
            self.copies += 1

        self._issue(run())

    def write(self, word: torch.Tensor, value: int) -> None:
        def run() -> Process:
            word[0] = value
            yield 0.0

        self._issue(run())

    def wait(self, word: torch.Tensor, value: int) -> None:
        def run() -> Process:
            yield lambda: in_circle(int(word[0]) - value) >= 0

        self._issue(run())

    def mark(self) -> Any:
        return self, self.issued

    def _issue(self, process: Process) -> None:
        capacity = self._driver.capacity
        if capacity is not None and not self._driver.machine.until(lambda: len(self.todo) < capacity, PATIENCE_S):
            raise AssertionError("the host is blocked for ever in a queue that takes no more")
        with self._driver.machine.lock:
            self.todo.append(process)
            self.issued += 1
            self._driver.machine.issued.notify_all()

    def _serve(self) -> Process:
        while True:
            yield lambda: bool(self.todo) or self._driver.ended
            if self._driver.ended:
                return
            for asked in self.todo[0]:
                yield asked
                if self._driver.ended:
                    return
            self.todo.popleft()
            self.done += 1


class Agreed:
    """What the ranks tell each other: set `largest` before they issue. Notes who asked what."""

    def __init__(self) -> None:
        self.largest = 0
        self.events: list[tuple[Any, ...]] = []
        self.gone: list[int] = []
        self.dead = -1  # of whom the notes on the board are missing


class FakeGroup:
    def __init__(self, agreed: Agreed, rank: int) -> None:
        self._agreed, self._rank = agreed, rank

    def blame(self, waited_s: float) -> str:
        self._agreed.events.append(("blame", self._rank))
        told = [event for event in self._agreed.events if event[0] == "abort"]
        return f"rank {told[0][1]} {told[0][2]}" if told else f"rank {self._agreed.dead} did not answer"

    def abort(self, reason: str) -> None:
        self._agreed.events.append(("abort", self._rank, reason))

    def close(self, reason: str) -> None:
        self._agreed.events.append(("close", self._rank))


class FakeHandshake:
    """What a Ring uses of a Handshake."""

    def __init__(self, agreed: Agreed, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self.group = FakeGroup(agreed, rank)
        self._agreed = agreed

    def agree(self, operation: str, like: torch.Tensor, out_splits: Any = (), in_splits: Any = ()) -> int:
        self._agreed.events.append((operation, self.rank))
        return self._agreed.largest

    def gone(self) -> list[int]:
        return self._agreed.gone
