"""Ranks as threads of one process, of which one runs at a time, on a clock that only waiting moves.

job = Ranks(3, seed=7)
job.at(0.5, job.kill, 2)                   # after half a virtual second rank 2 ends
outcomes = job.run(lambda rank: work(rank, job))

Which of several ranks goes on, and how long a message takes, follows from the seed. So a run is repeated exactly by its
seed, and takes as long as the work of the ranks, however long they wait.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

NEVER = float("inf")
_PATIENCE_S = 600.0  # of this machine, for one turn of a rank


class Ended(BaseException):
    """Ends the thread of a rank that was killed: nothing that it still does has an effect."""


class Stuck(AssertionError):
    """Ranks wait, and nothing can ever wake them."""


class _Rank:
    """One thread: it runs from `turn` until it waits again."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None  # None: runs, or has not begun
        self.until = 0.0
        self.killed = False
        self.stopped = False
        self.over = False
        self.outcome: Any = None


class Ranks:
    """A job of `size` ranks. Also their clock, in seconds: `now`, `wait`."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.random = random.Random(seed)
        self._now = 0.0
        self._ranks = [_Rank() for _ in range(size)]
        self._back = threading.Semaphore(0)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count()
        self._own = threading.local()
        self.on_end: list[Callable[[int], object]] = []
        """Called with the rank whose process has ended: killed, or at the end of its work."""
        self.on_go_on: list[Callable[[int], object]] = []

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float, event: threading.Event | None = None) -> bool:
        self.block(event.is_set if event is not None else lambda: False, seconds)
        return event is not None and event.is_set()

    def at(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Do this after `seconds`."""
        heapq.heappush(self._events, (self._now + seconds, next(self._number), lambda: action(*args)))

    def block(self, ready: Callable[[], bool], seconds: float = NEVER) -> None:
        """Let the others run until `ready()`, at most for so long. Raises Ended in a rank that was killed meanwhile."""
        mine = self._ranks[self._own.rank]
        if not mine.killed:
            mine.ready, mine.until = ready, self._now + max(seconds, 0.0)
            self._back.release()
            mine.turn.acquire()
        if mine.killed:
            raise Ended

    def kill(self, rank: int) -> None:
        one = self._ranks[rank]
        if not one.killed and not one.over:
            one.killed = True
            self._tell_end(rank)

    def stop(self, rank: int) -> None:
        self._ranks[rank].stopped = True

    def go_on(self, rank: int) -> None:
        self._ranks[rank].stopped = False
        for listener in self.on_go_on:
            listener(rank)

    def is_gone(self, rank: int) -> bool:
        """Whether its process has ended."""
        return self._ranks[rank].killed or self._ranks[rank].over

    def is_stopped(self, rank: int) -> bool:
        return self._ranks[rank].stopped

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returned or raised, by rank; None for killed ranks and those that stay stopped.

        Raises Stuck if a rank waits for ever.
        """
        threads = [
            threading.Thread(target=self._one, args=(rank, work), name=f"rank {rank}", daemon=True)
            for rank in range(self.size)
        ]
        for one, thread in zip(self._ranks, threads, strict=True):
            one.ready = lambda: True
            thread.start()
        try:
            while any(not one.over and not one.stopped for one in self._ranks):
                self._step()
        finally:
            for rank, one in enumerate(self._ranks):
                self.kill(rank)
                one.stopped = False
                while not one.over:
                    self._turn(one)
            for thread in threads:
                thread.join(_PATIENCE_S)
        return [one.outcome for one in self._ranks]

    def _one(self, rank: int, work: Callable[[int], Any]) -> None:
        self._own.rank = rank
        one = self._ranks[rank]
        one.turn.acquire()
        try:
            if not one.killed:
                one.outcome = work(rank)
        except Ended:
            pass
        except BaseException as error:
            one.outcome = None if one.killed else error
        finally:
            one.over = True
            if not one.killed:
                self._tell_end(rank)
            self._back.release()

    def _step(self) -> None:
        """Give one rank its turn; if none can go on, let time pass up to the next thing that happens."""
        waiting = [one for one in self._ranks if not one.over and not one.stopped]
        able = [one for one in waiting if one.killed or one.until <= self._now or (one.ready is None or one.ready())]
        if able:
            return self._turn(self.random.choice(able))
        next_event = self._events[0][0] if self._events else NEVER
        soonest = min([next_event, *(one.until for one in waiting)])
        if soonest == NEVER:
            names = ", ".join(str(rank) for rank, one in enumerate(self._ranks) if one in waiting)
            raise Stuck(f"rank(s) {names} wait for ever, since {self._now:.3f} s")
        self._now = max(self._now, soonest)
        while self._events and self._events[0][0] <= self._now:
            heapq.heappop(self._events)[2]()
        return None

    def _turn(self, one: _Rank) -> None:
        one.ready = None
        one.turn.release()
        if not self._back.acquire(timeout=_PATIENCE_S):
            raise Stuck("a rank waits for something that is not of this simulation")

    def _tell_end(self, rank: int) -> None:
        for listener in self.on_end:
            listener(rank)
