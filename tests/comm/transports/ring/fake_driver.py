"""Ranks in one process: a Driver whose queues run in turn when somebody waits, and a control group to go.

A test issues an operation on one rank after the other and waits then, or
gives every rank a thread. Whoever waits lets the queues run until none of them can go on.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from patience import PATIENCE_S
from played_clock import PlayedClock

from fscomm.transports.ring.slots import in_circle


class Machine:
    """The queues of all ranks, and the memory of one ring on all ranks, a generation for every resize.

    Operations run one at a time, of queues drawn by `seed` among those that can go on.
    """

    def __init__(self, world_size: int, *, seed: int = 0) -> None:
        self.world_size = world_size
        self.lock = threading.RLock()
        self.issued = threading.Condition(self.lock)
        self.queues: list[FakeQueue] = []
        self._draw = random.Random(seed)
        self._memory: list[list[torch.Tensor]] = []

    def run(self, most: int | None = None) -> None:
        """At most so many operations; until no queue can go on."""
        with self.lock:
            while most != 0 and (ready := [queue for queue in self.queues if queue.can_go_on()]):
                self._draw.choice(ready).go_on()
                most = most and most - 1

    def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true; in real seconds, as other ranks may have threads of their own."""

        def came() -> bool:
            self.run()
            return condition()

        with self.issued:
            return self.issued.wait_for(came, timeout_s)

    def memory(self, generation: int, nbytes: int) -> list[torch.Tensor]:
        with self.lock:
            if generation == len(self._memory):
                self._memory.append([torch.zeros(nbytes, dtype=torch.uint8) for _ in range(self.world_size)])
            memory = self._memory[generation]
            assert len(memory[0]) == nbytes, "ranks asked for memory of different size"
            return memory


class FakeDriver:
    """`capacity`: operations a queue accepts before it blocks the host, as a CUDA stream does."""

    def __init__(self, machine: Machine, rank: int, *, capacity: int | None = None) -> None:
        self.machine, self.rank, self.world_size = machine, rank, machine.world_size
        self.capacity = capacity
        self.ended = False
        self.queues: list[FakeQueue] = []
        self._generation = 0

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        assert all(not queue.todo for queue in self.queues), "memory was taken away under a queue"
        self._generation += 1
        return self.machine.memory(self._generation - 1, nbytes)

    def words(self, number: int) -> list[torch.Tensor]:
        return [words.view(torch.int32) for words in self.memory(4 * number)]

    def queue(self, name: str) -> "FakeQueue":
        queue = FakeQueue(self)
        self.queues.append(queue)
        self.machine.queues.append(queue)
        return queue

    def is_done(self, mark: tuple["FakeQueue", int]) -> bool:
        return mark[0].done >= mark[1]

    def follow(self, mark: tuple["FakeQueue", int]) -> bool:
        return self.is_done(mark)

    def wait(self, mark: tuple["FakeQueue", int], timeout_s: float) -> bool:
        """Not so long: what does not come now comes when another rank does something, and then this is asked again."""
        return self.machine.until(lambda: self.is_done(mark), 0.001)

    def close(self) -> None:
        """Also what a process that dies does: its queues do nothing more."""
        self.ended = True


class FakeQueue:
    """copied: the bytes of each copy."""

    def __init__(self, driver: FakeDriver) -> None:
        self.todo: deque[tuple[Callable[[], bool], Callable[[], object]]] = deque()
        self.issued = self.done = 0
        self.copied: list[int] = []
        self._driver = driver

    def begin(self) -> None:
        pass

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        assert out.dtype == inp.dtype == torch.uint8
        assert out.dim() == inp.dim() == 1
        assert len(out) == len(inp) > 0
        self._issue(lambda: [out.copy_(inp), self.copied.append(len(inp))])

    def write(self, word: torch.Tensor, value: int) -> None:
        self._issue(lambda: word.fill_(value))

    def wait(self, word: torch.Tensor, value: int) -> None:
        self._issue(lambda: None, lambda: in_circle(int(word[0]) - value) >= 0)

    def mark(self) -> Any:
        return self, self.issued

    def can_go_on(self) -> bool:
        return bool(self.todo) and not self._driver.ended and self.todo[0][0]()

    def go_on(self) -> None:
        self.todo[0][1]()
        self.todo.popleft()
        self.done += 1

    def _issue(self, run: Callable[[], object], can_begin: Callable[[], bool] = lambda: True) -> None:
        machine, capacity = self._driver.machine, self._driver.capacity
        if capacity is not None and not machine.until(lambda: len(self.todo) < capacity, PATIENCE_S):
            raise AssertionError("the host is blocked for ever in a queue that takes no more")
        with machine.lock:
            self.todo.append((can_begin, run))
            self.issued += 1
            machine.issued.notify_all()


class Board:
    """What the ranks tell each other. Notes who asked what.

    `meanwhile` happens once, when a rank next meets or looks who is gone: what other ranks or threads do then.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.gone: list[int] = []
        self.dead = -1  # of whom the notes on the board are missing
        self.meanwhile: Callable[[], object] | None = None
        self.clock = PlayedClock()

    def happen(self) -> None:
        action, self.meanwhile = self.meanwhile, None
        if action is not None:
            action()


class FakeGroup:
    """What transports use of a ControlGroup."""

    def __init__(self, board: Board, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self.clock = board.clock
        self._board = board

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        self._board.events.append(("all-gather", self.rank))
        self._board.happen()
        return np.stack([mine] * self.world_size)

    def gone(self) -> list[int]:
        self._board.happen()
        return self._board.gone

    def blame(self, waited_s: float) -> str:
        told = [event for event in self._board.events if event[0] == "abort"]
        return f"rank {told[0][1]} {told[0][2]}" if told else f"rank {self._board.dead} did not answer"

    def abort(self, reason: str) -> None:
        self._board.events.append(("abort", self.rank, reason))

    def close(self, reason: str) -> None:
        self._board.events.append(("close", self.rank))
