"""The engine: runs forwards as they come, and lets five threads do the work.

The training thread runs hooks of the user's loop. It touches tables in a module's own forward only, and sends nothing
but one control word per forward. The ids worker exchanges ids one step ahead. The collision worker carries collision
rows and gradients, the exclusive worker exclusive ones; the plain worker applies updates of what is not served. When
tables may be touched is the law of `table_order.py`.

Nothing waits for a worker inside backward, except a forward that is called there (activation checkpointing).
"""

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fscomm.device import Device
from fscomm.engine.announced import AnnouncedSteps
from fscomm.engine.flushing import Flushing
from fscomm.engine.forward_modes import Call, Decision, decide, this_call
from fscomm.engine.table_access import TableAccess, result
from fscomm.engine.table_order import ANY, Rows, whole
from fscomm.engine.updates import Updates
from fscomm.errors import NotServedError
from fscomm.exchange.connections import Connections
from fscomm.exchange.control_word import Mode
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.step import Step
from fscomm.report.recorder import Recorder, user_line
from fscomm.report.report import WARM_UP
from fscomm.tables.binding import Binding
from fscomm.tables.gradient_tap import tap
from fscomm.tables.handles import Handles, find
from fscomm.tables.plain_kernels import LookupProxy, Update
from fscomm.tables.shadow_kernels import own, take_hyper
from fsranks.errors import PeerError, name_ranks
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")
_UNUSED = 3  # steps without a forward, after which nothing is fetched ahead for a module until it is called again


