"""The engine: runs the user's loop in program order, and lets an executor do the work.

The training thread runs these hooks. It touches tables in a module's own forward only, and sends nothing but one
control word per forward. When tables may be touched is the law of `table_order.py`.

Inside backward only two things wait for a worker: a forward that is called there (activation checkpointing), and a read
of a table by the program, such as by a node of autograd that saved it. `backward.py` says why ranks then wait in no
circle.
"""

import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from fscomm.device import Device, Mark
from fscomm.engine.backward import Backward
from fscomm.engine.choice import Call, Choices, Decision, in_backward, this_call
from fscomm.engine.plain_runs import EVALUATES, TWO_THREADS, PlainRuns
from fscomm.engine.program import Program
from fscomm.engine.schedule import StepSchedule
from fscomm.engine.step import Step
from fscomm.engine.steps_in_loop import WAITING, Steps
from fscomm.engine.to_announce import ToAnnounce
from fscomm.exchange.control_word import NO_STEP, Agreed, Mode
from fscomm.exchange.executor import executor_of
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import BATCH, DEPENDS, END, FAILED, Parts
from fscomm.exchange.operations import ANY, EXCLUSIVE, REASSIGNED, Rows, whole
from fscomm.exchange.worker import Pending
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.loop.lookahead import Listener
from fscomm.loop.moving import Moved
from fscomm.loop.random_numbers import IN_TURN
from fscomm.report.recorder import Recorder
from fscomm.report.report import WARM_UP
from fscomm.tables.binding import Binding, ServedModules
from fscomm.tables.handles import Handles
from fscomm.tables.lookups import ApplyUpdate, gradient_hook
from fscomm.tables.shadow_kernels import STATES, Hyper, memory, take_hyper, tensors_of
from fsranks.errors import MismatchError, PeerError, name_ranks
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")


