"""The engine: takes batches one step ahead, forwards and backwards as they come, and lets workers do the work.

Five threads. The training thread runs hooks of the user's loop; it touches tables in a module's own forward only, and
no socket but for one control word per forward. The ids worker exchanges ids one step ahead. The collision worker
carries collision traffic, the exclusive worker exclusive traffic; the plain worker applies updates of what is not
served. When tables may be touched is the law of `order.py`; this file says what there is to do, in the order of the
user's loop.

Nothing here waits for a worker inside backward, except a forward that is called there (activation checkpointing).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fscomm.device import Device
from fscomm.engine import after_block
from fscomm.engine.forward_modes import Choice, choose, in_backward
from fscomm.engine.pending_gradients import PendingGradients
from fscomm.engine.step_counts import count_rows
from fscomm.engine.table_access import TableAccess, result
from fscomm.engine.table_order import ANY, Rows, whole
from fscomm.errors import NotServedError
from fscomm.exchange.connections import Connections
from fscomm.exchange.control_word import FETCH, FETCH_ALL, FOREIGN, PLAIN
from fscomm.exchange.id_exchange import BATCH, END, FAILED
from fscomm.exchange.row_exchange import Gradients
from fscomm.exchange.step import Step, Verdict
from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.report.recorder import Recorder
from fscomm.torchrec import binding
from fscomm.torchrec.gradient_tap import GradientTap
from fscomm.torchrec.plain_kernels import LookupProxy, Update
from fscomm.torchrec.shadow_kernels import take_hyper
from fsranks.errors import MismatchError, PeerError, name_ranks
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")


class Engine:
    """Serves `modules` on the ranks of `place`. Making it is collective.

    Public methods are called by the training thread, `flush` by any thread. Errors of a worker are raised by the next
    call that needs it.
    """

    def __init__(
        self,
        modules: Sequence[binding.Binding],
        context: RankContext,
        recorder: Recorder,
        *,
        device: Device,
        transport: str,
        explicit: frozenset[int],
        strict: bool,
        timeout_s: float,
    ) -> None:
        self.modules = modules
        self._device = device
        self._strict = strict
        self._explicit = explicit  # modules whose features the user names
        self.recorder = recorder
        self._groups: list[range] = []  # by module
        for module in modules:
            first = self._groups[-1].stop if self._groups else 0
            self._groups.append(range(first, first + len(module.layouts)))
        self._module_of = [m for m, groups in enumerate(self._groups) for _ in groups]
        self._kernels = [kernels for module in modules for kernels in module.kernels]
        self._links = Connections(modules, context, recorder, device=device, transport=transport, timeout_s=timeout_s)
        self._anchor = torch.zeros(0, requires_grad=True, device=device.where)
        self._tables = TableAccess(self._links, self._groups, device)
        self._gathering = PendingGradients(self._module_of, self._send_gradients)
        self._reached: list[Step] = []  # by the backward pass that runs
        self._pass = -1  # its number; -1 when none has brought anything
        self._trains = threading.get_ident()
        self._reading = ANY  # by the plain forward that runs
        self._announced: deque[Step] = deque()
        self._to_fetch: deque[Step] = deque()  # announced, and too early to fetch
        self._newest: Step | None = None
        self._ended: Pending[Verdict] | None = None
        self._number = 0
        self._reported: set[int] = set()
        self._called: set[int] = set()
        self._over: str | None = None
        self.current: Step | None = None
        self.forward_step: Step | None = None

    def proxies(self, m: int) -> list[LookupProxy]:
        """To the tables of module m, for its own forward."""
        return [
            make(_Turns(self, g, number))
            for g in self._groups[m]
            for number, make in enumerate(self.modules[m].proxies(g - self._groups[m].start))
        ]

    # Batches

    def announce(self, given: list[Any], missing: list[str | None]) -> None:
        """The next batch: the KJT for each module, or None where there is none to prefetch, and why. Does not block."""
        self._links.check()
        modules = len(self.modules)
        before = self._newest
        step = Step(
            number=self._number,
            follows=before.number if before is not None else None,
            features=[None if kjt is None else Snapshot(kjt) for kjt in given],
            parts=[None] * modules,
            groups=[],
            plain=list(missing),
            exclusive=[None] * modules,
            collision=[None] * modules,
            used=[False] * modules,
            backwards=[0] * modules,
        )
        self._number += 1
        self._newest = step
        if before is None:
            self._announced.clear()  # a loop that was left, and another one starts
        self._announced.append(step)
        step.arrived = self._links.submit("ids", lambda: self._exchange_ids(step.number, before, step, BATCH, given))
        if before is not None:
            before.next, before.planned = step.number, step.arrived
        self._to_fetch.append(step)
        if self.current is None or not self.current.open:
            self._fetch()

    def end(self, *, failed: bool = False) -> None:
        """There is no next batch: the loader ended, or raised. Does not block."""
        before, self._newest = self._newest, None
        status = FAILED if failed else END
        number = self._number
        self._ended = self._links.submit("ids", lambda: self._exchange_ids(number, before, None, status, []))
        if before is not None:
            before.planned = self._ended

    def hold(self) -> None:
        """The user is about to get the oldest announced batch. Blocks until all ranks have theirs.

        Raises:
            MismatchError: some ranks have no batch, or failed to load it.
        """
        step = self._announced.popleft()
        if self.current is not None:
            for m in set(range(len(self.modules))) - self._called:
                self._note_plain(m, f"step {self.current.number}: its forward was not called")
            self._tables.forget(self.current, range(len(self.modules)))
        self._called.clear()
        with self.recorder.wait("ids", step=step.number):
            verdict = result(step.arrived)
        self.current = step
        if verdict.stop is not None:
            raise MismatchError(verdict.stop)

    def finish(self) -> None:
        """The user is about to learn that there is no more batch. Blocks until all ranks said so; flushes."""
        self.current = None
        self.flush()
        if self._ended is not None:
            verdict = self._ended.result()
            if verdict.stop is not None:
                raise MismatchError(verdict.stop)

    def _exchange_ids(
        self, number: int, before: Step | None, step: Step | None, status: int, given: list[Any]
    ) -> Verdict:
        """In the ids worker."""
        self._links.gate.wait()  # nothing needs the ids soon, but the collision rows of the step before are waited for
        requests: list[Any] = [None] * len(self._module_of)
        with self.recorder.span("ids", step=number if step is not None else None):
            if step is not None:
                for m, kjt in enumerate(given):
                    if kjt is not None:
                        groups = self._groups[m]
                        step.parts[m], requests[groups.start : groups.stop] = self.modules[m].prepare(kjt)
            verdict = self._links.stage.run(number, before, step, status, requests)
        if step is not None:
            layouts = [layout for module in self.modules for layout in module.layouts]
            count_rows(self.recorder, step, layouts)
        return verdict

    def _fetch(self) -> None:
        """Start to fetch the exclusive rows of the steps that waited for it.

        The rows of a step are best fetched after the last backward pass that may come before its forward, except that
        of the step between: until the held batch had its backward pass, or the next one its forward.
        """
        while self._to_fetch:
            self._tables.fetch_exclusive(self._to_fetch.popleft(), range(len(self.modules)))

    # Forward

    def forward(self, m: int, features: Any) -> Any:
        """The output of module m, bitwise that of its own forward."""
        self._trains = threading.get_ident()
        self._end_failed_pass()
        self._links.check()
        self._called.add(m)
        step = self.current
        if torch.is_grad_enabled() and (step is None or not step.open):
            self._fetch()
        choice = choose(m, step, features, served=self._is_served(m, step), explicit=m in self._explicit)
        if choice.why is not None:
            self._say(m, choice)
        modes = self._agree(m, step, choice.mode)
        mode = modes.max()
        if step is not None and torch.is_grad_enabled():
            if not in_backward():
                self._begin(m, step)
            if mode < PLAIN:
                return self._run_fast(m, step, mode)
            if choice.mode < PLAIN:
                others = name_ranks(np.nonzero(modes >= PLAIN)[0].tolist())
                self._note_plain(m, f"step {step.number}: {others} could not use what was fetched ahead")
        return self._run_plainly(m, step, features, foreign=mode == FOREIGN)

    def _is_served(self, m: int, step: Step | None) -> bool:
        return step is not None and all(step.groups[g] is not None for g in self._groups[m])

    def _agree(self, m: int, step: Step | None, mode: int) -> np.ndarray:
        before = self.forward_step
        modes = self._links.agreement.modes(
            self.modules[m].name,
            m,
            step=step.number if step is not None else -1,
            passes=before.backwards[m] if before is not None else 0,
            mode=mode,
        )
        self._links.gate.settle()
        return modes

    def _begin(self, m: int, step: Step) -> None:
        """A forward of module m on the held batch, which backward may come back to."""
        step.used[m] = step.open = True
        self._tables.forget(step, [m])
        self.forward_step = step

    def _run_fast(self, m: int, step: Step, mode: int) -> Any:
        """With the rows fetched ahead, or what is left of them."""
        groups = self._groups[m]
        for g in groups:
            step.hypers[g] = [take_hyper(kernel) for kernel in self._kernels[g]]
        if mode >= FETCH:  # the step before had no backward pass, maybe not even a forward
            self._tables.fetch_collision(step, m)
        if mode >= FETCH_ALL:  # an update came that was not expected
            self._tables.fetch_exclusive(step, [m])
        with self.recorder.wait("exclusive rows", step=step.number):
            result(step.exclusive[m])
        with self.recorder.wait("collision rows", step=step.number):
            result(step.collision[m])
        step.nodes.update(groups)
        self._device.reads(*step.parts[m], *(each for g in groups for each in step.fetched(g)))
        rows = [
            GradientTap.apply(self._anchor, buffer.index_select(0, index), partial(self._take_gradient, step, g))
            for g in groups
            for buffer, index in [step.fetched(g)]
        ]
        return self.modules[m].output(step.parts[m], rows)

    def _run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool) -> Any:
        """The module's own forward. Its kernels read and update in turn.

        foreign: on some rank the features are not those that were announced.
        """
        outside = self._reading
        self._reading = ANY if step is None or foreign else whole(step.number)
        try:
            with self._links.peers.within():
                output = self.modules[m].plain(features)
        finally:
            self._reading = outside
        binding.around_wait(output, self._links.peers.within)
        if torch.is_grad_enabled():
            # On every rank, unlike the kernels' updates: a rank may hold no table of the module.
            binding.on_gradient(output, lambda: self._reach(step))
        return output

    # Backward

    def _take_gradient(self, step: Step, group: int, gradient: torch.Tensor) -> None:
        self._reach(step)
        self._gathering.take(step, group, gradient)

    def _may_read(self, group: int) -> Rows:
        """A kernel is about to read, and waits for all updates of its module before that."""
        m = self._module_of[group]
        self._gathering.send_before(m)
        self.flush([m])
        return self._reading

    def _take_plain_update(self, group: int, number: int, read: Rows | None, update: Update) -> None:
        """Backward has reached a kernel that ran plainly; `read`: what that forward read, where it is known."""
        m = self._module_of[group]
        self._gathering.send_before(m)
        self._tables.update_plainly(m, group, number, read or ANY, update)

    def _reach(self, step: Step | None) -> None:
        """A backward pass is at a forward of `step`."""
        self._links.peers.begin()
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self._pass = number
            _at_end_of_pass(self._end_pass)
        if step is not None:
            self._reached.append(step)

    def _end_pass(self) -> None:
        self._pass = -1
        if in_backward():
            _at_end_of_pass(self._links.peers.end)  # behind DDP's callback, which waits for its exchange
        else:
            self._links.peers.end()
        self._gathering.send_rest()
        for step in self._reached:
            step.open = False
        self._reached.clear()
        if self._over is None:
            self._fetch()

    def _end_failed_pass(self) -> None:
        """A backward pass that raised has ended without a word; what it had reached is updated in a plain loop, too."""
        if self._pass != -1 and not in_backward() and threading.get_ident() == self._trains:
            self._end_pass()

    def _send_gradients(self, step: Step, gradients: Gradients) -> None:
        """Update the tables with what a backward pass brought for the forward of `step`."""
        modules = sorted({self._module_of[g] for g in step.nodes})
        for m in modules:
            step.backwards[m] += 1
        if self._over is not None:
            self._update_after_the_block(step, gradients, modules)
            return
        self._links.check()
        successor = self._to_come(step.next)
        to_fetch = [m for m in modules if successor is not None and not successor.used[m]]
        expecting = successor if to_fetch else self.forward_step
        self._tables.update(
            step, gradients, modules, successor, to_fetch, expecting=lambda: self.forward_step is not expecting
        )

    def _update_after_the_block(self, step: Step, gradients: Gradients, modules: list[int]) -> None:
        if self._over:
            raise RuntimeError(
                f"this backward goes through a forward of an fscomm block that ended with an error ({self._over}): the "
                "other ranks do not wait for its gradients any more; run the forward again"
            )
        for m in modules:
            after_block.update(step, gradients, self.modules[m], self._groups[m])

    # Order and end

    def report_plain(self, m: int, why: str) -> None:
        """Module m cannot be served. Raises NotServedError where that is not allowed."""
        self._note_plain(m, why)
        if self._strict:
            raise NotServedError(f"{self.modules[m].name}: {why}")

    def _say(self, m: int, choice: Choice) -> None:
        assert choice.why is not None
        if choice.lasting:
            self.report_plain(m, choice.why)
        else:
            self._note_plain(m, choice.why)

    def _note_plain(self, m: int, why: str) -> None:
        """Module m runs plainly, at least once; said in the log the first time."""
        name = self.modules[m].name
        if m not in self._reported:
            log.warning("fscomm: %s is not served: %s", name, why)
        self._reported.add(m)
        self.recorder.fallback(name, why)

    def drop_fetched(self, modules: Iterable[int]) -> None:
        """The tables of `modules` were written by hand: what was fetched ahead of a forward to come is stale."""
        for step in (*self._announced, self.current):
            for m in modules:
                if step is not None and not step.used[m]:
                    step.exclusive[m] = step.collision[m] = None

    def flush(self, modules: Iterable[int] | None = None) -> None:
        """Wait until all gradients that came back are applied to the tables of `modules` (None: all) of this rank.

        No new collective.
        """
        self._end_failed_pass()
        self._links.gate.settle()
        with self.recorder.wait("exclusive gradients"):
            for m in range(len(self.modules)) if modules is None else modules:
                self._tables.wait(m)

    def explain(self, error: BaseException) -> PeerError | None:
        """What names the rank that was lost, if `error` is what gloo says of it in an exchange outside of fscomm."""
        return self._links.peers.explain(error)

    def close(self, reason: str) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines."""
        self._over = self._over or ""
        self._links.close(reason)

    def abort(self, reason: str) -> None:
        """Get everything that blocks out; the other ranks are given `reason`."""
        self._over = reason
        self._links.abort(reason)

    def _to_come(self, number: int | None) -> Step | None:
        """The step of this number, if the user holds it or will get it."""
        return next((each for each in (self.current, *self._announced) if each and each.number == number), None)


def _at_end_of_pass(then: Callable[[], None]) -> None:
    """Call `then` when the backward pass that runs has done all else, and the callbacks asked for before."""
    torch.autograd.Variable._execution_engine.queue_callback(then)


class _Turns:
    """When it is the turn of one kernel, or of a group without any."""

    def __init__(self, engine: Engine, group: int, number: int) -> None:
        self._engine = engine
        self._group = group
        self._number = number

    def read(self) -> Rows:
        return self._engine._may_read(self._group)

    def update(self, read: Any, update: Update) -> None:
        self._engine._take_plain_update(self._group, self._number, read, update)
