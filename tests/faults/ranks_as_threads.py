"""Ranks as threads of one process, of which one runs at a time, on a clock that only waiting moves.

job = Ranks(3, seed=7)
job.at(0.5, job.kill, 2)                   # after half a virtual second rank 2 ends
outcomes = job.run(lambda rank: work(rank, job))

Which of several ranks goes on, and how long a message takes, follows from the seed. So a run is repeated exactly by its
seed, and takes as long as the work of the ranks, however long they wait.
"""

import functools
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


class _Thread:
    """One thread of a rank: it runs from `turn` until it waits again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
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
        self._threads = [_Thread(rank) for rank in range(size)]  # the main threads first
        self._running: list[threading.Thread] = []
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
        mine: _Thread = self._own.thread
        if not mine.killed:
            mine.ready, mine.until = ready, self._now + max(seconds, 0.0)
            self._back.release()
            mine.turn.acquire()
        if mine.killed:
            raise Ended

    def spawn(self, work: Callable[[], object]) -> None:
        """One more thread of the rank that calls this; it ends with the main thread of the rank at the latest."""
        self._threads.append(_Thread(self._own.thread.rank))
        self._start(self._threads[-1], work)

    def kill(self, rank: int) -> None:
        main = self._threads[rank]
        if not main.killed and not main.over:
            main.killed = True
            self._tell_end(rank)

    def stop(self, rank: int) -> None:
        self._threads[rank].stopped = True

    def go_on(self, rank: int) -> None:
        self._threads[rank].stopped = False
        for listener in self.on_go_on:
            listener(rank)

    def is_gone(self, rank: int) -> bool:
        """Whether its process has ended."""
        return self._threads[rank].killed or self._threads[rank].over

    def is_stopped(self, rank: int) -> bool:
        return self._threads[rank].stopped

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returned or raised, by rank; None for killed ranks and those that stay stopped.

        Raises Stuck if a rank waits for ever.
        """
        mains = self._threads[:]
        for main in mains:
            self._start(main, functools.partial(work, main.rank))
        try:
            while any(not main.over and not main.stopped for main in mains):
                self._step()
        finally:
            for main in mains:
                self.kill(main.rank)
                main.stopped = False
            for one in self._threads:
                while not one.over:
                    self._turn(one)
            for thread in self._running:
                thread.join(_PATIENCE_S)
        return [main.outcome for main in mains]

    def _start(self, one: _Thread, work: Callable[[], Any]) -> None:
        one.ready = lambda: True
        thread = threading.Thread(target=self._one, args=(one, work), name=f"rank {one.rank}", daemon=True)
        self._running.append(thread)
        thread.start()

    def _one(self, one: _Thread, work: Callable[[], Any]) -> None:
        self._own.thread = one
        one.turn.acquire()
        try:
            if not one.killed:
                one.outcome = work()
        except Ended:
            pass
        except BaseException as error:
            one.outcome = None if one.killed else error
        finally:
            one.over = True
            if not one.killed and one is self._threads[one.rank]:
                self._tell_end(one.rank)
            self._back.release()

    def _step(self) -> None:
        """Give one rank its turn; if none can go on, let time pass up to the next thing that happens."""
        waiting = [one for one in self._threads if not one.over and not self._threads[one.rank].stopped]
        able = [one for one in waiting if one.killed or one.until <= self._now or (one.ready is None or one.ready())]
        if able:
            return self._turn(self.random.choice(able))
        next_event = self._events[0][0] if self._events else NEVER
        soonest = min([next_event, *(one.until for one in waiting)])
        if soonest == NEVER:
            names = ", ".join(sorted({str(one.rank) for one in waiting}))
            raise Stuck(f"rank(s) {names} wait for ever, since {self._now:.3f} s")
        self._now = max(self._now, soonest)
        while self._events and self._events[0][0] <= self._now:
            heapq.heappop(self._events)[2]()
        return None

    def _turn(self, one: _Thread) -> None:
        one.ready = None
        one.turn.release()
        if not self._back.acquire(timeout=_PATIENCE_S):
            raise Stuck("a rank waits for something that is not of this simulation")

    def _tell_end(self, rank: int) -> None:
        for one in self._threads:
            one.killed |= one.rank == rank
        for listener in self.on_end:
            listener(rank)
