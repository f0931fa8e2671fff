"""Look-ups and updates of tables on their way to a worker, each behind those that it has to come after (`order.py`).

Every method submits and returns; called in program order, by the thread that trains or runs backward.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fscomm.device import Device
from fscomm.engine.table_order import Rows, TableOrder, collision, exclusive
from fscomm.exchange.connections import Connections
from fscomm.exchange.row_exchange import Gradients
from fscomm.exchange.step import Step
from fscomm.exchange.worker import Pending
from fscomm.torchrec.plain_kernels import Update

Fetch = tuple[Step, bool]  # whether of the collision class


class TableAccess:
    """The tables of all modules on this rank; `groups[m]` are the sharding groups of module m."""

    def __init__(self, links: Connections, groups: Sequence[range], device: Device) -> None:
        self._links = links
        self._groups = groups

        def is_done(update: Pending[None]) -> bool:
            return update.done() and device.is_done(update.mark)

        self._order: list[TableOrder[Fetch]] = [TableOrder(is_done) for _ in groups]

    def fetch_exclusive(self, step: Step, modules: Sequence[int]) -> None:
        """Look the exclusive rows of `modules` up and send them. Sets `step.exclusive`."""

        def work() -> None:
            if result(step.arrived).stop is None:
                self._links.exclusive.send_rows(step, self._served(step, modules), collision=False)

        rows = exclusive(step.number, step.follows)
        done = self._links.submit("exclusive", work, after=self._before(modules, rows))
        for m in modules:
            step.exclusive[m] = done
            self._order[m].fetched((step, False), rows)

    def fetch_collision(self, step: Step, m: int) -> None:
        """Look the collision rows of module m up and send them. Sets `step.collision`."""
        rows = collision(step.number, step.follows)
        work = partial(self._send_collision_rows, step, [m])
        done = self._links.submit_collision(work, after=self._before([m], rows), expecting=lambda: False)
        self._fetched(step, [m], rows, done)

    def update(
        self,
        step: Step,
        gradients: Gradients,
        modules: Sequence[int],
        successor: Step | None,
        to_fetch: Sequence[int],
        *,
        expecting: Callable[[], bool],
    ) -> None:
        """Send the gradients of `modules` and update both classes; in between send the collision rows that are next.

        Those are the rows of `successor` for the modules `to_fetch`; sets its `collision`.
        """
        assert step.planned is not None
        planned = step.planned
        groups = sorted(step.nodes)  # now: another module's forward may come before the worker gets to it

        def work() -> None:
            verdict = planned.result()
            if verdict.stop is not None or verdict.ended:
                return  # no step follows: all gradients are exclusive
            self._links.collision.update(step, gradients, groups, collision=True)
            if successor is not None:
                self._send_collision_rows(successor, to_fetch)

        shared_rows, own_rows = collision(step.number, step.next), exclusive(step.number, step.next)
        after = [planned, *self._before(modules, shared_rows)]
        if successor is not None:
            rows = collision(successor.number, successor.follows)
            after += self._before(to_fetch, rows)
        done = self._links.submit_collision(work, after=after, expecting=expecting)
        for m in modules:
            self._updated(m, shared_rows, done)
        if successor is not None:
            self._fetched(successor, to_fetch, rows, done)
        for m in modules:
            of_module = [g for g in self._groups[m] if g in groups]
            in_worker = partial(self._links.exclusive.update, step, gradients, of_module, collision=False)
            self._update(m, own_rows, "exclusive", in_worker, planned)

    def update_plainly(self, m: int, group: int, kernel: int, rows: Rows, update: Update) -> None:
        """Update one kernel; its gradients are here already."""
        self._update(m, rows, "plain", partial(self._links.plain.update, group, kernel, update))

    def forget(self, step: Step, modules: Iterable[int]) -> None:
        """The forward of `step` has come for `modules`, or never will."""
        for m in modules:
            self._order[m].forget((step, False))
            self._order[m].forget((step, True))

    def wait(self, m: int) -> None:
        """Block until the tables of module m have all updates so far. From any thread."""
        for update in self._order[m].pending():
            update.result()

    def _send_collision_rows(self, step: Step, modules: Sequence[int]) -> None:
        """In the collision worker."""
        self._links.collision.send_rows(step, self._served(step, modules), collision=True)

    def _served(self, step: Step, modules: Iterable[int]) -> list[int]:
        return [g for m in modules for g in self._groups[m] if step.groups[g] is not None]

    def _before(self, modules: Iterable[int], rows: Rows) -> list[Pending[Any]]:
        return [update for m in modules for update in self._order[m].before(rows)]

    def _update(self, m: int, rows: Rows, worker: str, work: Callable[[], None], *planned: Pending[Any]) -> None:
        after = [*planned, *self._order[m].before(rows)]
        self._updated(m, rows, self._links.submit(worker, work, after=after))

    def _fetched(self, step: Step, modules: Sequence[int], rows: Rows, done: Pending[None]) -> None:
        for m in modules:
            step.collision[m] = done
            self._order[m].fetched((step, True), rows)

    def _updated(self, m: int, rows: Rows, update: Pending[None]) -> None:
        for step, of_collision in self._order[m].updated(rows, update):
            (step.collision if of_collision else step.exclusive)[m] = None


def result(pending: Pending[Any] | None) -> Any:
    """Of what must have been submitted."""
    assert pending is not None
    return pending.result()
