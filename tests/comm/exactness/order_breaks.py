"""Ways to break the order of table accesses on purpose, by name: the generator of programs has to notice each."""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from fscomm.engine import engine, forward_modes
from fscomm.engine.announced import AnnouncedSteps
from fscomm.engine.pending_gradients import PendingGradients
from fscomm.engine.table_access import TableAccess
from fscomm.engine.table_order import Rows, TableOrder, collision
from fscomm.engine.updates import Updates
from fscomm.exchange.served_modules import ServedModules
from fscomm.tables import plain_kernels
from fscomm.tables.shadow_kernels import Shadow, read_hyper

Break = Callable[[], contextlib.AbstractContextManager[Any]]
BREAKS: dict[str, Break] = {}


def order_break(function: Break) -> Break:
    BREAKS[function.__name__] = function
    return function


@order_break
def nothing_waits_for_updates() -> Any:
    return mock.patch.object(TableOrder, "before", return_value=[])


@order_break
def rows_of_different_steps_never_meet() -> Any:
    return mock.patch.object(Rows, "may_meet", lambda self, other: bool(self.within & other.within))


@order_break
def plain_updates_at_once() -> Any:
    """As TorchRec's own kernels do."""

    def at_once(target: Any, read: Any, update: Any) -> None:
        update(lambda: Shadow(target))

    return mock.patch.object(plain_kernels, "update_in_turn", at_once)


@order_break
def plain_forwards_do_not_wait() -> Any:
    return mock.patch.object(engine.Engine, "_may_read", lambda self, group: self._reading)


@order_break
def forwards_of_one_pass_are_updated_in_the_order_of_the_forwards() -> Any:
    def take(self: PendingGradients, step: Any, group: int, gradient: torch.Tensor) -> None:
        self._came.setdefault((step, self._served.sent_with(group)), {})[group] = gradient

    def send_rest(self: PendingGradients) -> None:
        for forward in sorted(self._came, key=lambda forward: (forward[0].number, forward[1])):
            self._send_one(forward)

    return mock.patch.multiple(PendingGradients, take=take, send_rest=send_rest)


@order_break
def forwards_in_one_pass_are_not_kept_apart() -> Any:
    return mock.patch.object(PendingGradients, "send_before", return_value=None)


def _without_stale(of_collision: bool) -> Any:
    updated = TableOrder.updated

    def changed(self: Any, rows: Rows, update: Any) -> Any:
        return [fetch for fetch in updated(self, rows, update) if fetch[2] != of_collision]

    return mock.patch.object(TableOrder, "updated", changed)


@order_break
def stale_exclusive_rows_are_used() -> Any:
    return _without_stale(of_collision=False)


@order_break
def stale_collision_rows_are_used() -> Any:
    return _without_stale(of_collision=True)


@order_break
def foreign_features_count_as_announced() -> Any:
    run_plainly = engine.Engine._run_plainly

    def changed(self: Any, m: int, step: Any, features: Any, *, foreign: bool) -> Any:
        del foreign
        return run_plainly(self, m, step, features, foreign=False)

    return mock.patch.object(engine.Engine, "_run_plainly", changed)


@order_break
def states_are_read_before_updates_are_done() -> Any:
    return mock.patch.object(TableAccess, "wait", return_value=None)


@order_break
def a_failed_pass_updates_nothing() -> Any:
    def forget(self: Any) -> None:
        if self._pass != -1 and not forward_modes.in_backward():
            self._pass = -1
            self._gathering._came.clear()
            self._reached.clear()

    return mock.patch.object(Updates, "end_failed_pass", forget)


@order_break
def rows_fetched_before_a_load_are_used() -> Any:
    return mock.patch.object(AnnouncedSteps, "drop_fetched", return_value=None)


@order_break
def plain_updates_use_the_rate_of_their_backward() -> Any:
    def backward(self: Any, args: Any, options: Any, saved: Any) -> Any:
        def make_update(gradient: torch.Tensor, *came: torch.Tensor) -> Any:
            hyper = read_hyper(self._target)
            return lambda shadow: shadow().update(hyper, gradient, *args, **options)

        return make_update

    return mock.patch.object(plain_kernels.KernelProxy, "_backward", backward)


@order_break
def calls_of_a_module_do_not_share_rows() -> Any:
    return mock.patch.object(ServedModules, "same_tables", lambda self, group: [group])


@order_break
def calls_of_a_module_have_orders_of_their_own() -> Any:
    made = TableAccess.__init__

    def changed(self: Any, connections: Any, served: Any, device: Any) -> None:
        made(self, connections, served, device)
        self._order = [TableOrder(order._is_done) for order in self._order]

    return mock.patch.object(TableAccess, "__init__", changed)


@order_break
def calls_of_a_module_are_updated_together() -> Any:
    return mock.patch.object(ServedModules, "sent_with", return_value=0)


@order_break
def calls_that_are_not_served_read_what_served_ones_read() -> Any:
    def changed(self: Any, m: int, step: Any, call: Any, features: Any) -> Any:
        whole = self._served.calls
        with mock.patch.object(self._served, "calls", [range(number, number + 1) for number in range(len(whole))]):
            return decide(self, m, step, call, features)

    decide = engine.Engine._decide
    return mock.patch.object(engine.Engine, "_decide", changed)


def collision_bags_wait_for_collision_rows_only() -> Any:
    """They hold other rows, too. Seen in three steps that are served one after the other."""
    return mock.patch.object(
        TableAccess, "_read_with_collision_rows", lambda self, step, m: collision(step.number, step.follows)
    )
