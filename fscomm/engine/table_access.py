"""Look-ups and updates of tables, given to the workers in the order of `table_order.py`.

Every method submits and returns. Methods are called in program order, by the thread that trains or runs backward.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fscomm.device import Device
from fscomm.engine.table_order import Rows, TableOrder, collision, exclusive, whole
from fscomm.exchange.connections import Connections
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.step import ExchangedIds, Gradients, Step
from fscomm.exchange.worker import Pending
from fscomm.tables.plain_kernels import Update

Fetch = tuple[Step, int, bool]  # for a module; the bool: whether of the collision class


class TableAccess:
    """The tables of all served modules on this rank."""

    def __init__(self, connections: Connections, served: ServedModules, device: Device) -> None:
        self._connections = connections
        self._served = served

        def is_done(update: Pending[None]) -> bool:
            return update.done() and device.is_done(update.mark)

        orders: list[TableOrder[Fetch]] = [TableOrder(is_done) for _ in served.modules]
        self._order = [orders[calls.start] for calls in served.calls]

    def fetch_exclusive(self, step: Step, modules: Sequence[int]) -> None:
        """Look the exclusive rows of `modules` up and send them. Sets `step.exclusive`."""
        arrived = step.arrived

        def work() -> None:
            ids = arrived.result()
            if ids.verdict.stop is None:
                self._connections.exclusive.send_rows(ids, self._served_groups(ids, modules), collision=False)

        rows = exclusive(step.number, step.follows)
        done = self._connections.submit("exclusive", work, after=self._before(modules, rows))
        for m in modules:
            step.modules[m].exclusive = done
            self._order[m].fetched((step, m, False), rows)

    def fetch_collision(self, step: Step, m: int) -> None:
        """Look the collision rows of module m up and send them. Sets `step.collision`."""
        rows = self._read_with_collision_rows(step, m)
        work = partial(self._send_collision_rows, step.arrived, [m])
        done = self._connections.submit_collision(work, after=self._before([m], rows), expecting=lambda: False)
        self._fetched(step, m, rows, done)

    def update(
        self,
        step: Step,
        gradients: Gradients,
        successor: Step | None,
        to_fetch: Sequence[int],
        *,
        expecting: Callable[[], bool],
    ) -> None:
        """Send `gradients` and update both classes; in between send the collision rows that are next.

        Those are the rows of `successor` for the modules `to_fetch`; sets its `collision`.
        """
        assert step.planned is not None
        planned, modules = step.planned, self._served.modules_of(gradients.groups)
        next_ids = successor.arrived if successor is not None else None

        def work() -> None:
            following = planned.result()
            if following.verdict.stop is not None or following.verdict.ended:
                return  # no step follows: all gradients are exclusive
            self._connections.collision.update(gradients, following.back, gradients.groups, collision=True)
            if next_ids is not None:
                self._send_collision_rows(next_ids, to_fetch)

        shared_rows, own_rows = collision(step.number, step.next), exclusive(step.number, step.next)
        after = [planned, *self._before(modules, shared_rows)]
        to_read = {m: self._read_with_collision_rows(successor, m) for m in to_fetch} if successor is not None else {}
        for m, rows in to_read.items():
            after += self._before([m], rows)
        done = self._connections.submit_collision(work, after=after, expecting=expecting)
        for m in modules:
            self._updated(m, shared_rows, done)
        if successor is not None:
            for m, rows in to_read.items():
                self._fetched(successor, m, rows, done)
        for m in modules:
            of_module = [g for g in self._served.groups[m] if g in gradients.groups]
            in_worker = partial(self._update_exclusive, gradients, planned, of_module)
            kept = [done] if self._served.pooled(m) else []  # the gradients of bags with rows of both classes
            self._update(m, own_rows, "exclusive", in_worker, planned, *kept)

    def update_plainly(self, m: int, group: int, kernel: int, rows: Rows, update: Update) -> None:
        """Update one kernel with gradients that TorchRec has brought to this rank."""
        self._update(m, rows, "plain", partial(self._connections.plain.update, group, kernel, update))

    def forget(self, step: Step, modules: Iterable[int]) -> None:
        """The forward of `step` has come for `modules`, or will never come."""
        for m in modules:
            self._order[m].forget((step, m, False))
            self._order[m].forget((step, m, True))

    def wait(self, m: int) -> None:
        """Block until the tables of module m have all updates so far. From any thread."""
        for update in self._order[m].pending():
            update.result()

    def _send_collision_rows(self, arrived: Pending[ExchangedIds], modules: Sequence[int]) -> None:
        """In the collision worker."""
        ids = arrived.result()
        self._connections.collision.send_rows(ids, self._served_groups(ids, modules), collision=True)

    def _update_exclusive(self, gradients: Gradients, planned: Pending[ExchangedIds], groups: Sequence[int]) -> None:
        """In the exclusive worker."""
        self._connections.exclusive.update(gradients, planned.result().back, groups, collision=False)

    def _served_groups(self, ids: ExchangedIds, modules: Iterable[int]) -> list[int]:
        return [g for m in modules for g in self._served.groups[m] if ids.groups[g] is not None]

    def _before(self, modules: Iterable[int], rows: Rows) -> list[Pending[Any]]:
        return [update for m in modules for update in self._order[m].before(rows)]

    def _update(self, m: int, rows: Rows, worker: str, work: Callable[[], None], *planned: Pending[Any]) -> None:
        after = [*planned, *self._order[m].before(rows)]
        self._updated(m, rows, self._connections.submit(worker, work, after=after))

    def _fetched(self, step: Step, m: int, rows: Rows, done: Pending[None]) -> None:
        step.modules[m].collision = done
        self._order[m].fetched((step, m, True), rows)

    def _read_with_collision_rows(self, step: Step, m: int) -> Rows:
        """What a fetch of the collision class reads: of a pooled table all rows of the bags that hold such a row."""
        return whole(step.number) if self._served.pooled(m) else collision(step.number, step.follows)

    def _updated(self, m: int, rows: Rows, update: Pending[None]) -> None:
        for step, call, of_collision in self._order[m].updated(rows, update):
            if of_collision:
                step.modules[call].collision = None
            else:
                step.modules[call].exclusive = None


def result(pending: Pending[Any] | None) -> Any:
    """The result of work that must have been submitted."""
    assert pending is not None
    return pending.result()
