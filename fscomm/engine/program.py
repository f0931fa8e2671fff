"""The operations on tables, made in program order: what each waits for, and which rows fetched ahead it makes stale.

Every method submits and returns. Methods are called in program order, by the thread that trains or runs backward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fscomm.device import Device
from fscomm.engine.step import Fetched, Step
from fscomm.engine.table_order import TableOrder
from fscomm.exchange.executor import Executor
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.operations import Class, Kind, Operation, Rows, collision, exclusive, whole
from fscomm.exchange.worker import Pending
from fscomm.tables.binding import ServedModules
from fscomm.tables.lookups import Update


class Program:
    """Of the tables of all served modules on this rank. to_come: the steps that the user holds or will get."""

    def __init__(
        self, executor: Executor, served: ServedModules, device: Device, to_come: Callable[[], Iterable[Step]]
    ) -> None:
        self._executor = executor
        self._served = served
        self._to_come = to_come

        def is_done(update: Pending[None]) -> bool:
            return update.done() and device.is_done(update.mark)

        orders = [TableOrder(is_done) for _ in served.modules]
        self._order = [orders[calls.start] for calls in served.calls]

    def fetch_exclusive(self, step: Step, modules: Sequence[int]) -> None:
        """The exclusive rows of `modules`."""
        operation = self._fetch(step, dict.fromkeys(modules, exclusive(step.number, step.follows)), Class.EXCLUSIVE)
        self._note_fetched(step, operation, self._executor.submit(operation))

    def fetch_collision(self, step: Step, m: int) -> None:
        """The collision rows of module m."""
        operation = self._fetch(step, {m: self._read_with_collision_rows(step, m)}, Class.COLLISION)
        (done,) = self._executor.submit_urgent([operation], expecting=lambda: False)
        self._note_fetched(step, operation, done)

    def update(
        self,
        step: Step,
        gradients: Gradients,
        successor: Step | None,
        to_fetch: Sequence[int],
        *,
        expecting: Callable[[], bool],
    ) -> None:
        """Both classes of `gradients`; behind the collision class, the collision rows that are next.

        Those are the rows of `successor` for the modules `to_fetch`.
        """
        modules = self._served.modules_of(gradients.groups)
        own, shared = exclusive(step.number, step.next), dict.fromkeys(modules, collision(step.number, step.next))
        urgent = self._send_and_update(step, gradients, shared, Class.COLLISION)
        fetch = None
        if successor is not None and to_fetch:
            to_read = {m: self._read_with_collision_rows(successor, m) for m in to_fetch}
            fetch = self._fetch(successor, to_read, Class.COLLISION)
        done = self._executor.submit_urgent([*urgent, *([fetch] if fetch else [])], expecting=expecting)
        self._note_updated(shared, done[1])
        if successor is not None and fetch is not None:
            self._note_fetched(successor, fetch, done[2])
        for m in modules:
            kept = [done[1]] if self._served.pooled(m) else []  # the gradients of bags with rows of both classes
            for operation in self._send_and_update(step, gradients, {m: own}, Class.EXCLUSIVE, kept):
                last = self._executor.submit(operation)
            self._note_updated({m: own}, last)

    def update_plainly(self, m: int, group: int, kernel: int, rows: Rows, update: Update) -> None:
        """One kernel, with gradients that TorchRec has brought to this rank."""
        operation = Operation(
            kind=Kind.UPDATE,
            of_class=Class.PLAIN,
            rows={m: rows},
            after=self._order[m].before(rows),
            plainly=(group, kernel, update),
        )
        self._note_updated(operation.rows, self._executor.submit(operation))

    def wait(self, m: int) -> None:
        """Block until the tables of module m have all updates so far. From any thread."""
        pending = self._order[m].pending()
        if not all(update.done() for update in pending):
            self._executor.hurry()
        for update in pending:
            update.result()

    def _fetch(self, step: Step, rows: Mapping[int, Rows], of_class: Class) -> Operation:
        return Operation(
            kind=Kind.FETCH,
            of_class=of_class,
            rows=rows,
            groups=[g for m in rows for g in self._served.groups[m]],
            after=[each for m in rows for each in self._order[m].before(rows[m])],
            ids=step.arrived,
            piece=0 if of_class is Class.COLLISION else -1,
        )

    def _send_and_update(
        self,
        step: Step,
        gradients: Gradients,
        rows: Mapping[int, Rows],
        of_class: Class,
        after: Sequence[Pending[None]] = (),
    ) -> list[Operation]:
        """The update has to wait for more than the gradients have, but those travel in order anyway."""
        assert step.planned is not None
        groups = [g for g in gradients.groups if self._served.module_of[g] in rows]
        before: list[Pending[Any]] = [step.planned, *after]
        before += [each for m in rows for each in self._order[m].before(rows[m])]
        return [
            Operation(
                kind=kind,
                of_class=of_class,
                rows=rows,
                groups=groups,
                after=before,
                ids=step.planned,
                gradients=gradients,
                piece=0 if of_class is Class.COLLISION else -1,
            )
            for kind in (Kind.SEND_BACK, Kind.UPDATE)
        ]

    def _read_with_collision_rows(self, step: Step, m: int) -> Rows:
        """What a fetch of the collision class reads: of a pooled table all rows of the bags that hold such a row."""
        return whole(step.number) if self._served.pooled(m) else collision(step.number, step.follows)

    def _note_fetched(self, step: Step, operation: Operation, done: Pending[None]) -> None:
        for m, rows in operation.rows.items():
            step.modules[m].fetched[operation.of_class] = Fetched(done=done, rows=rows)

    def _note_updated(self, rows: Mapping[int, Rows], update: Pending[None]) -> None:
        for m, of_module in rows.items():
            self._order[m].updated(of_module, update)
        for step in self._to_come():
            for m, of_module in rows.items():
                for call in self._served.calls[m]:
                    module = step.modules[call]
                    if not module.used:
                        stale = [each for each, fetched in module.fetched.items() if fetched.rows.may_meet(of_module)]
                        for of_class in stale:
                            del module.fetched[of_class]