class Engine:
    """Serves `modules` on the ranks of `context`. Making it is collective.

    Public methods are called by the training thread. Errors of a worker are raised by the next call that needs it.
    """

    def __init__(
        self,
        modules: Sequence[Binding],
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
        self._served = served = ServedModules(modules)
        self._recorder = recorder
        self.device = device
        self._strict = strict
        self._explicit = explicit  # modules whose features the user names
        self._connections = Connections(
            served, context, recorder, device=device, transport=transport, timeout_s=timeout_s
        )
        tables = self._tables = TableAccess(self._connections, served, device)
        self.steps = AnnouncedSteps(served, self._connections, tables, recorder)
        self._updates = Updates(served, self._connections, tables, self.steps)
        self.flushing = Flushing(served, self._updates, tables, self._connections.wire_gate, recorder)
        self._handles = {
            calls.start: Handles(
                (tensor for g in served.groups[calls.start] for kernel in served.kernels[g] for tensor in own(kernel)),
                partial(self.flushing.before_look, calls.start),
                partial(self.steps.written, [calls.start]),
            )
            for calls in served.calls
        }
        self._updates.complete = self._complete_handed_out
        self._reading = ANY  # by the plain forward that runs
        self._reported: set[int] = set()
        self._called: set[int] = set()  # modules, since the user got the batch
        self._made = Counter[int]()  # calls in training of each module, since then
        self._unused = [0] * len(modules)  # steps in a row without a forward, by module

    def proxies(self, m: int) -> list[LookupProxy]:
        """To the tables of module m, for its own forward."""
        return [
            make(_KernelAccess(self, g, number))
            for g in self._served.groups[m]
            for number, make in enumerate(self.modules[m].proxies(g - self._served.groups[m].start))
        ]

    def watch_handles(self) -> Callable[[], None]:
        """Whoever looks at tables or optimizer states finds them complete, until what this returns is called."""
        find(list(self._handles.values()), [module.module for module in self.modules])

        def close() -> None:
            for handles in self._handles.values():
                handles.close()

        return close

    def resume(self) -> None:
        """The user asks for a batch: whatever backward pass was running is over. Does not block.

        Without this, a rank that waits in the next step for another one's batch may keep that one waiting for what a
        backward pass that raised had reached.
        """
        self._updates.end_failed_pass()

    def announce(self, given: Sequence[Any], missing: Sequence[str | None], *, draws: bool = False) -> None:
        """The next batch, as `AnnouncedSteps.announce` has it. Nothing is fetched for modules that nobody calls."""
        wanted = [None if self._unused[m] >= _UNUSED else kjt for m, kjt in enumerate(given)]
        self.steps.announce(wanted, missing, draws=draws)

    def hold(self) -> None:
        """The user is about to get the oldest announced batch. Blocks until all ranks have theirs."""
        if (left := self.steps.held) is not None:
            for m in (m for m in range(len(self.modules)) if m not in self._called):
                self._unused[m] += 1
                if m == self._served.calls[m].start:
                    self._note_plain(m, f"step {left.number}: its forward was not called")
        self._called.clear()
        self._made.clear()
        self.steps.hold()

    def finish(self) -> None:
        """The user is about to learn that there is no more batch. Blocks until all ranks said so; flushes."""
        self.steps.held = None
        self.flushing.flush()
        self.steps.await_end()

    def call(self, m: int) -> int:
        """Module m is called: which of its calls this is, as far as calls are known ahead."""
        calls, call = self._served.calls[m], this_call()
        if not call.training or call.inside_backward:
            return m
        self._made[m] += 1
        return calls[min(self._made[m], len(calls)) - 1]

    def forward(self, m: int, features: Any) -> Any:
        """The output of module m, bitwise that of its own forward; m: as `call` gave it."""
        self._updates.training_thread = threading.get_ident()
        self._updates.end_failed_pass()
        self._connections.check()
        self._called.add(m)
        self._unused[m] = 0
        step, call = self.steps.held, this_call()
        if call.training and (step is None or not step.open):
            self.steps.fetch()
        decision = self._decide(m, step, call, features)
        modes = self._exchange_modes(m, decision.mode)
        agreed = max(modes)
        if step is not None and call.training and not call.inside_backward:
            self._begin(m, step)
        if step is not None and agreed.served:
            self._count(m, features, call, None)
            return self._run_served(m, step, features, agreed)
        why = decision.why or WARM_UP
        if step is not None and decision.mode.served:
            others = name_ranks([rank for rank, mode in enumerate(modes) if not mode.served])
            why = f"{others} could not use what was fetched ahead"
            self._note_plain(m, f"step {step.number}: {why}")
        self._count(m, features, call, why)
        return self._run_plainly(m, step, features, foreign=agreed == Mode.FOREIGN)

    def _count(self, m: int, features: Any, call: Call, why: str | None) -> None:
        """Tell the recorder of a forward that was served, or ran plainly because of `why`."""
        if call.training and not call.inside_backward:
            for asked in self.modules[m].asked(features):
                self._recorder.forward(asked.part, asked.ids, asked.nbytes, asked.plainly or why)

    def report_plain(self, m: int, why: str) -> None:
        """Module m cannot be served. Raises NotServedError if `strict`."""
        self._note_plain(m, why)
        if self._strict:
            raise NotServedError(f"{self.modules[m].name}: {why}")

    def explain(self, error: BaseException) -> PeerError | None:
        """What names the rank that was lost, if `error` is what gloo says of it in an exchange outside of fscomm."""
        return self._connections.peers.explain(error)

    def close(self, reason: str, *, at_exit: bool = False) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines."""
        self._updates.close("")
        self._connections.close(reason, at_exit=at_exit)

    def abort(self, reason: str) -> None:
        """End everything that blocks; the other ranks are told `reason`."""
        self._updates.close(reason)
        self._connections.abort(reason)

    def _decide(self, m: int, step: Step | None, call: Call, features: Any) -> Decision:
        """How this rank wants to run module m. Reports why, if it cannot be served."""
        handed_out = self._handles[self._served.calls[m].start].handed_out()
        self.steps.drop_written()
        served = step is not None and all(step.ids.groups[g] is not None for g in self._served.groups[m])
        announced = step.modules[m].features if step is not None else None
        foreign = call.training and served and (announced is None or not announced.matches(features))
        calls = len(self._served.calls[m])
        decision = decide(
            m,
            step,
            call,
            calls=calls,
            served=served,
            foreign=foreign,
            explicit=m in self._explicit,
            handed_out=handed_out,
        )
        if decision.why is not None and decision.lasting:
            self.report_plain(m, decision.why)
        elif decision.why is not None and step is not None:
            self._note_plain(m, f"step {step.number}: {decision.why}")
        if call.training and not served and calls > 1:
            return replace(decision, mode=Mode.FOREIGN)  # another call is served, and its rows are not those of this
        return decision

    def _exchange_modes(self, m: int, mode: Mode) -> list[Mode]:
        step, before = self.steps.held, self.steps.forwarded
        modes = self._connections.control_words.exchange(
            self.modules[m].name,
            m,
            step=step.number if step is not None else -1,
            passes=before.modules[m].backwards if before is not None else 0,
            mode=mode,
        )
        self._connections.wire_gate.settle()
        return modes

    def _begin(self, m: int, step: Step) -> None:
        """A forward of module m on the held batch, which backward may come back to."""
        step.modules[m].used = step.open = True
        self._tables.forget(step, [m])
        self.steps.forwarded = step

    def _run_served(self, m: int, step: Step, features: Any, mode: Mode) -> Any:
        """With the rows fetched ahead, or what is left of them."""
        groups, ids = self._served.groups[m], step.ids
        hypers = {g: [take_hyper(kernel) for kernel in self._served.kernels[g]] for g in groups}
        if mode >= Mode.FETCH:  # the step before had no backward pass, maybe not even a forward
            self._tables.fetch_collision(step, m)
        if mode >= Mode.FETCH_ALL:  # an update came that was not expected
            self._tables.fetch_exclusive(step, [m])
        with self._recorder.wait("exclusive rows", step=step.number):
            result(step.modules[m].exclusive)
        with self._recorder.wait("collision rows", step=step.number):
            result(step.modules[m].collision)
        step.hypers.update(hypers)
        fetched = {g: (ids.ahead(g).merge, ids.ahead(g).buffer) for g in groups}
        tensors = [tensor for merge, buffer in fetched.values() for tensor in (merge.index, buffer)]
        self.device.reads(*ids.parts[m], *tensors)
        rows = [
            tap(codec.rows.decode(merge.output(buffer)), partial(self._updates.take_gradient, step, g))
            for codec, (g, (merge, buffer)) in zip(self.modules[m].codecs, fetched.items(), strict=True)
        ]
        if not self.modules[m].in_part:
            return self.modules[m].output(features, ids.parts[m], rows)
        with self._connections.peers.within():
            output = self.modules[m].output(features, ids.parts[m], rows)
        return self._watched(m, step, output)

    def _run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool) -> Any:
        """The module's own forward. Its kernels read and update in program order.

        foreign: on some rank the features are not those that were announced.
        """
        outside = self._reading
        self._reading = ANY if step is None or foreign else whole(step.number)
        try:
            with self._connections.peers.within():
                output = self.modules[m].plain(features)
        finally:
            self._reading = outside
        return self._watched(m, step, output)

    def _watched(self, m: int, step: Step | None, output: Any) -> Any:
        """What a forward gave that is, at least in part, the module's own: its exchanges are waited for later."""
        self.modules[m].around_wait(output, self._connections.peers.within)
        if torch.is_grad_enabled():
            # On every rank, unlike the kernels' updates: a rank may hold no table of the module.
            held = (lambda: None) if step is None else weakref.ref(step)  # a loss that is kept does not keep it
            self.modules[m].on_gradient(output, lambda: self._updates.reach_plain(m, held()))
        return output

    def _may_read(self, group: int) -> Rows:
        """A kernel is about to read, and waits for all updates of its module before that."""
        self.flushing.before_read(group)
        return self._reading

    def _complete_handed_out(self) -> None:
        """A backward pass is over. The program may look at these tables in a way that is not seen."""
        if handed_out := [m for m, handles in self._handles.items() if handles.handed_out()]:
            self.flushing.flush(handed_out)

    def _note_plain(self, m: int, why: str) -> None:
        """Module m runs plainly, at least once; said in the log the first time."""
        name = self.modules[m].name
        if m in self._reported:
            return
        self._reported.add(m)
        line = user_line()
        why = why if line is None else f"{why} (called at {line})"
        log.warning("fscomm: %s is not served: %s", name, why)
        self._recorder.fallback(name, why)


class _KernelAccess:
    """When one kernel, or a group without any kernel, may read and update."""

    def __init__(self, engine: Engine, group: int, number: int) -> None:
        self._engine = engine
        self._group = group
        self._number = number

    def read(self) -> Rows:
        return self._engine._may_read(self._group)

    def update(self, read: Any, update: Update) -> None:
        self._engine._updates.take_plain_update(self._group, self._number, read, update)