class Engine(Listener):
    """Serves `modules` on the ranks of `context`. Making it is collective.

    Public methods are called by the training thread. Errors of a worker are raised by the next call that needs it.

    finder: finds the features of modules in a batch. schedule: makes the schedule of the steps.

    Attributes:
        over: the block was left: forwards are the modules' own again.
        steps: of the loop; held: the one that was handed out last.
        forwarded: the step of the last forward that backward may come back to.
    """

    def __init__(
        self,
        modules: Sequence[Binding],
        context: RankContext,
        recorder: Recorder,
        *,
        finder: FeatureFinder,
        device: Device,
        transport: str,
        strict: bool,
        timeout_s: float,
        schedule: Callable[["Engine"], StepSchedule] = StepSchedule,
    ) -> None:
        self.modules = modules
        self.served = served = ServedModules(modules, device)
        self._recorder = recorder
        self.device = device
        device.reserve()
        self.plain_runs = PlainRuns(modules, recorder, strict=strict)
        self.finder = finder
        self._executor = executor_of(device, transport)(
            served, context, recorder, device=device, transport=transport, timeout_s=timeout_s
        )
        self._program = Program(self._executor, served, device, lambda: self.steps.to_come())
        self.backward = Backward(served, self._executor, self._program, self)
        self.handles = {calls.start: self._handles(calls.start) for calls in served.calls}
        self._renewing: int | None = None  # the thread that makes reassigned rows new
        self.over = False
        self.forwarded: Step | None = None
        self._newest: Step | None = None
        self._ended: Pending[ExchangedIds] | None = None
        self._number = 0
        self._written: deque[int] = deque()  # modules whose tables the user wrote
        self._epoch: Callable[[], Any] = lambda: None  # the loop that the user is in; kept by the user alone
        self._puller: int | None = None  # the thread that pulls its batches; None once it has ended
        self.elsewhere = False  # another one than that which trains
        self._known = NO_STEP  # the last step that all ranks are known to have announced
        self._forwards = 0  # in training
        self._looks: Counter[int] = Counter()  # at tables, by thread
        self.schedule = schedule(self)
        self.steps: Steps = Steps(
            served.calls,
            served.groups,
            most=1 if self.schedule.one_at_a_time else WAITING,
            not_called=self.plain_runs.note_step,
        )
        self._choices = Choices(served, self.steps, finder, rank=context.rank, stale=self._stale)
        self._to_announce = ToAnnounce(served, self.steps)
        self.reading = ANY  # by the plain forward that runs

    # The loop over batches: called by the look-ahead.

    def resume(self, epoch: Any) -> bool:
        """The user asks `epoch` for a batch. Whether another one was asked since: what was announced is forgotten.

        Whatever backward pass was running is over: otherwise a rank that waits in the next step for another one's batch
        may keep that one waiting for what a backward pass that raised had reached.

        Raises:
            NotServedError: if `strict`, and other code has replaced the forward of a module.
        """
        self._recorder.report_steps()  # first: after an error of the user's function the batch can be asked for again
        thread = threading.get_ident()
        resumed = self._epoch() is not epoch
        other = self.elsewhere and thread != self._puller  # which may have ended
        if resumed and other and any(each.ident == self._puller for each in threading.enumerate()):
            raise RuntimeError(TWO_THREADS)
        self._epoch = (lambda: None) if epoch is None else weakref.ref(epoch)
        self._puller, self.elsewhere = thread, thread != self.backward.training_thread
        self.backward.end_failed_pass()
        self.plain_runs.note_replaced(self)
        self.schedule.end_step()
        if not self.elsewhere:
            self._move_on(resumed)
        if resumed:
            self._recorder.begin_loop()
            self.schedule.begin_loop()
            self.steps.idle = [0] * len(self.modules)
            if self._newest is not None:
                self.end()
        return resumed

    def _move_on(self, resumed: bool) -> None:
        """The user asks for a batch in the thread that trains; resumed: in another loop."""
        if self.schedule.one_at_a_time:
            self.steps.leave_all()
        elif resumed:
            self.steps.leave_begun()
        self.steps.leave_evaluated()
        for module in self.modules:
            if resumed:
                module.guard.leave_loop()
            if self.held is not None:
                module.guard.leave_batch()

    def announce(self, moved: Moved[Any], *, depends: bool, in_turn: str | None) -> None:
        """The next batch. Does not block."""
        was_moved = self.device.runs_ahead and moved.pulled is not moved.batch
        why = in_turn or (None if torch.is_grad_enabled() else EVALUATES)
        with moved.behind():  # what features are made of is still on its way
            batches, on_host = self.schedule.split(moved, self._number, was_moved=was_moved)
            given: Sequence[Parts | None] = [None] * len(self.modules)
            missing: Sequence[str | None] = [why] * len(self.modules)
            if why is None:
                given, missing = self.finder.read_each(batches, on_host)
            mark = self.device.mark() if was_moved else None
        self.announce_features(given, missing, batches=batches, moved=mark, depends=depends)

    def announce_features(
        self,
        given: Sequence[Parts | None],
        missing: Sequence[str | None],
        *,
        batches: Sequence[Any] = (),
        moved: Mark = None,
        depends: bool = False,
    ) -> None:
        """What each module gets in each of its forwards, or None where there is none to prefetch, and why.

        Nothing is fetched for modules that are not called. batches: [k] of the forwards. moved: of the copies to the
        device.
        """
        self.check()
        before = self._newest
        given, modules = self._to_announce.choose(self._number, given, missing, elsewhere=self.elsewhere)
        for module, features in zip(self.modules, given, strict=True):
            if features is not None:
                module.create_input_dists(max((kjt for kjt, _ in features), key=lambda kjt: kjt.stride()))
        guards = {m: module.guard for m, module in enumerate(self.modules) if given[m] is not None}
        states = {m: state for m, guard in guards.items() if (state := guard.announce(self._number)) is not None}
        step = Step(
            number=self._number,
            follows=before.number if before is not None else None,
            modules=modules,
            arrived=self._exchange_ids(DEPENDS if depends else BATCH, given, moved, states),
        )
        self.schedule.announce(step, batches)
        self._number += 1
        self._newest = step
        if before is not None:
            before.next = step.number
        self.steps.announce(step, elsewhere=self.elsewhere)
        if not self.elsewhere:
            self._known = step.number
            self._fetch()

    def depends(self) -> bool:
        """Whether the batch announced last depends on the step before it, on any rank. Blocks until all have it."""
        assert self._newest is not None
        with self._recorder.wait("ids", step=self._newest.number):
            depends = self._executor.await_ids(self._newest.arrived).verdict.depends
        if depends:
            log.warning("fscomm: %s", IN_TURN)
        return depends

    def end(self) -> None:
        """There is no next batch: the loader ended. Does not block."""
        self._ended = self._exchange_ids(END)
        self._newest = None

    def fail(self, error: BaseException) -> None:
        """There is no next batch: the loader raised. Does not block."""
        del error
        self._ended = self._exchange_ids(FAILED)
        self._newest = None

    def hold(self, batch: Any) -> Any:
        """What the user gets for `batch`, the oldest that was announced. Blocks until all ranks have theirs.

        Raises:
            MismatchError: some ranks have no batch, or failed to load it.
        """
        step, left = self.steps.next_to_hold(), self.held
        try:
            with self._recorder.wait("ids", step=step.number):
                verdict = self._executor.await_ids(step.arrived).verdict
        except BaseException:
            self.steps.give_up(step)
            raise
        self.steps.hand_out(step, batch, elsewhere=self.elsewhere)
        if verdict.stop is not None:
            raise MismatchError(verdict.stop)
        self._recorder.begin_step(step.number)
        return self.schedule.hold(step, left, batch, verdict.measured)

    def finish(self) -> None:
        """The loop is about to end. Blocks until the loaders of all ranks have ended; flushes."""
        self.schedule.end_step()
        self._puller, self.steps.held = None, None
        if not self.elsewhere:
            self.steps.leave_begun()
        self.flush()
        if self._ended is not None:
            with self._recorder.wait("ids"):
                verdict = self._executor.await_ids(self._ended).verdict
            if verdict.stop is not None:
                raise MismatchError(verdict.stop)

    def forwards(self) -> int:
        return self._forwards

    def looks(self) -> int:
        return self._looks[threading.get_ident()]

    def waiting(self) -> list[Any]:
        return self.steps.waiting()

    @property
    def held(self) -> Step | None:
        """The step whose batch was handed out last."""
        return self.steps.held

    # Forwards.

    def call(self, m: int, features: Any) -> Any:
        """Replaces the forward of module m; m: its first call. After the block, its own forward."""
        if self.over:
            return self.modules[m].plain(features)
        self.device.refuse_capture()
        self._looks[threading.get_ident()] += 1
        return self.schedule.call(m, features, this_call())

    def forward(self, m: int, features: Any) -> Any:
        """The output of module m, bitwise that of its own forward; m: its first call."""
        self.backward.training_thread = threading.get_ident()
        self.backward.end_failed_pass()
        self.check()
        call = this_call()
        self._forwards += call.trains
        if call.inside_backward:
            self.backward.send_gathered()  # before the control word
        if call.training:
            self.steps.idle[m] = 0
            self._fetch()
        handed_out = self.handles[m].handed_out()  # notes what was perhaps written, so it comes first
        self._drop_written()
        choices = self._choices.of(m, call, features, handed_out=handed_out)
        agreed = self._exchange_modes(m, choices)
        decision = choices[agreed.step]
        step, m, why = decision.step, decision.m, decision.why
        if not call.training:
            self.steps.evaluate(m, step, known=agreed.mode == Mode.PLAIN, elsewhere=self.elsewhere)
        elif step is not None and call.trains:
            self._begin(step, m, features)
        if why is not None:
            self.plain_runs.report(decision)
        if step is not None and call.trains:  # backward may come back to it
            step.modules[m].used = step.open = True
            step.fetches_reassigned = agreed.mode.served and self._fetches_reassigned(m, step)
            self.forwarded = step
            self._known = agreed.newest
            self._fetch()
        if step is not None and agreed.mode.served:
            self._count(m, features, call, None)
            return self._run_served(m, step, features, agreed.mode)
        self._executor.wire_gate.stop_expecting_control_word()
        if step is not None and decision.mode.served:
            others = name_ranks([rank for rank, mode in enumerate(agreed.modes) if not mode.served])
            why = f"{others} could not use what was fetched ahead"
            self.plain_runs.note_step(m, step, why, here=True)
        self._count(m, features, call, why or WARM_UP)
        foreign, stale = agreed.mode == Mode.FOREIGN, agreed.mode == Mode.STALE
        return self.schedule.run_plainly(m, step, features, training=call.training, foreign=foreign, stale=stale)

    # Looking at tables.

    def flush(self, modules: Iterable[int] | None = None) -> None:
        """Wait until all received gradients are applied to the tables of `modules` (None: all). In any thread.

        No collective.
        """
        self.backward.end_failed_pass()
        self._executor.wire_gate.stop_expecting_control_word()
        with self._recorder.wait("exclusive gradients"):
            for m in range(len(self.modules)) if modules is None else modules:
                self._program.wait(m)
                self.schedule.await_rows(m)

    def before_collective(self) -> None:
        """The program exchanges something, in whatever thread, maybe inside backward."""
        if in_backward():
            self.backward.send_gathered()

    def written(self, modules: Iterable[int]) -> None:
        """The tables of `modules` were written by hand. From any thread."""
        if self._renewing == threading.get_ident():
            return
        self._written.extend(modules)

    def check(self) -> None:
        """Raise the first error of a worker."""
        self._executor.check()

    # The end.

    def explain(self, error: BaseException) -> PeerError | None:
        """An error that names the lost rank, if `error` is gloo's, of an exchange outside of fscomm."""
        return self._executor.peers.explain(error)

    def close(self, reason: str, *, at_exit: bool = False) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines."""
        self.backward.close("")
        self._executor.close(reason, at_exit=at_exit)

    def abort(self, reason: str) -> None:
        """End everything that blocks; the other ranks receive `reason`."""
        self.backward.close(reason)
        self._executor.abort(reason)

    # For `Backward`.

    def step_to_come(self, number: int | None) -> Step | None:
        """The step of this number, if the user holds it or will get it."""
        return next((step for step in self.steps.to_come() if step.number == number), None)

    def pass_is_over(self) -> None:
        """A backward pass is over. The program may look at tables that it has handed out in a way that is not seen."""
        if handed_out := [m for m, handles in self.handles.items() if handles.handed_out()]:
            self.flush(handed_out)
        self._fetch()

    # Inside.

    def _handles(self, m: int) -> Handles:
        """Of the tables of module m, its first call."""
        kernels = [kernel for g in self.served.groups[m] for kernel in self.served.kernels[g]]
        tables = [tensor for kernel in kernels for tensor in memory(kernel, ("weights", *STATES)).values()]
        written = partial(self.written, [m])
        return Handles(
            (each for kernel in kernels for each in tensors_of(kernel)), tables, partial(self._before_look, m), written
        )

    def _fetch(self) -> None:
        """Start to fetch the exclusive rows of the steps whose time it is."""
        for step in self.steps.to_fetch(self._known):
            self._program.fetch(step, range(len(self.modules)), background=True)

    def _exchange_ids(
        self,
        status: int,
        given: Sequence[Parts | None] = (),
        moved: Mark = None,
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> Pending[ExchangedIds]:
        """Let the ids worker exchange the ids of a batch after those of the newest step.

        states: by module, what guards begin with where they have to start over.
        """
        number, newest = self._number, self._newest
        before = newest.arrived if newest is not None else None
        forwards, measured = self.schedule.forwards(number), self.schedule.unsent()
        arrived = self._executor.exchange_ids(number, before, status, given, moved, forwards, measured, states)
        if newest is not None:
            newest.planned = arrived
        return arrived

    def _begin(self, step: Step, m: int, features: Any) -> None:
        """A forward of module m in training belongs to `step`."""
        self._recorder.trains(step.number)
        self.steps.begin(step, elsewhere=self.elsewhere)
        step.modules[self.served.calls[m].start].calls += 1
        if step.batch is not None:
            why = self.finder.learn(m, step.batch, features)
            if why is not None:
                self.plain_runs.refuse(m, why)

    def _stale(self, m: int, step: Step) -> str | None:
        """Why the rows of module m's ids, as they were known ahead, are not those of its forward of `step`."""
        return self.modules[m].guard.decide(step.number, step.ids.records[m])

    def _exchange_modes(self, m: int, choices: Mapping[int, Decision]) -> Agreed:
        step, before = self.held, self.forwarded
        held = NO_STEP if self.elsewhere or step is None else step.number
        return self._executor.control_words.exchange(
            self.modules[m].name,
            m,
            held=held,
            passes=sum(before.modules[call].backwards for call in self.served.calls[m]) if before is not None else 0,
            newest=self._number - 1,
            modes={number: choice.mode for number, choice in choices.items()},
        )

    def _run_served(self, m: int, step: Step, features: Any, mode: Mode) -> Any:
        """With the rows fetched ahead, or what is left of them."""
        groups, fetched = self.served.groups[m], step.modules[m].fetched
        reassigned = self._fetches_reassigned(m, step)
        try:
            self._before_rows(m, step, on_all_ranks=reassigned)
            if reassigned:
                self._program.fetch_reassigned(step, m)
        finally:
            step.fetches_reassigned = False
        self._executor.wire_gate.stop_expecting_control_word()
        hypers: dict[int, list[Hyper]] = {g: [] for g in groups}
        for g in groups:
            for kernel in self.served.kernels[g]:
                with self.served.turns_of(kernel).turn():
                    hypers[g].append(take_hyper(kernel))
        if mode >= Mode.FETCH:  # the step before had no backward pass, maybe not even a forward
            self._program.fetch(step, [m], background=False)
        if mode >= Mode.FETCH_ALL:  # there was an unexpected update
            self._program.fetch(step, [m], background=True)
        if reassigned:
            with self._recorder.wait(f"{self.modules[m].guard.reassigns} rows", step=step.number):
                fetched[REASSIGNED].done.result()
        with self._recorder.wait("exclusive rows", step=step.number):
            fetched[EXCLUSIVE].done.result()
        step.hypers.update(hypers)
        return self.output(m, step, features, 0)

    def _fetches_reassigned(self, m: int, step: Step) -> bool:
        """Whether a forward of module m, with rows fetched ahead, looks up rows that it reassigns, on any rank."""
        if self.modules[m].guard.reassigns is None:
            return False
        return any(step.ids.ahead(g).fetch[REASSIGNED].legs[0].bound for g in self.served.groups[m])

    def _before_rows(self, m: int, step: Step, *, on_all_ranks: bool) -> None:
        """Module m, and rows of this rank that its forward reassigns, become what that forward would make of them.

        on_all_ranks: some rank is about to fetch such rows. Then all ranks wait here for updates of theirs, as the
        exchange of a rank that comes early would keep others from sending the gradients that it waits for.
        """
        guard, record = self.modules[m].guard, step.ids.records[m]
        if on_all_ranks or guard.reassigns_rows(record):
            self._program.await_reassigned(step, m, on_all_ranks=on_all_ranks)
        self._renewing = threading.get_ident()
        try:
            guard.before_rows(record)
        finally:
            self._renewing = None

    def output(self, m: int, step: Step, features: Any, number: int) -> Any:
        """Of a forward with rows fetched ahead; number: of the forward in its step. What those before it need is here.
        Blocks until its own rows are."""
        groups, ids = self.served.groups[m], step.ids
        with self._recorder.wait("collision rows", step=step.number):
            step.modules[m].fetched[number].done.result()
        received = {g: (ids.ahead(g).merge, ids.ahead(g).buffer) for g in groups}
        tensors = [tensor for merge, buffer in received.values() for tensor in (merge.index, buffer)]
        given = ids.given[m][number]
        self.device.reads(*given, *tensors)
        rows = [
            gradient_hook(
                codec.rows.decode(merge.output(buffer, number)), partial(self.backward.take_gradient, step, number, g)
            )
            for codec, (g, (merge, buffer)) in zip(self.modules[m].codecs, received.items(), strict=True)
        ]
        if not self.modules[m].partly_served:
            return self.modules[m].output(features, given, rows)
        with self._executor.peers.within():
            output = self.modules[m].output(features, given, rows)
        return self._watched(m, step, output)

    def run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool, stale: bool = False) -> Any:
        """The module's own forward. Its kernels read and update in program order.

        foreign: on some rank the features are not those that were announced. stale: they are, but not the rows that
        were known ahead.
        """
        outside, guard = self.reading, self.modules[m].guard
        reassigns = guard.reassigns is not None
        self.reading = ANY if step is None or foreign or reassigns else whole(step.number)
        if reassigns:
            self.flush([m])  # it may make any rows new
        try:
            with self._executor.peers.within(), guard.around_own_forward(as_announced=stale):
                output = self.modules[m].plain(features)
        finally:
            self.reading = outside
        self._to_announce.ran(m)
        return self._watched(m, step, output)

    def _watched(self, m: int, step: Step | None, output: Any) -> Any:
        """What a forward gave that is, at least in part, the module's own: its exchanges are waited for later."""
        self.modules[m].around_wait(output, self._executor.peers.within)
        if torch.is_grad_enabled():
            # On every rank, unlike the kernels' updates: a rank may hold no table of the module.
            held = (lambda: None) if step is None else weakref.ref(step)  # a loss that is kept does not keep it
            self.modules[m].on_gradient(output, lambda: self.backward.reach_plain(m, held()))
        return output

    def may_read(self, group: int) -> Rows:
        """A kernel is about to read in a plain forward; maybe inside backward (activation checkpointing)."""
        self.backward.send_gathered()
        self.flush([self.served.module_of[group]])
        return self.reading

    def take_plain_update(self, group: int, kernel: int, read: Rows | None, update: ApplyUpdate) -> None:
        """Backward has reached a kernel that ran plainly."""
        self.backward.take_plain_update(group, kernel, read, update)

    def _before_look(self, m: int) -> None:
        """The program looks at the tables of module m; maybe in a hook inside backward."""
        thread = threading.get_ident()
        if self._renewing == thread:
            return
        self._looks[thread] += 1
        if in_backward():
            self.backward.send_gathered()
        self.flush([m])

    def _drop_written(self) -> None:
        """What was fetched of tables that were written by hand since is stale, ahead of a forward to come."""
        while self._written:
            for call in self.served.calls[self._written.popleft()]:
                for step in self.steps.to_come():
                    if not step.modules[call].used:
                        step.modules[call].fetched.clear()

    def _count(self, m: int, features: Any, call: Call, why: str | None) -> None:
        """Record a forward that was served, or ran plainly because of `why`."""
        if call.training and not call.inside_backward:
            for size in self.modules[m].forward_sizes(features):
                self._recorder.forward(size.name, size.ids, size.nbytes, size.plainly or why)
