"""The operations on tables, made in program order: what each waits for, and which rows fetched ahead it makes stale.

Every method submits and returns. Methods are called in program order, by the thread that trains or runs backward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fscomm.device import Device
from fscomm.engine.step import Fetched, Step
from fscomm.engine.table_order import TableOrder
from fscomm.exchange.executor import Executor
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.operations import (
    EXCLUSIVE,
    REASSIGNED,
    Class,
    Kind,
    Operation,
    Rows,
    class_of_reassigned,
    collision,
    exclusive,
    not_reassigned,
    reassigned,
    used_first,
    used_later,
    whole,
)
from fscomm.exchange.worker import Pending
from fscomm.tables.binding import ServedModules
from fscomm.tables.lookups import ApplyUpdate


class Program:
    """Of the tables of all served modules on this rank. to_come: the steps that the user holds or will get."""

    def __init__(
        self,
        executor: Executor,
        served: ServedModules,
        device: Device,
        to_come: Callable[[], Iterable[Step]],
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
        rows = {m: self._ahead(m, step, exclusive(step.number, step.follows)) for m in modules}
        operation = self._fetch(step, rows, EXCLUSIVE)
        self._note_fetched(step, operation, self._executor.submit(operation))

    def fetch_collision(self, step: Step, m: int) -> None:
        """The collision rows of module m."""
        operations = [self._fetch_piece(step, [m], piece) for piece in range(step.num_parts)]
        done = self._executor.submit_urgent(operations, expecting=lambda: False)
        for operation, fetched in zip(operations, done, strict=True):
            self._note_fetched(step, operation, fetched)

    def fetch_reassigned(self, step: Step, m: int) -> None:
        """The rows of module m that the forward of `step` has just made new."""
        name = self._served.modules[m].guard.reassigns
        assert name is not None
        operation = self._fetch(step, {m: reassigned(step.number)}, REASSIGNED, class_of_reassigned(name))
        (done,) = self._executor.submit_urgent([operation], expecting=lambda: False)
        self._note_fetched(step, operation, done)

    def await_reassigned(self, step: Step, m: int, *, on_all_ranks: bool) -> None:
        """Block until the rows that the forward of `step` is about to reassign have all updates so far.

        on_all_ranks: all ranks do so. Then no rank is further on and holds back what another one waits for.
        """
        updates = self._order[m].before(reassigned(step.number))
        if on_all_ranks:
            self._executor.release_up_to(updates)
            for update in updates:
                update.result()
        else:
            self._await(updates)

    def send_part(self, step: Step, gradients: Gradients, part: int) -> list[Pending[None]]:
        """The collision gradients of a part that is not the last one."""
        assert step.planned is not None
        pieces = part, step.num_parts + part
        return self._executor.submit_later([self._send(step, gradients, gradients.groups, piece) for piece in pieces])

    def update(
        self,
        step: Step,
        gradients: Gradients,
        sent: Sequence[Pending[None]],
        successor: Step | None,
        to_fetch: Sequence[int],
        *,
        expecting: Callable[[], bool],
    ) -> None:
        """All classes of `gradients`, when their last part is there; behind each collision class, the collision rows
        that are next: those of `successor` for the modules `to_fetch`.

        sent: the gradients of the parts before.
        """
        modules = self._served.modules_of(gradients.groups)
        shared, parts = collision(step.number, step.next), step.num_parts
        soon = dict.fromkeys(modules, used_first(shared, step.next) if parts > 1 else shared)
        urgent = [
            self._send(step, gradients, gradients.groups, parts - 1),
            self._update(step, gradients, soon, 0, sent),
        ]
        fetches = []
        if successor is not None and to_fetch:
            fetches = [self._fetch_piece(successor, to_fetch, piece) for piece in range(successor.num_parts)]
        done = self._executor.submit_urgent([*urgent, *fetches[:1]], expecting=expecting)
        updated = [done[1]]
        self._note_updated(soon, done[1])
        fetched = done[2:]
        unhurried = []
        later = dict.fromkeys(modules, used_later(shared, step.next))
        if parts > 1:
            unhurried = [
                self._send(step, gradients, gradients.groups, 2 * parts - 1),
                self._update(step, gradients, later, 1, sent),
            ]
        if unhurried or fetches[1:]:
            done = self._executor.submit_later([*unhurried, *fetches[1:]])
            fetched += done[len(unhurried) :]
        if unhurried:
            updated.append(done[1])
            self._note_updated(later, done[1])
        for fetch, rows_are_here in zip(fetches, fetched, strict=True):
            assert successor is not None
            self._note_fetched(successor, fetch, rows_are_here)
        own = exclusive(step.number, step.next)
        for m in modules:
            of_module = [g for g in gradients.groups if self._served.module_of[g] == m]
            self._executor.submit(self._send(step, gradients, of_module, EXCLUSIVE))
            # Gradients of bags with rows of several classes have come with the most urgent one.
            before = updated if self._served.pooled(m) else []
            update = self._executor.submit(self._update(step, gradients, {m: own}, EXCLUSIVE, before))
            self._note_updated({m: own}, update)

    def update_plainly(self, m: int, group: int, kernel: int, rows: Rows, update: ApplyUpdate) -> None:
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
        self._await(self._order[m].pending())

    def _await(self, pending: Sequence[Pending[None]]) -> None:
        if not all(update.done() for update in pending):
            self._executor.release_all()
        for update in pending:
            update.result()

    def _fetch_piece(self, step: Step, modules: Sequence[int], piece: int) -> Operation:
        """Of the collision class. Of a pooled table all rows of the bags that hold a collision row are read."""
        rows = {}
        for m in modules:
            read = whole(step.number) if self._served.pooled(m) else collision(step.number, step.follows)
            rows[m] = self._ahead(m, step, read if piece else used_first(read, step.number))
        return self._fetch(step, rows, piece)

    def _ahead(self, m: int, step: Step, rows: Rows) -> Rows:
        """Those of `rows` that may be fetched before the forward of `step`."""
        return rows if self._served.modules[m].guard.reassigns is None else not_reassigned(rows, step.number)

    def _fetch(self, step: Step, rows: Mapping[int, Rows], piece: int, of_class: Class | None = None) -> Operation:
        return Operation(
            kind=Kind.FETCH,
            of_class=of_class or _class_of(piece),
            rows=rows,
            groups=[g for m in rows for g in self._served.groups[m]],
            after=[each for m in rows for each in self._order[m].before(rows[m])],
            ids=step.arrived,
            piece=piece,
        )

    def _send(self, step: Step, gradients: Gradients, groups: Sequence[int], piece: int) -> Operation:
        assert step.planned is not None
        return Operation(
            kind=Kind.SEND_BACK,
            of_class=_class_of(piece),
            groups=groups,
            after=[step.planned],
            ids=step.planned,
            gradients=gradients,
            piece=piece,
        )

    def _update(
        self,
        step: Step,
        gradients: Gradients,
        rows: Mapping[int, Rows],
        of_class: int,
        sent: Sequence[Pending[None]],
    ) -> Operation:
        """sent: what brings the gradients, but for the operation just before."""
        return Operation(
            kind=Kind.UPDATE,
            of_class=_class_of(of_class),
            rows=rows,
            groups=[g for g in gradients.groups if self._served.module_of[g] in rows],
            after=[*sent, *(each for m in rows for each in self._order[m].before(rows[m]))],
            ids=step.planned,
            gradients=gradients,
            piece=of_class,
        )

    def _note_fetched(self, step: Step, operation: Operation, done: Pending[None]) -> None:
        for m, rows in operation.rows.items():
            step.modules[m].fetched[operation.piece] = Fetched(done=done, rows=rows)

    def _note_updated(self, rows: Mapping[int, Rows], update: Pending[None]) -> None:
        for m, of_module in rows.items():
            self._order[m].updated(of_module, update)
        for step in self._to_come():
            for m, of_module in rows.items():
                for call in self._served.calls[m]:
                    module = step.modules[call]
                    if not module.used:
                        stale = [each for each, fetched in module.fetched.items() if fetched.rows.may_meet(of_module)]
                        for piece in stale:
                            del module.fetched[piece]


def _class_of(number: int) -> Class:
    """Of a piece, or of a class of rows."""
    return Class.EXCLUSIVE if number == EXCLUSIVE else Class.COLLISION
