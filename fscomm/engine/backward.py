"""Collects the gradients of backward passes and gives them to `Program` in program order. Never waits for a worker.

Gradients of one forward of a module are sent together: when all of its groups have theirs, or when they must wait no
longer. Those of one module are sent in the order in which autograd reaches its forwards, which is the order in which
the plain loop updates its tables.

Each rank may read other tables inside backward, and such a read waits for gradients of other ranks. So no rank keeps
gradients back while it waits for another one: all are sent before a read, and before every collective. Nor does it
depend on reads which gradients travel together: groups of one module get theirs one right after the other.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from fscomm.device import not_compiled
from fscomm.engine.choice import in_backward
from fscomm.engine.program import Program
from fscomm.engine.step import Step
from fscomm.exchange.executor import Executor
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.operations import ANY, Rows
from fscomm.tables.binding import ServedModules
from fscomm.tables.lookups import ApplyUpdate

Forward = tuple[Step, int, int]  # the step, the module (a later call is one of its own), which of its forwards


class Schedule(Protocol):
    """What a backward pass asks of the schedule of steps: see `StepSchedule`."""

    def complete(self, step: Step, m: int, number: int, by_group: dict[int, Any]) -> Gradients | None: ...

    def pass_is_over(self, steps: Iterable[Step]) -> None: ...


class Loop(Protocol):
    """What a backward pass asks of the loop that it is in."""

    forwarded: Step | None
    """The step of the last forward that backward may come back to."""

    schedule: Schedule

    def step_to_come(self, number: int | None) -> Step | None:
        """The step of this number, if the user holds it or will get it."""

    def pass_is_over(self) -> None:
        """All updates of a backward pass were submitted."""


class Backward:
    """For the thread that runs backward. training_thread: the one that called the last forward."""

    def __init__(self, served: ServedModules, executor: Executor, program: Program, loop: Loop) -> None:
        self._served = served
        self._executor = executor
        self._program = program
        self._loop = loop
        self._gathered: dict[Forward, dict[int, torch.Tensor]] = {}  # gradients that are not sent yet, by group
        self._reached: list[Step] = []  # by the backward pass that runs
        self._pass = -1  # its number; -1 if no pass has reached anything
        self._over: str | None = None  # the error with which the block ended; empty if it was left without one
        self.training_thread = threading.get_ident()

    def take_gradient(self, step: Step, number: int, group: int, gradient: torch.Tensor) -> None:
        """Backward has reached rows that were fetched ahead. number: of the forward, among those of the step."""
        self.reach(step)
        m = self._served.module_of[group]
        forward = step, m, number
        self._send_before(m, but=forward)
        if group in self._gathered.get(forward, ()):
            self._send(forward)
        gathered = self._gathered.setdefault(forward, {})
        gathered[group] = gradient
        if len(gathered) == sum(self._served.module_of[g] == m for g in step.hypers):
            self._send(forward)

    def take_plain_update(self, group: int, kernel: int, read: Rows | None, update: ApplyUpdate) -> None:
        """Backward has reached a kernel that ran plainly; `read`: what that forward read, where it is known."""
        self._check_block()
        self.send_gathered()
        self._program.update_plainly(self._served.module_of[group], group, kernel, read or ANY, update)

    def send_gathered(self) -> None:
        """Send the gradients collected so far, before another access to tables, or a collective, inside backward."""
        for forward in list(self._gathered):
            self._send(forward)

    def reach(self, step: Step | None) -> None:
        """A backward pass is at a forward of `step`.

        Raises:
            RuntimeError: the block of that forward has ended.
        """
        self._check_block()
        self._executor.peers.begin()
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self.send_gathered()  # of a pass that raised: another rank may wait for it, and this one for that
            self._pass = number
            _at_end_of_pass(_EndOfPass(self._end_pass, partial(self._pass_failed, number)))
        if step is not None:
            self._reached.append(step)

    @not_compiled
    def reach_plain(self, m: int, step: Step | None) -> None:
        """A backward pass is at what a plain forward of module m gave, before it reaches the kernels of any rank."""
        self.reach(step)

    def end_failed_pass(self) -> None:
        """Send what a backward pass that raised had reached: in a plain loop that is updated, too."""
        if self._pass != -1 and not in_backward() and threading.get_ident() == self.training_thread:
            self._end_pass()

    def close(self, reason: str) -> None:
        """The block ends; later backward passes through its forwards raise. reason: of the first error, or empty."""
        self._over = self._over or reason

    def _pass_failed(self, number: int) -> None:
        """The user may catch the error, and do something else for as long as it takes."""
        if self._pass == number:
            self._executor.peers.pause()

    def _end_pass(self) -> None:
        self._pass = -1
        if in_backward():
            _at_end_of_pass(self._executor.peers.end)  # behind DDP's callback, which waits for its exchange
        else:
            self._executor.peers.end()
        self.send_gathered()  # outputs that the loss did not use get no gradient
        reached = dict.fromkeys(self._reached)
        self._reached.clear()
        for step in reached:
            step.open = False
        self._loop.schedule.pass_is_over(reached)
        self._loop.pass_is_over()

    def _send_before(self, m: int, *, but: Forward) -> None:
        """Autograd has reached another forward of module m: send the gradients of the forwards before it."""
        calls = self._served.calls[m]
        for forward in list(self._gathered):
            if forward != but and forward[1] in calls:
                self._send(forward)

    def _send(self, forward: Forward) -> None:
        """Update the tables with the gradients of a forward."""
        (step, m, number), by_group = forward, self._gathered.pop(forward)
        gradients = self._loop.schedule.complete(step, m, number, by_group)
        if gradients is not None:
            self.update(step, m, gradients)

    def send(self, step: Step, gradients: Gradients, numbers: Sequence[int]) -> None:
        """Those of some classes of strips, ahead of the others. Does not block."""
        self._executor.check()
        self._program.send(step, gradients, numbers)

    def update(self, step: Step, m: int, gradients: Gradients) -> None:
        """All gradients of a forward of module m have come. Does not block."""
        step.modules[m].backwards += 1
        self._executor.check()
        successor = self._loop.step_to_come(step.next)
        to_fetch = self._to_fetch(m, step, successor)
        awaited = successor if to_fetch else self._loop.forwarded

        def expecting() -> bool:
            return self._loop.forwarded is not awaited or (awaited is not None and awaited.fetches_reassigned)

        self._program.update(step, m, gradients, successor, to_fetch, expecting=expecting)

    def _to_fetch(self, m: int, step: Step, successor: Step | None) -> list[int]:
        """The calls of module m whose collision rows `successor` needs now that all calls of `step` had a backward."""
        calls = self._served.calls[m]
        awaited = [c for c in calls if self._served.groups[c].start in step.hypers and not step.modules[c].backwards]
        if successor is None or awaited:
            return []
        return [call for call in calls if not successor.modules[call].used]

    def _check_block(self) -> None:
        """Workers and transports end with the block: nothing could order an update, or send its gradients, after it."""
        if self._over is None:
            return
        how = f"ended with an error ({self._over})" if self._over else "has ended"
        raise RuntimeError(
            f"this backward goes through a forward of an fscomm block that {how}: its gradients reach no table. "
            "Call backward inside the block, or run the forward again"
        )


class _EndOfPass:
    """What to do at the end of a backward pass. One that raises drops it without a call: then, `failed`."""

    def __init__(self, then: Callable[[], None], failed: Callable[[], None]) -> None:
        self._then = then
        self._failed: Callable[[], None] | None = failed

    @not_compiled
    def __call__(self) -> None:
        self._failed = None
        self._then()

    def __del__(self) -> None:
        if self._failed is not None:
            self._failed()


def _at_end_of_pass(then: Callable[[], None]) -> None:
    """Call `then` when the backward pass that runs has done all else, and the callbacks asked for before."""
    torch.autograd.Variable._execution_engine.queue_callback(then)
