"""The steps of the user's loop: announced one batch ahead, then held, then left behind."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fscomm.engine.table_access import TableAccess
from fscomm.exchange.connections import Connections
from fscomm.exchange.id_exchange import BATCH, DRAWS, END, FAILED
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.step import ExchangedIds, ModuleInStep, Step
from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.report.recorder import Recorder
from fsranks.errors import MismatchError


class AnnouncedSteps:
    """Exchanges the ids of every announced batch, and starts to fetch its exclusive rows. For the training thread.

    Attributes:
        held: the step whose batch the user has.
        forwarded: the step of the last forward that backward may come back to.
    """

    def __init__(
        self, served: ServedModules, connections: Connections, tables: TableAccess, recorder: Recorder
    ) -> None:
        self._served = served
        self._connections = connections
        self._tables = tables
        self._recorder = recorder
        self._announced: deque[Step] = deque()
        self._to_fetch: deque[Step] = deque()  # announced, and too early to fetch
        self._written: deque[int] = deque()  # modules whose tables the user wrote
        self._newest: Step | None = None
        self._ended: Pending[ExchangedIds] | None = None
        self._number = 0
        self.held: Step | None = None
        self.forwarded: Step | None = None

    def announce(self, given: Sequence[Any], missing: Sequence[str | None], *, draws: bool = False) -> None:
        """The next batch: the KJT for each module, or None where there is none to prefetch, and why. Does not block.

        draws: loader and training draw from the same random numbers here.
        """
        self._connections.check()
        for module, kjt in zip(self._served.modules, given, strict=True):
            if kjt is not None:
                module.meet(kjt)
        before = self._newest
        step = Step(
            number=self._number,
            follows=before.number if before is not None else None,
            modules=[
                ModuleInStep(features=None if kjt is None else Snapshot(kjt), missing=why)
                for kjt, why in zip(given, missing, strict=True)
            ],
            arrived=self._exchange(DRAWS if draws else BATCH, given),
        )
        self._number += 1
        self._newest = step
        if before is None:
            self._announced.clear()  # a loop that was left, and another one starts
        else:
            before.next = step.number
        self._announced.append(step)
        self._to_fetch.append(step)
        if self.held is None or not self.held.open:
            self.fetch()

    def draws(self) -> bool:
        """Whether `draws` was said of the batch announced last on any rank. Blocks until all ranks announced it."""
        assert self._newest is not None
        return self._newest.arrived.result().verdict.draws

    def restart(self) -> None:
        """Another loop begins: the batch announced last will not be held. Does not block."""
        if self._newest is not None:
            self.end()

    def end(self, *, failed: bool = False) -> None:
        """There is no next batch: the loader ended, or raised. Does not block."""
        self._ended = self._exchange(FAILED if failed else END, [])
        self._newest = None

    def hold(self) -> None:
        """The user is about to get the oldest announced batch. Blocks until all ranks have theirs.

        Raises:
            MismatchError: some ranks have no batch, or failed to load it.
        """
        step = self._announced.popleft()
        if self.held is not None:
            self._tables.forget(self.held, range(len(self._served.modules)))
        with self._recorder.wait("ids", step=step.number):
            verdict = step.arrived.result().verdict
        self.held = step
        if verdict.stop is not None:
            raise MismatchError(verdict.stop)

    def await_end(self) -> None:
        """Block until all ranks said that there is no more batch."""
        if self._ended is not None:
            verdict = self._ended.result().verdict
            if verdict.stop is not None:
                raise MismatchError(verdict.stop)

    def fetch(self) -> None:
        """Start to fetch the exclusive rows of the steps that waited for it.

        An update between the fetch and the forward makes fetched rows stale, except an update of the step just before:
        that one touches none of these rows. So rows are fetched once the held batch had its backward pass, or the next
        batch its forward.
        """
        while self._to_fetch:
            self._tables.fetch_exclusive(self._to_fetch.popleft(), range(len(self._served.modules)))

    def written(self, modules: Iterable[int]) -> None:
        """The tables of `modules` were written by hand. From any thread."""
        self._written.extend(modules)

    def drop_written(self) -> None:
        """What was fetched of tables that were written by hand since is stale, ahead of a forward to come."""
        while self._written:
            for call in self._served.calls[self._written.popleft()]:
                for step in (*self._announced, self.held):
                    if step is not None and not step.modules[call].used:
                        step.modules[call].exclusive = step.modules[call].collision = None

    def to_come(self, number: int | None) -> Step | None:
        """The step of this number, if the user holds it or will get it."""
        return next((each for each in (self.held, *self._announced) if each and each.number == number), None)

    def _exchange(self, status: int, given: Sequence[Any]) -> Pending[ExchangedIds]:
        """Let the ids worker exchange the ids of a batch after those of the newest step."""
        number, newest = self._number, self._newest
        before = newest.arrived if newest is not None else None
        arrived = self._connections.submit("ids", lambda: self._exchange_in_worker(number, before, status, given))
        if newest is not None:
            newest.planned = arrived
        return arrived

    def _exchange_in_worker(
        self, number: int, before: Pending[ExchangedIds] | None, status: int, given: Sequence[Any]
    ) -> ExchangedIds:
        self._connections.wire_gate.wait()  # collision rows of the step before are needed sooner than these ids
        served = self._served
        parts: list[Any] = [None] * len(served.modules)
        requests: list[Any] = [None] * len(served.layouts)
        with self._recorder.span("ids", step=number if status in (BATCH, DRAWS) else None):
            for m, kjt in enumerate(given):
                if kjt is not None:
                    groups = served.groups[m]
                    parts[m], requests[groups.start : groups.stop] = self._prepare(m, kjt)
            ids = self._connections.ids.run(number, before.result() if before else None, status, requests)
        self._count(ids)
        return replace(ids, parts=parts)

    def _prepare(self, m: int, kjt: Any) -> tuple[Any, list[Any]]:
        """As `Binding.prepare`; nothing where that fails because another thread compiles: the module runs plainly then.

        While torch.compile traces in the training thread, torch says so in all threads (torch 2.13). TorchRec takes
        that for an export, and refuses a KJT without ids (TorchRec 1.9).
        """
        prepare = self._served.modules[m].prepare
        try:
            return prepare(kjt)
        except RuntimeError:
            if torch.compiler.is_compiling():
                return None, [None] * len(self._served.groups[m])
        return prepare(kjt)  # it has ended compiling since, or the error is another one and comes again

    def _count(self, ids: ExchangedIds) -> None:
        """Tell the recorder what the step will look up, and the ids that were exchanged for it."""
        for layout, ahead in zip(self._served.layouts, ids.groups, strict=True):
            if ahead is not None:
                self._recorder.count(
                    layout.module,
                    ids.number,
                    occurrences=ahead.occurrences,
                    colliding=ahead.colliding,
                    unique=ahead.rows[0],
                    unique_colliding=ahead.rows[1],
                )
                self._recorder.bytes(layout.module, ids.number, "ids", *ahead.id_bytes)
