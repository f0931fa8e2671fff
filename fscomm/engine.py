"""The engine: takes batches one step ahead, forwards and backwards as they come, and keeps the order of updates.

Four threads. The training thread runs hooks of the user's loop; it touches no table, and no socket but for one control
word per forward. The ids lane exchanges ids one step ahead. The urgent lane carries collision traffic, the bulk lane
exclusive traffic.

Order, for step n (R_n the rows that all ranks use in it):
- exclusive rows of n+1 (not in R_n) are looked up after all gradients of n-1 and before: same lane, in this order;
- collision rows of n+1 (in R_n) are looked up after the collision gradients of n: one piece of work of the urgent lane;
- deferred gradients of n (rows not in R_n+1) are applied before the exclusive rows of n+2 are looked up: same lane.
Work that may run at the same time in both lanes is on disjoint rows. Whatever does not fit this order (a backward pass
that comes late, a forward that was not announced, tables loaded by hand) is done after all that is pending, and what
was fetched ahead is marked stale: the steps concerned run plainly, on all ranks, by the control word of their forward.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fscomm import torchrec_binding as binding
from fscomm.agreement import FAST, PLAIN, WRONG
from fscomm.device import Device
from fscomm.errors import NotServedError
from fscomm.features import Snapshot
from fscomm.ids import BATCH, END, FAILED
from fscomm.lane import Pending
from fscomm.links import Links
from fscomm.merge_rows import MergeRows
from fscomm.record import Recorder
from fscomm.step import Step, Verdict
from fscomm.tables import take_hyper
from fscomm.traffic import Gradients
from fsranks.errors import MismatchError
from fsranks.place import Place, name_ranks

log = logging.getLogger("fscomm")


class Engine:
    """Serves `modules` on the ranks of `place`. Making it is collective.

    Public methods are called by the training thread. Errors of a lane are raised by the next call that needs it.
    """

    def __init__(
        self,
        modules: Sequence[binding.Binding],
        place: Place,
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
        self._first = [0]
        for module in modules:
            self._first.append(self._first[-1] + len(module.layouts))
        self._layouts = [layout for module in modules for layout in module.layouts]
        self._kernels = [kernels for module in modules for kernels in module.kernels]
        self._module_of = [m for m, module in enumerate(modules) for _ in module.layouts]
        self._links = Links(modules, place, recorder, device=device, transport=transport, timeout_s=timeout_s)
        self._anchor = torch.zeros(0, requires_grad=True, device=device.where)
        self._last_update: dict[str, Pending[None]] = {}  # by lane: those before it are done when it is
        self._announced: deque[Step] = deque()
        self._newest: Step | None = None
        self._ended: Pending[Verdict] | None = None
        self._number = 0
        self._reported: set[int] = set()
        self._called: set[int] = set()
        self.current: Step | None = None
        self.forward_step: Step | None = None

    # Batches

    def announce(self, given: list[Any], missing: list[str | None]) -> None:
        """The next batch: the KJT for each module, or None where there is none to prefetch, and why. Does not block."""
        self._links.check()
        features = [None if kjt is None else Snapshot(kjt) for kjt in given]
        modules = len(self.modules)
        step = Step(
            number=self._number,
            follows=self._newest.number if self._newest is not None else None,
            features=features,
            parts=[None] * modules,
            groups=[],
            stale=list(missing),
            collision=[None] * modules,
            used=[False] * modules,
            backwards=[0] * modules,
        )
        self._number += 1
        before, self._newest = self._newest, step
        if before is None:
            self._announced.clear()  # a loop that was left, and another one starts
        self._announced.append(step)
        pending = list(self._last_update.values())
        step.arrived = self._links.submit("ids", lambda: self._exchange_ids(step.number, before, step, BATCH, given))
        if before is not None:
            before.planned = step.arrived
        step.exclusive = self._links.submit("bulk", lambda: self._fetch_exclusive(step, pending))

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
        self._called.clear()
        with self.recorder.wait("ids", step=step.number):
            verdict = self._await(step.arrived)
        self.current = step
        if verdict.stop is not None:
            raise MismatchError(verdict.stop)

    def finish(self) -> None:
        """The user is about to learn that there is no more batch. Blocks until all ranks said so; flushes."""
        self.current = None
        self.flush()
        if self._ended is not None:
            verdict = self._await(self._ended)
            if verdict.stop is not None:
                raise MismatchError(verdict.stop)

    def _exchange_ids(
        self, number: int, before: Step | None, step: Step | None, status: int, given: list[Any]
    ) -> Verdict:
        """In the ids lane."""
        self._links.gate.wait()  # nothing needs the ids soon, but the collision rows of the step before are waited for
        requests: list[Any] = [None] * len(self._layouts)
        with self.recorder.span("ids", step=number if step is not None else None):
            if step is not None:
                for m, kjt in enumerate(given):
                    if kjt is not None:
                        step.parts[m], found = self.modules[m].prepare(kjt)
                        requests[self._first[m] : self._first[m + 1]] = found
            verdict = self._links.stage.run(number, before, step, status, requests)
        if step is not None:
            self._count(step)
        return verdict

    def _fetch_exclusive(self, step: Step, pending: list[Pending[None]]) -> None:
        """In the bulk lane."""
        for update in pending:
            update.result()
        verdict = self._await(step.arrived)
        if verdict.stop is None:
            groups = [g for g, ahead in enumerate(step.groups) if ahead is not None]
            self._links.bulk.send_rows(step, groups, collision=False)

    # Forward

    def forward(self, m: int, features: Any) -> Any:
        """The output of module m, bitwise that of its own forward."""
        self._links.check()
        self._called.add(m)
        module = self.modules[m]
        if not torch.is_grad_enabled():
            self.flush()
            return module.plain(features)
        step = self.current
        if torch._C._current_graph_task_id() != -1:
            self.report_plain(m, "it is called again inside backward (activation checkpointing)")
            return self._run_plainly(m, None, features)
        if step is None or step.used[m]:
            unannounced = "no batch was announced for it: use comm.lookahead(loader)"
            self.report_plain(m, unannounced if step is None else "it is used more than once in a forward")
            self._agree(m, None, PLAIN)
            return self._run_plainly(m, None, features)
        step.used[m] = True
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            self.report_plain(m, "hooks on saved tensors are active (activation checkpointing)")
            return self._run_plainly(m, step, features)
        if step.groups[self._first[m]] is None:
            if (why := step.stale[m]) is not None:
                self.report_plain(m, why)
            elif step.features[m] is not None:
                self._note_plain(m, f"step {step.number}: another rank could not announce its features")
            return self._run_plainly(m, step, features)
        return self._run_announced(m, step, features)

    def _run_announced(self, m: int, step: Step, features: Any) -> Any:
        announced = step.features[m]
        foreign = announced is None or not announced.matches(features)
        why = "it got other features than the batch holds" if foreign else step.stale[m]
        modes = self._agree(m, step, WRONG if foreign and m in self._explicit else PLAIN if why else FAST)
        if not modes.any():
            self._begin_forward(step)
            return self._run_fast(m, step)
        why = why or f"{name_ranks(np.nonzero(modes)[0].tolist())} could not use what was fetched ahead"
        self._note_plain(m, f"step {step.number}: {why}")
        return self._run_plainly(m, step, features, foreign=foreign)

    def _agree(self, m: int, step: Step | None, mode: int) -> np.ndarray:
        before = self.forward_step
        modes = self._links.agreement.modes(
            self.modules[m].name,
            m,
            step=step.number if step is not None else -1,
            collision=step is not None and step.collision[m] is not None,
            passes=before.backwards[m] if before is not None else 0,
            mode=mode,
        )
        self._links.gate.settle()
        return modes

    def _run_fast(self, m: int, step: Step) -> Any:
        module = self.modules[m]
        groups = range(self._first[m], self._first[m + 1])
        for g in groups:
            step.hypers[g] = [take_hyper(kernel) for kernel in self._kernels[g]]
        with self.recorder.wait("exclusive rows", step=step.number):
            self._await(step.exclusive)
        if step.collision[m] is None:
            # The step before had no backward, maybe not even a forward: only now that the exclusive rows are here is
            # it certain that the bulk lane has applied what came before them.
            self._send_collision(step, {}, None, [m])
        with self.recorder.wait("collision rows", step=step.number):
            self._await(step.collision[m])
        step.nodes.update(groups)
        self._device.reads(*step.parts[m], *(each for g in groups for each in step.fetched(g)))
        rows = [MergeRows.apply(self._anchor, step.groups[g], partial(self._take_gradient, step, g)) for g in groups]
        return module.output(step.parts[m], rows)

    def _run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool = False) -> Any:
        """The module's own forward, after all that is pending; its update is the module's own, at backward.

        `foreign`: the features are not those of which the other ranks were told.
        """
        module = self.modules[m]
        self.flush()
        if step is not None:
            self._begin_forward(step)
        result = module.plain(features)

        def watch(output: dict[str, Any]) -> None:
            for tensor in {id(jagged.values()): jagged.values() for jagged in output.values()}.values():
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self._plain_gradient(m, step, foreign))

        binding.on_result(result, watch)
        return result

    def _begin_forward(self, step: Step) -> None:
        if self.forward_step is not None and self.forward_step is not step:
            self.forward_step.successor = None  # a graph that the user keeps shall not keep all steps after it
        self.forward_step = step

    # Backward

    def _take_gradient(self, step: Step, group: int, gradient: torch.Tensor) -> None:
        """The gradient of one group is here; the last of a pass sends all of them."""
        if not step.gradients:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._send_gradients(step))
        step.gradients[group] = gradient
        if len(step.gradients) == len(step.nodes):
            self._send_gradients(step)

    def _send_gradients(self, step: Step) -> None:
        if not step.gradients:
            return
        self._links.check()
        gradients, step.gradients = step.gradients, {}
        for m in {self._module_of[g] for g in step.nodes}:
            step.backwards[m] += 1
        with self.recorder.wait("ids", step=step.number):
            self._await(step.planned)
        groups = sorted(step.nodes)
        if self._is_late(step):
            self.flush()
            self._submit_update("bulk", lambda: self._update_late(step, gradients, groups))
            self.mark_stale(range(len(self.modules)), "a backward pass came after the next forward")
            return
        successor = step.successor
        if successor is not None:
            modules = sorted({self._module_of[g] for g in groups})
            self._send_collision(successor, gradients, step, modules)
        self._submit_update("bulk", lambda: self._links.bulk.update(step, gradients, groups, collision=False))

    def _send_collision(self, step: Step, gradients: Gradients, before: Step | None, modules: list[int]) -> None:
        """Start the urgent work: collision gradients of `before`, then the collision rows of `step`."""
        groups = [g for g, ahead in enumerate(step.groups) if ahead is not None and self._module_of[g] in modules]

        def work() -> None:
            if before is not None:
                self._links.urgent.update(before, gradients, before_groups, collision=True)
            self._links.urgent.send_rows(step, groups, collision=True)

        def leave() -> None:
            self._device.wait(future.mark)
            self._links.urgent.meet()  # the wire is free when all ranks have their rows
            self._links.gate.leave(expecting=self.forward_step is not step)

        before_groups = sorted(before.nodes) if before is not None else []
        self._links.gate.enter()
        future = self._submit_update("urgent", work)
        self._links.submit("urgent", leave)
        for m in modules:
            step.collision[m] = future

    def _submit_update(self, lane: str, work: Callable[[], None]) -> Pending[None]:
        future = self._links.submit(lane, work)
        self._last_update[lane] = future
        return future

    def _update_late(self, step: Step, gradients: Gradients, groups: list[int]) -> None:
        for collision in (True, False):
            self._links.bulk.update(step, gradients, groups, collision=collision)

    def _is_late(self, step: Step) -> bool:
        """A later forward has read the tables, or rows that this step updates were fetched after it."""
        newest = self._newest
        return self.forward_step is not step or (
            newest is not None and newest is not step and newest.follows != step.number
        )

    def _plain_gradient(self, m: int, step: Step | None, foreign: bool) -> None:
        """A module is about to update its tables itself."""
        if step is None or foreign or self._is_late(step):
            self.mark_stale([m], "its tables were updated after rows had been fetched ahead")

    # Order and end

    def report_plain(self, m: int, why: str) -> None:
        """Module m cannot be served. Raises NotServedError where that is not allowed."""
        self._note_plain(m, why)
        if self._strict:
            raise NotServedError(f"{self.modules[m].name}: {why}")

    def _note_plain(self, m: int, why: str) -> None:
        """Module m runs plainly, at least once; said in the log the first time."""
        name = self.modules[m].name
        if m not in self._reported:
            log.warning("fscomm: %s is not served: %s", name, why)
        self._reported.add(m)
        self.recorder.fallback(name, why)

    def mark_stale(self, modules: Sequence[int], why: str) -> None:
        """What was fetched ahead for `modules` and not yet used must not be used."""
        steps = [*self._announced, *([self.current] if self.current is not None else [])]
        for step in steps:
            for m in modules:
                if not step.used[m]:
                    step.stale[m] = step.stale[m] or why

    def flush(self) -> None:
        """Wait until all gradients that came back are applied to the tables of this rank. No new collective."""
        self._links.gate.settle()
        with self.recorder.wait("exclusive gradients"):
            for update in self._last_update.values():
                self._await(update)
        self._last_update.clear()

    def close(self, reason: str) -> None:
        """End lanes and groups; work that is under way ends first, within its deadlines."""
        self._links.close(reason)

    def abort(self, reason: str) -> None:
        """Get everything that blocks out; the other ranks are given `reason`."""
        self._links.abort(reason)

    def _await(self, future: Pending[Any] | None) -> Any:
        assert future is not None
        return future.result()

    def _count(self, step: Step) -> None:
        for layout, ahead in zip(self._layouts, step.groups, strict=False):
            if ahead is not None:
                self.recorder.count(
                    layout.module,
                    step.number,
                    occurrences=len(ahead.served.keys),
                    colliding=ahead.colliding,
                    unique=len(ahead.exclusive.ids) + len(ahead.collision.ids),
                    unique_colliding=len(ahead.collision.ids),
                )
                sent, received = (
                    sum(ids.occurrences) - ids.occurrences[layout.rank]
                    for ids in (ahead.request.wire, ahead.served.wire)
                )
                self.recorder.bytes(layout.module, step.number, "ids", 8 * sent, 8 * received)
