"""In which order operations of one rank go that could go at once, and what they wait for."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from clocks import Clocks
from patience import PATIENCE_S
from simulated import Shape
from test_id_exchange import served_by

from fscomm.device import Host
from fscomm.exchange import executor
from fscomm.exchange.executor import Executor, executor_of
from fscomm.exchange.operations import Class, Due, Kind, Operation, class_of_reassigned
from fscomm.exchange.rows import RowExchange
from fscomm.report.recorder import Recorder
from fscomm.tables.forward_guard import ForwardGuard
from fsranks.rank_context import RankContext

ALONE = Shape(world_size=1, runs=((1,),), rows=((1,),), longest=0, silent=1, seed=0)


class Reassigns(ForwardGuard):
    reassigns = "renewed"


def ahead() -> Clocks:
    """A device that the host runs ahead of."""
    return Clocks(done_share=0.5, runs_ahead=True)


@contextlib.contextmanager
def executing(
    transport: str, device: Host, run: Callable[[Operation], object], *awaited: threading.Event
) -> Iterator[tuple[Executor, list[str]]]:
    """An executor that has no rows to move but does `run`, and the classes of the operations that have ended. awaited:
    by workers, not after the end."""
    served, ended = served_by(ALONE.layouts(), [0]), list[str]()
    served.modules[0].process_group, served.modules[0].guard, served.tables = None, Reassigns(), list

    def run_and_note(self: RowExchange, operation: Operation) -> None:
        run(operation)
        ended.append(operation.of_class.name)

    with mock.patch.object(executor, "open_transport"), mock.patch.object(RowExchange, "run", run_and_note):
        context, options = RankContext(rank=0, world_size=1), {"transport": transport, "timeout_s": PATIENCE_S}
        made = executor_of(device, transport)(served, context, Recorder(), device=device, **options)  # type: ignore[arg-type]
        try:
            yield made, ended
        finally:
            for event in awaited:
                event.set()
            made.close("the test is over")


def fetch(of_class: Class, **more: Any) -> Operation:
    return Operation(kind=Kind.FETCH, of_class=of_class, **more)


def urgent(made: Executor, **more: Any) -> Any:
    (done,) = made.submit([fetch(Class.COLLISION, **more)], Due.NOW)
    return done


def test_the_wire_is_not_kept_for_what_waits_for_the_wire() -> None:
    """Exclusive work waits for the wire, collision work waits for that, and more collision work could go at once."""
    begun = threading.Event()

    def run(operation: Operation) -> None:
        if operation.of_class is Class.EXCLUSIVE:
            assert begun.wait(PATIENCE_S)
            made.wire_gate.wait()

    with executing("gloo", Host(), run, begun) as (made, ended):
        urgent(made, after=made.submit([fetch(Class.EXCLUSIVE)]))
        at_once = urgent(made)
        begun.set()
        at_once.result(PATIENCE_S)
    assert ended == ["exclusive", "collision", "collision"]


def test_exclusive_rows_have_the_wire_while_the_device_computes_gradients() -> None:
    """Of the collision rows."""
    computed = threading.Event()

    def run(operation: Operation) -> None:
        if operation.of_class is Class.EXCLUSIVE:
            made.wire_gate.wait()

    def wait(mark: Any, limit_s: float) -> None:
        if threading.current_thread().name == "fscomm collision":
            assert computed.wait(PATIENCE_S)

    device = ahead()
    with mock.patch.object(device, "wait", wait), executing("host-staged", device, run, computed) as (made, ended):
        collision = urgent(made)
        made.submit([fetch(Class.EXCLUSIVE)])[0].result(PATIENCE_S)
        computed.set()
        collision.result(PATIENCE_S)
    assert ended == ["exclusive", "collision"]


@pytest.mark.parametrize(
    ("transport", "order"), [("host-staged", ["collision", "exclusive"]), ("nccl", ["exclusive", "collision"])]
)
def test_collision_rows_do_not_wait_behind_exclusive_rows_that_pass_the_host(transport: str, order: list[str]) -> None:
    """But where one thread issues both, and waits for none."""
    begun, over = threading.Event(), threading.Event()

    def run(operation: Operation) -> None:
        if operation.of_class is Class.EXCLUSIVE:
            begun.set()
            over.wait(0.0 if transport == "nccl" else PATIENCE_S)

    with executing(transport, ahead(), run, over) as (made, ended):
        (exclusive,) = made.submit([fetch(Class.EXCLUSIVE)])
        assert begun.wait(PATIENCE_S)
        urgent(made).result(PATIENCE_S)
        over.set()
        exclusive.result(PATIENCE_S)
    assert ended == order


def test_on_streams_exclusive_operations_are_behind_the_collision_operations_before_them() -> None:
    after: list[list[Any]] = []
    with executing("nccl", ahead(), lambda operation: after.append(list(operation.after))) as (made, _):
        made.submit([fetch(Class.EXCLUSIVE)])
        *_, collision = made.submit([fetch(Class.COLLISION)] * 2, Due.NOW, expecting=lambda: True)
        made.submit([fetch(Class.EXCLUSIVE)])
        made.submit([fetch(Class.COLLISION)])
        (late,) = made.submit([fetch(class_of_reassigned("renewed"))], Due.NOW, expecting=lambda: True)
        made.submit([fetch(Class.EXCLUSIVE)])[0].result(PATIENCE_S)
    assert after == [[], [], [], [collision], [], [], [collision, late]]
