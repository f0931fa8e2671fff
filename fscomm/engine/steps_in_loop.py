"""The steps of the loop: announced, handed out and not trained on yet, and the one that trains.

Most loops train on a batch before they ask for the next one. Prefetchers ask first: Lightning and Accelerate look
whether there is another batch, others keep a queue that a thread fills. So batches that were handed out wait, and a
forward is assigned to one of them by its features. Which rows may be fetched follows the step that trains, not the
one handed out last: rows that are fetched before the updates of earlier steps would only become stale.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fscomm.engine.step import Step
from fscomm.exchange.control_word import MOST_STEPS

WAITING = MOST_STEPS - 1  # a queue of three, and a batch on each side of it; one more place is for the step that trains
OUTERMOST = "let the prefetcher pull from the plain loader, and loop over comm.lookahead(prefetcher)"
TOO_MANY = (
    f"its forward was not called before {WAITING} more batches were handed out. If the loop trains on it later, "
    f"{OUTERMOST}"
)
IDLE = 3  # steps without a forward in training, after which nothing is fetched ahead until there is one again


class Steps:
    """Batches may be pulled in another thread than that which trains (`elsewhere`). All ranks have to submit the same
    work in the same order, and no rank knows how far that thread is on another one. So it only adds to the lists, and
    what a rank drops then depends on the forwards alone. No method blocks.

    calls: [M] all calls of the module that each call is of; groups: [M] the sharding groups of each. most: batches that
    wait, at most. not_called: reports a module that was not called in a step.

    Attributes:
        held: the step that was handed out last. begun: the one that the last forward in training belongs to.
        idle: [M] steps in a row without a forward in training.
    """

    def __init__(
        self,
        calls: Sequence[range],
        groups: Sequence[range],
        *,
        most: int,
        not_called: Callable[[int, Step, str], None],
    ) -> None:
        self._calls = calls
        self._groups = groups
        self._most = most
        self._not_called = not_called
        self._lock = threading.Lock()  # of the lists
        self._announced: list[Step] = []
        self._waiting: list[Step] = []
        self._given_up = -1  # steps up to this number are not handed out any more
        self._moved_on = False  # a batch was handed out since the last forward
        self.held: Step | None = None
        self.begun: Step | None = None
        self.idle = [0] * len(calls)

    def announce(self, step: Step, *, elsewhere: bool) -> None:
        with self._lock:
            if step.follows is None:  # a loop that was left, and another one starts
                self._given_up = step.number - 1
                if not elsewhere:
                    self._announced.clear()
            self._announced.append(step)

    def next_to_hold(self) -> Step:
        """The oldest step that was announced and not handed out."""
        return next(step for step in self._announced if step.number > self._given_up)

    def hand_out(self, step: Step, batch: Any, *, elsewhere: bool) -> None:
        """The user gets `batch`, that of the next step to hold."""
        with self._lock:
            self._announced = [each for each in self._announced if each is not step]
            self._given_up = step.number
            self._waiting.append(step)
            self.held = step
            dropped: list[Step] = []
            if not elsewhere:
                self._moved_on = True
                dropped, self._waiting = self._waiting[: -self._most], self._waiting[-self._most :]
            if len(self._waiting) <= self._most:
                step.batch = batch
        self._leave(dropped, TOO_MANY)

    def give_up(self, step: Step) -> None:
        """The next step to hold is not handed out."""
        with self._lock:
            self._announced = [each for each in self._announced if each is not step]
            self._given_up = step.number

    def to_come(self) -> list[Step]:
        """The steps that forwards may come to, in their order in the loop."""
        with self._lock:
            begun = [self.begun] if self.begun is not None else []
            return [*begun, *self._waiting, *self._announced]

    def candidates(self, m: int) -> list[Step]:
        """The steps that a forward of module m in training may belong to, the likeliest first, on all ranks in the same
        order: the step that trains, while it lacks such a call; then the others, oldest first."""
        begun = self.begun
        with self._lock:
            waiting = self._waiting[: self._most]
        if begun is None:
            return waiting
        goes_on = begun.open and not self._moved_on and begun.modules[m].calls < len(self._calls[m])
        return [begun, *waiting] if goes_on else [*waiting, begun]

    def waiting(self) -> list[Any]:
        """The batches that were handed out and not trained on."""
        with self._lock:
            return [step.batch for step in self._waiting if step.batch is not None]

    @property
    def is_full(self) -> bool:
        """Whether as many batches wait as can."""
        return len(self._waiting) >= self._most

    @property
    def prefetched(self) -> bool:
        """Whether a batch was handed out after the one that trains."""
        return any(self.begun is None or step.number > self.begun.number for step in self._waiting)

    def begin(self, step: Step, *, elsewhere: bool) -> None:
        """A forward in training belongs to `step`."""
        self._moved_on = False
        step.fetching = True
        if step is self.begun:
            return
        self.leave_begun()
        with self._lock:
            left = [each for each in self._waiting if elsewhere and each.number < step.number]
            self._waiting = [each for each in self._waiting if each is not step and each not in left]
            self._announced = [each for each in self._announced if each.number > step.number]
            self.begun = step
        self._leave(left)

    def evaluate(self, m: int, step: Step | None, *, known: bool, elsewhere: bool) -> None:
        """A forward without gradients. step, known: whose features all ranks got in it. Where nothing was announced for
        the step handed out last, it may be of that one.

        What is left out of the lists then is agreed: otherwise ranks would fetch other rows than the others.
        """
        held = self.held
        if known and step is not None:
            step.modules[m].called = step.evaluated = True
        elif held is not None and not elsewhere and held.unserved(self._groups[m]):
            held.modules[m].called = True
            held.evaluated |= all(map(held.unserved, self._groups))

    def leave_evaluated(self) -> None:
        """The loop continues: batches that only had forwards without gradients are not trained on any more."""
        with self._lock:
            left = [step for step in self._waiting if step.evaluated]
            self._waiting = [step for step in self._waiting if not step.evaluated]
        self._leave(left)

    def leave_begun(self) -> None:
        """The step that trains is over."""
        begun, self.begun = self.begun, None
        self._leave([begun] if begun is not None else [])

    def leave_all(self) -> None:
        """No batch that was handed out is trained on any more."""
        with self._lock:
            left, self._waiting = self._waiting, []
        self.leave_begun()
        self._leave(left)

    def to_fetch(self, newest: int) -> list[Step]:
        """The steps up to `newest` whose exclusive rows may be fetched now, each once.

        An update between the fetch and the forward makes fetched rows stale, except an update of the step just before:
        that one touches none of these rows. So rows are fetched once the step before the one before had its backward
        pass, or the step before had its forward.
        """
        begun = self.begun
        after = [step for step in self.to_come() if begun is None or step.number > begun.number]
        near = after[: 1 if begun is not None and begun.open else 2]
        found = [step for step in near if not step.fetching and step.number <= newest]
        for step in found:
            step.fetching = True
        return found

    def _leave(self, steps: Iterable[Step], why: str = "its forward was not called") -> None:
        """A module that was evaluated in a step is not fetched for in the next ones."""
        for step in steps:
            step.batch = None
            for m, module in enumerate(step.modules):
                if not module.used:
                    self.idle[m] = IDLE if module.called else self.idle[m] + 1
                    if not module.called and m == self._calls[m].start:
                        self._not_called(m, step, why)
