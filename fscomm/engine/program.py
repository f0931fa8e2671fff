"""The operations on tables, made in program order: what each waits for, and which rows fetched ahead it makes stale.

Every method but the waits submits and returns. Methods are called in program order, by the thread that trains or runs
backward. What classes of rows a step has, and when each is due, is data (`RowClasses`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fscomm.device import Device
from fscomm.engine.step import Fetched, Step
from fscomm.engine.table_order import TableOrder
from fscomm.exchange.executor import Executor
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.operations import (
    REASSIGNED,
    SHARED_ROWS,
    Class,
    Due,
    Kind,
    Operation,
    RowClass,
    Rows,
    class_of_reassigned,
    not_reassigned,
    reassigned,
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

    def fetch(self, step: Step, modules: Sequence[int], *, background: bool) -> None:
        """The rows of `modules` that travel in the background, or all others, which a forward of `step` needs now."""
        classes = [each for each in step.classes.ahead if (each.due is Due.BACKGROUND) == background]
        fetches = [self._fetch_ahead(step, modules, each) for each in classes]
        self._note_fetched(step, fetches, self._executor.submit(fetches, Due.BACKGROUND if background else Due.NOW))

    def fetch_reassigned(self, step: Step, m: int) -> None:
        """The rows of module m that the forward of `step` has just made new."""
        name = self._served.modules[m].guard.reassigns
        assert name is not None
        fetch = self._fetch(step, {m: reassigned(step.number)}, REASSIGNED, class_of_reassigned(name))
        self._note_fetched(step, [fetch], self._executor.submit([fetch], Due.NOW))

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

    def send(self, step: Step, gradients: Gradients, numbers: Sequence[int]) -> None:
        """Gradients that are ready before others of their forward. numbers: of the strips that travel."""
        operations = [self._send(step, gradients, each, SHARED_ROWS) for each in numbers]
        gradients.sent.extend(self._executor.submit(operations, Due.NEXT))

    def update(
        self,
        step: Step,
        m: int,
        gradients: Gradients,
        successor: Step | None,
        to_fetch: Sequence[int],
        *,
        expecting: Callable[[], bool],
    ) -> None:
        """All classes of the `gradients` of a forward of module m, in the order in which they are due; behind each, the
        rows as urgent as it that `successor` needs for the modules `to_fetch`.

        expecting: whether a control word will follow soon, or rows that a forward reassigns.
        """
        updated: list[Pending[None]] = []
        for due in Due:
            operations, rows, fetches = [], [], []
            for each in step.classes.back:
                if each.due is due:
                    rows.append({m: each.narrowed(each.rows(step.number, step.next), step.next)})
                    # Background rows have gradients of their own, unless units mix classes: those come with the others.
                    with_others = due is not Due.BACKGROUND or self._served.mixes_classes(m)
                    after = [*gradients.sent, *updated] if with_others else []
                    operations.append(self._send(step, gradients, each.sends, each))
                    operations.append(self._update(step, gradients, rows[-1], each, after))
            if successor is not None and to_fetch and due is not Due.BACKGROUND:
                due_now = [each for each in successor.classes.ahead if each.due is due]
                fetches = [self._fetch_ahead(successor, to_fetch, each) for each in due_now]
            if not operations and not fetches:
                continue
            # In one call, so that nothing comes between the update of a class and the look-up of the next step in it.
            done = self._executor.submit([*operations, *fetches], due, expecting=expecting)
            for of_class, update in zip(rows, done[1 : len(operations) : 2], strict=True):
                self._note_updated(of_class, update)
                updated.append(update)
            if successor is not None:
                self._note_fetched(successor, fetches, done[len(operations) :])

    def update_plainly(self, m: int, group: int, kernel: int, rows: Rows, update: ApplyUpdate) -> None:
        """One kernel, with gradients that TorchRec has sent to this rank."""
        operation = Operation(
            kind=Kind.UPDATE,
            of_class=Class.PLAIN,
            rows={m: rows},
            after=self._order[m].before(rows),
            plainly=(group, kernel, update),
        )
        (done,) = self._executor.submit([operation])
        self._note_updated(operation.rows, done)

    def wait(self, m: int) -> None:
        """Block until the tables of module m have all updates so far. From any thread."""
        self._await(self._order[m].pending())

    def _await(self, pending: Sequence[Pending[None]]) -> None:
        if not all(update.done() for update in pending):
            self._executor.release_all()
        for update in pending:
            update.result()

    def _fetch_ahead(self, step: Step, modules: Sequence[int], each: RowClass) -> Operation:
        """Of one class, but for rows that the forward of `step` will reassign."""
        rows = {}
        for m in modules:
            read = each.rows(step.number, step.follows)
            # A unit that mixes classes travels with the most urgent one, and is read whole.
            if each.due is not Due.BACKGROUND and self._served.mixes_classes(m):
                read = whole(step.number)
            read = each.narrowed(read, step.number)
            reassigns = self._served.modules[m].guard.reassigns is not None
            rows[m] = not_reassigned(read, step.number) if reassigns else read
        return self._fetch(step, rows, each.number, each.of_class)

    def _fetch(self, step: Step, rows: Mapping[int, Rows], number: int, of_class: Class) -> Operation:
        return Operation(
            kind=Kind.FETCH,
            of_class=of_class,
            rows=rows,
            groups=[g for m in rows for g in self._served.groups[m]],
            after=[update for m in rows for update in self._order[m].before(rows[m])],
            ids=step.arrived,
            number=number,
        )

    def _send(self, step: Step, gradients: Gradients, number: int, each: RowClass) -> Operation:
        assert step.planned is not None
        return Operation(
            kind=Kind.SEND_BACK,
            of_class=each.of_class,
            groups=gradients.groups,
            after=[step.planned],
            ids=step.planned,
            gradients=gradients,
            number=number,
        )

    def _update(
        self,
        step: Step,
        gradients: Gradients,
        rows: Mapping[int, Rows],
        each: RowClass,
        after: Sequence[Pending[None]],
    ) -> Operation:
        """after: the operations that send the gradients, except the one submitted just before."""
        return Operation(
            kind=Kind.UPDATE,
            of_class=each.of_class,
            rows=rows,
            groups=gradients.groups,
            after=[*after, *(update for m in rows for update in self._order[m].before(rows[m]))],
            ids=step.planned,
            gradients=gradients,
            number=each.number,
        )

    def _note_fetched(self, step: Step, fetches: Sequence[Operation], done: Sequence[Pending[None]]) -> None:
        for fetch, rows_are_here in zip(fetches, done, strict=True):
            for m, rows in fetch.rows.items():
                step.modules[m].fetched[fetch.number] = Fetched(done=rows_are_here, rows=rows)

    def _note_updated(self, rows: Mapping[int, Rows], update: Pending[None]) -> None:
        for m, of_module in rows.items():
            self._order[m].updated(of_module, update)
        for step in self._to_come():
            for m, of_module in rows.items():
                for call in self._served.calls[m]:
                    module = step.modules[call]
                    if not module.used:  # a forward that has its rows has had its place in program order
                        stale = [each for each, fetched in module.fetched.items() if fetched.rows.may_meet(of_module)]
                        for number in stale:
                            del module.fetched[number]
